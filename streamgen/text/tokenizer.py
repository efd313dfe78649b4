"""The tokenizer of a model: text to ids and back, without transformers (whose import drags in torch)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tokenizers

from streamgen.text.detokenizer import Detokenization, IncrementalDetokenizer, detokenization


class Tokenizer:
    """Wraps a `tokenizers.Tokenizer`, whose truncation and padding are switched off: a prompt is never cut silently.

    `add_bos` and `add_eos` say that encoded text begins and ends with those tokens even if the backend's own
    post-processor does not add them. `special_tokens` maps names such as `bos_token` to text, for chat templates.
    Safe to use from several threads.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        chat_template: str | dict[str, str] | None,
        special_tokens: Mapping[str, str],
        add_bos: bool,
        add_eos: bool,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens)
        self.add_bos = add_bos
        self.add_eos = add_eos
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size = max(backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        """One more than the largest id."""
        self._prefix, self._suffix = self._surroundings()
        self._skipping: Detokenization = detokenization(backend, self.special_token_ids)
        self._keeping: Detokenization = detokenization(backend, frozenset())

    def _surroundings(self) -> tuple[list[int], list[int]]:
        """The ids before and behind a text's own, by the backend's post-processor and `add_bos`, `add_eos`."""
        own = self.backend.encode("a", add_special_tokens=False).ids
        full = self.backend.encode("a", add_special_tokens=True).ids
        at = next((i for i in range(len(full)) if own and full[i : i + len(own)] == own), len(full))
        prefix, suffix = full[:at], full[at + len(own) :]
        if self.add_bos and self.bos_token_id is not None and prefix[:1] != [self.bos_token_id]:
            prefix = [self.bos_token_id, *prefix]
        if self.add_eos and self.eos_token_ids and (not suffix or suffix[-1] not in self.eos_token_ids):
            suffix = [*suffix, self.eos_token_ids[0]]
        return prefix, suffix

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`. Special tokens that the text itself begins or ends with are not added a second time."""
        # The batch call, unlike the single one, computes no offsets.
        ids: list[int] = self.backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if not add_special_tokens:
            return ids
        prefix, suffix = self._prefix, self._suffix
        if prefix and ids[: len(prefix)] != prefix:
            ids = prefix + ids
        if suffix and ids[-len(suffix) :] != suffix:
            ids = ids + suffix
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence, as the backend has it. Ids that do not exist add nothing."""
        return self.backend.decode(
            [token_id for token_id in ids if 0 <= token_id < 2**32], skip_special_tokens=skip_special_tokens
        )

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 of one token by itself, special ones included; may be a part of a character. b"" if there is none."""
        return self._keeping.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """Text of one token by itself, its leading space kept; U+FFFD where it has only a part of a character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def detokenizer(self, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True) -> IncrementalDetokenizer:
        """For the output that follows `prompt_ids`. Cheap, however long the prompt."""
        return (self._skipping if skip_special_tokens else self._keeping).start(prompt_ids)
