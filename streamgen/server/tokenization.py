"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from streamgen.errors import InvalidRequestError
from streamgen.server.chunks import dump_json
from streamgen.server.json_body import decode_body
from streamgen.server.messages import encode_chat
from streamgen.server.schema import DETOKENIZE_DECODER, TOKENIZE_DECODER
from streamgen.server.serving import ServingModel
from streamgen.server.state import ServerState

MIN_CHARS = 2**20
"""A text of so many characters is tokenized by any model's server; one with a long context takes longer ones."""
MIN_TOKENS = 2**20
"""The same for the way back, during whose beginning and end no other thread runs."""


class TokenizationEndpoints:
    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def tokenize(self, request: Request) -> Response:
        return await self._answer(request, tokenize)

    async def detokenize(self, request: Request) -> Response:
        return await self._answer(request, detokenize)

    async def _answer(self, request: Request, function: Any) -> Response:
        state = self._state
        serving = state.model()
        async with state.bodies.received(request.scope, request.receive) as body:
            answer = await state.workers.run(len(body), lambda: dump_json(function(body, serving)))
        return Response(answer, media_type="application/json")


def tokenize(raw: bytes, serving: ServingModel) -> dict[str, Any]:
    """Ids of a prompt, or of messages as the chat template renders them."""
    body = decode_body(raw, TOKENIZE_DECODER)
    serving.resolve(body.model)
    tokenizer = serving.need_tokenizer("prompt")
    if body.tools:
        raise InvalidRequestError("tools is not supported by this server.", "tools")
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("Send either prompt or messages.", "prompt")
    if body.prompt is not None:
        _check_size(body.prompt, serving)
        add = body.add_special_tokens is None or body.add_special_tokens
        ids = tokenizer.encode(body.prompt, add_special_tokens=add)
    else:
        if body.add_special_tokens:
            raise InvalidRequestError("The chat template writes the special tokens itself.", "add_special_tokens")
        ids = list(encode_chat(body.messages or [], body, serving))
    texts = [tokenizer.token_text(token_id) for token_id in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": serving.max_model_len, "tokens": ids, "token_strs": texts}


def _check_size(prompt: str, serving: ServingModel) -> None:
    """Texts longer than the context are counted too, but not without end: a token takes hundreds of bytes until the
    answer is there.
    """
    limit = max(MIN_CHARS, 16 * serving.max_model_len)
    if len(prompt) > limit:
        raise InvalidRequestError(
            f"prompt has {len(prompt)} characters; at most {limit} are tokenized at once.", "prompt"
        )


def detokenize(raw: bytes, serving: ServingModel) -> dict[str, Any]:
    """Text of ids, special tokens included."""
    body = decode_body(raw, DETOKENIZE_DECODER)
    serving.resolve(body.model)
    tokenizer = serving.need_tokenizer("tokens")
    limit = max(MIN_TOKENS, serving.max_model_len)
    if len(body.tokens) > limit:
        raise InvalidRequestError(f"tokens holds {len(body.tokens)} ids; at most {limit} are taken.", "tokens")
    for i, token_id in enumerate(body.tokens):
        if not 0 <= token_id < serving.num_ids:
            raise InvalidRequestError(
                f"tokens[{i}] is {token_id}, which is no token id of this model (0 to {serving.num_ids - 1}).",
                "tokens",
            )
    return {"prompt": tokenizer.decode(body.tokens, skip_special_tokens=False)}
