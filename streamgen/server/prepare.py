"""From the bytes of a body to everything that is needed to run it: validated in full, nothing started yet.

Pure and synchronous, so that it can run beside the event loop; HTTP and WebSocket share it.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamgen.errors import ContextLengthError, InvalidRequestError
from streamgen.server.json_body import decode_body
from streamgen.server.kind import Kind
from streamgen.server.messages import encode_chat
from streamgen.server.prompts import EncodedPrompt, encode_prompts
from streamgen.server.sampling import requested_max_tokens, sampling_params
from streamgen.server.schema import CHAT_DECODER, COMPLETION_DECODER, CompletionBody, GenerationBody
from streamgen.server.serving import ServingModel
from streamgen.server.unsupported import CHAT_UNSUPPORTED, COMPLETION_UNSUPPORTED, check_unsupported
from streamgen.types import SamplingParams, TokenIds

MAX_CHOICES = 1024
"""Most sequences of one request: prompts times n."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    kind: Kind
    model: str
    """The name to answer with."""
    prompts: tuple[TokenIds, ...]
    params: SamplingParams
    """What all prompts share; `params_for` has what the engine is asked for each."""
    echoes: tuple[str, ...] = ()
    """Text that each prompt's choices begin with; empty unless the client asked for its prompt back."""
    score_only: bool = False
    """Nothing is to be generated: `max_tokens` was 0, with `echo`."""
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    event_ids: bool = False
    """The stream's events are numbered and kept for a while, so that it can be resumed."""
    return_token_ids: bool = False
    priority: int = 0
    max_model_len: int | None = None
    """Where `max_tokens` is only the model's default: the context, to whose end it gives way."""

    def params_for(self, prompt: TokenIds) -> SamplingParams:
        return self.params if self.max_model_len is None else self.params.within(self.max_model_len - len(prompt))

    @property
    def num_choices(self) -> int:
        """Choice `prompt * n + sibling`."""
        return len(self.prompts) * self.params.n


def prepare(kind: Kind, body: bytes, serving: ServingModel, *, always_streams: bool = False) -> Prepared:
    """Raises InvalidRequestError, ContextLengthError, ModelNotFoundError. `always_streams`: the transport decides."""
    if kind is Kind.CHAT:
        return _prepare_chat(body, serving, always_streams)
    return _prepare_completion(body, serving, always_streams)


def _prepare_chat(raw: bytes, serving: ServingModel, always_streams: bool) -> Prepared:
    body = decode_body(raw, CHAT_DECODER)
    model = serving.resolve(body.model)
    check_unsupported(body, CHAT_UNSUPPORTED)
    params = sampling_params(body, serving, max_tokens=_max_tokens(body, serving))
    prompt = encode_chat(body.messages, body, serving)
    return _prepared(Kind.CHAT, model, body, (prompt,), params, serving, always_streams)


def _prepare_completion(raw: bytes, serving: ServingModel, always_streams: bool) -> Prepared:
    body = decode_body(raw, COMPLETION_DECODER)
    model = serving.resolve(body.model)
    check_unsupported(body, COMPLETION_UNSUPPORTED)
    max_tokens = _max_tokens(body, serving)
    score_only = bool(body.echo) and max_tokens == 0
    params = sampling_params(body, serving, max_tokens=1 if score_only else max_tokens)
    add_special_tokens = body.add_special_tokens is None or body.add_special_tokens
    prompts = encode_prompts(body.prompt, serving, add_special_tokens=add_special_tokens)
    return _prepared(
        Kind.COMPLETION,
        model,
        body,
        tuple(prompt.token_ids for prompt in prompts),
        params,
        serving,
        always_streams,
        echoes=tuple(_text(prompt, serving) for prompt in prompts) if body.echo else (),
        score_only=score_only,
    )


def _prepared(
    kind: Kind,
    model: str,
    body: GenerationBody | CompletionBody,
    prompts: tuple[TokenIds, ...],
    params: SamplingParams,
    serving: ServingModel,
    always_streams: bool,
    *,
    echoes: tuple[str, ...] = (),
    score_only: bool = False,
) -> Prepared:
    stream = always_streams or bool(body.stream)
    options = body.stream_options
    if options is not None and not stream:
        raise InvalidRequestError("stream_options is only allowed when stream is true.", "stream_options")
    event_ids = bool(options and options.include_event_ids)
    if event_ids and always_streams:
        raise InvalidRequestError(
            "include_event_ids is for server-sent events; frames are numbered anyway.",
            "stream_options.include_event_ids",
        )
    if len(prompts) * params.n > MAX_CHOICES:
        raise InvalidRequestError(
            f"{len(prompts)} prompts with n = {params.n} make {len(prompts) * params.n} choices; "
            f"at most {MAX_CHOICES} are served in one request.",
            "n",
        )
    by_default = requested_max_tokens(body) is None
    for prompt in prompts:
        # Without a max_tokens of the client's there must still be room for one.
        wanted = 0 if score_only else 1 if by_default else params.max_tokens or 1
        _check_length(prompt, wanted, params.min_tokens, kind, serving)
    priority = body.priority or 0
    if not -(2**31) <= priority < 2**31:
        raise InvalidRequestError(f"priority must fit 32 bits; it was {priority}.", "priority")
    return Prepared(
        kind=kind,
        model=model,
        prompts=prompts,
        params=params,
        echoes=echoes,
        score_only=score_only,
        stream=stream,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
        event_ids=event_ids,
        return_token_ids=bool(body.return_token_ids),
        priority=priority,
        max_model_len=serving.max_model_len if by_default else None,
    )


def _max_tokens(body: GenerationBody, serving: ServingModel) -> int | None:
    """What the client asked for, else the model's default, else None: all the room that is left."""
    asked = requested_max_tokens(body)
    if asked is None and serving.generation is not None:
        return serving.generation.max_tokens
    return asked


def _check_length(prompt: TokenIds, wanted: int, min_tokens: int, kind: Kind, serving: ServingModel) -> None:
    limit, length = serving.max_model_len, len(prompt)
    if length + wanted > limit:
        raise ContextLengthError(limit, length, wanted if length <= limit else None, kind.prompt_param)
    if wanted and min_tokens > limit - length:
        raise InvalidRequestError(
            f"min_tokens ({min_tokens}) is more than the {limit - length} tokens that the context has room for.",
            "min_tokens",
        )


def _text(prompt: EncodedPrompt, serving: ServingModel) -> str:
    if prompt.text is not None:
        return prompt.text
    return serving.need_tokenizer("echo").decode(prompt.token_ids)
