"""From a body's fields, and the model's own defaults, to SamplingParams."""

from __future__ import annotations

from typing import TypeVar

from streamgen.errors import InvalidRequestError
from streamgen.server.schema import GenerationBody
from streamgen.server.serving import ServingModel
from streamgen.types import SamplingParams

T = TypeVar("T")


def sampling_params(body: GenerationBody, serving: ServingModel, *, max_tokens: int | None) -> SamplingParams:
    """Raises InvalidRequestError, naming the field. `max_tokens` is that of `requested_max_tokens`."""
    defaults = serving.generation
    stop = body.stop
    for token_id in body.stop_token_ids or ():
        if not 0 <= token_id < serving.num_ids:
            raise InvalidRequestError(
                f"stop_token_ids holds {token_id}, which is no token id of this model (0 to {serving.num_ids - 1}).",
                "stop_token_ids",
            )
    return SamplingParams(
        temperature=_first(body.temperature, defaults.temperature if defaults else None, 1.0),
        top_p=_first(body.top_p, defaults.top_p if defaults else None, 1.0),
        top_k=_first(body.top_k, defaults.top_k if defaults else None, 0),
        min_p=_first(body.min_p, defaults.min_p if defaults else None, 0.0),
        max_tokens=max_tokens,
        min_tokens=_first(body.min_tokens, None, 0),
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        ignore_eos=bool(body.ignore_eos),
        seed=body.seed,
        n=_first(body.n, None, 1),
    )


def requested_max_tokens(body: GenerationBody) -> int | None:
    """What the client asked for under either of the two names, or None."""
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequestError(
            f"max_tokens ({old}) and max_completion_tokens ({new}) contradict each other; send one of them.",
            "max_completion_tokens",
        )
    return old if new is None else new


def _first(sent: T | None, model: T | None, fallback: T) -> T:
    if sent is not None:
        return sent
    return fallback if model is None else model
