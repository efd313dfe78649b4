"""How much of a prompt is encoded to know whether it fits."""

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from streamgen.server.serving import PROSE_CHARS, PromptTooLongError, ServingModel
from streamgen.text.tokenizer import Tokenizer

LENGTH = 64
RUN = 64
"""Spaces in the longest token."""


class Counted(Tokenizer):
    """Counts the characters that it encodes."""

    num_chars = 0

    def encode(self, text, *, add_special_tokens=True):
        self.num_chars += len(text)
        return super().encode(text, add_special_tokens=add_special_tokens)


@pytest.fixture
def serving():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    space = "\u0120"
    runs = [space * 2**i for i in range(7)]
    vocab = {text: i for i, text in enumerate([*alphabet, *runs[1:]])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[(run, run) for run in runs[:-1]]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Counted(
        backend,
        bos_token_id=None,
        eos_token_ids=(),
        chat_template=None,
        special_tokens={},
        add_bos=False,
        add_eos=False,
    )
    return ServingModel(names=("tiny",), max_model_len=LENGTH, created=0, tokenizer=tokenizer)


def encoded(serving, text):
    return len(serving.encode(text, "prompt", add_special_tokens=True))


@pytest.mark.parametrize("number", [1, LENGTH // 2, LENGTH - 1, LENGTH, LENGTH + 1, 2 * LENGTH - 1])
def test_a_long_run_of_spaces_has_its_true_number_of_tokens(serving, number):
    """Whether that fits is then for whoever knows what is to be generated."""
    assert encoded(serving, " " * (RUN * number)) == number


@pytest.mark.parametrize("text", ["a", "\u00e9", "\u4f60", "\U0001f600", "word "])
def test_of_a_text_no_more_is_encoded_than_fits_with_room_to_spare(serving, text):
    with pytest.raises(PromptTooLongError) as refused:
        encoded(serving, (text * 10**6)[: 10**6])
    assert refused.value.code == "context_length_exceeded"
    assert f"{LENGTH} tokens" in refused.value.message
    assert serving.tokenizer.num_chars == PROSE_CHARS * LENGTH


def test_of_a_run_without_end_no_more_is_encoded_than_tells_that_it_does_not_fit(serving):
    with pytest.raises(PromptTooLongError):
        encoded(serving, " " * 10**6)
    # 16, 32, 64 and 128 characters for each token of context, the last of which give twice as many as fit.
    assert serving.tokenizer.num_chars == 240 * LENGTH


def test_what_may_fit_is_encoded_to_its_end(serving):
    text = "a" * (PROSE_CHARS * LENGTH)
    assert encoded(serving, text) == len(text)
    spaces = " " * (RUN * 30)
    assert encoded(serving, spaces + "abc") == 33
