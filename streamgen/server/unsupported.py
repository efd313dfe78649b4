"""Parameters that are known and not served: refused, unless their value asks for nothing.

Ignoring them would be worse than an error: whoever sends `response_format` relies on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from streamgen.errors import InvalidRequestError

Neutral: TypeAlias = Mapping[str, tuple[Any, ...]]
"""Field → values, beside null, that ask for nothing."""

_BOTH: Neutral = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "use_beam_search": (False,),
    "best_of": (),  # best_of == n == 1 is let through by check_unsupported
    "bad_words": ([],),
    "allowed_token_ids": (),
    "prompt_logprobs": (),
    "logits_processors": ([],),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "truncate_prompt_tokens": (),
    "prompt_embeds": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "cache_salt": (),
    "kv_transfer_params": (),
}

CHAT_UNSUPPORTED: Neutral = {
    **_BOTH,
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
    "echo": (False,),
    "add_special_tokens": (False,),
}

COMPLETION_UNSUPPORTED: Neutral = {**_BOTH, "logprobs": (False,), "suffix": ("",)}


def check_unsupported(body: Any, neutral: Neutral) -> None:
    """Raise InvalidRequestError for the first field of `body` that asks for something that is not served."""
    for name, values in neutral.items():
        value = getattr(body, name)
        if value is None or any(_same(value, allowed) for allowed in values):
            continue
        if name == "best_of" and value == (body.n or 1) == 1 and not isinstance(value, bool):
            continue
        raise InvalidRequestError(f"{name} is not supported by this server.", name)


def _same(value: Any, allowed: Any) -> bool:
    # 0 and 0.0 are the same number; 0 and false are not the same thing.
    return isinstance(value, bool) == isinstance(allowed, bool) and bool(value == allowed)
