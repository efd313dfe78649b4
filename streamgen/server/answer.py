"""A whole answer in one JSON object, put together from the same Deltas as a stream's chunks."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from starlette.types import Receive

from streamgen.errors import EngineError
from streamgen.server.body import ClientGoneError
from streamgen.server.generation import Generation
from streamgen.server.kind import Kind
from streamgen.server.prepare import Prepared
from streamgen.server.usage import usage_json
from streamgen.types import Delta, FinishReason


class Choice:
    """What one sequence has come to so far."""

    __slots__ = ("finish_reason", "stop_reason", "texts", "token_ids")

    def __init__(self, echo: str) -> None:
        self.texts = [echo] if echo else []
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason


async def collect(prepared: Prepared, generation: Generation) -> list[Choice]:
    """Read all there is. Raises EngineError."""
    n = prepared.params.n
    choices = [Choice(prepared.echoes[i // n] if prepared.echoes else "") for i in range(prepared.num_choices)]
    while True:
        prompt, deltas = await generation.read()
        if not deltas:
            break
        for delta in deltas:
            choices[prompt * n + delta.index].add(delta)
    if any(choice.finish_reason is None for choice in choices):
        raise EngineError("The engine ended this request without a reason.")
    return choices


async def collect_unless_gone(prepared: Prepared, generation: Generation, receive: Receive) -> list[Choice]:
    """As `collect`, while listening for the client: if it leaves, the request is aborted and ClientGoneError raised."""
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        generation.abort()

    watcher = asyncio.create_task(watch())
    try:
        choices = await collect(prepared, generation)
    finally:
        watcher.cancel()
        await generation.close()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
    if gone:
        raise ClientGoneError
    return choices


def answer_json(
    prepared: Prepared, choices: list[Choice], generation: Generation, *, answer_id: str, created: int
) -> dict[str, Any]:
    """The response object of either endpoint."""
    chat = prepared.kind is Kind.CHAT
    answer: dict[str, Any] = {
        "id": answer_id,
        "object": prepared.kind.object,
        "created": created,
        "model": prepared.model,
        "choices": [_choice_json(prepared, i, choice) for i, choice in enumerate(choices)],
        "usage": usage_json(generation.usage),
    }
    if prepared.return_token_ids and chat:
        answer["prompt_token_ids"] = prepared.prompts[0]
    return answer


def _choice_json(prepared: Prepared, index: int, choice: Choice) -> dict[str, Any]:
    text = "".join(choice.texts)
    entry: dict[str, Any] = {"index": index}
    if prepared.kind is Kind.CHAT:
        entry["message"] = {"role": "assistant", "content": text, "refusal": None}
    else:
        entry["text"] = text
    entry["logprobs"] = None
    entry["finish_reason"] = choice.finish_reason
    entry["stop_reason"] = choice.stop_reason
    if prepared.return_token_ids:
        entry["token_ids"] = choice.token_ids
        if prepared.kind is Kind.COMPLETION:
            entry["prompt_token_ids"] = prepared.prompts[index // prepared.params.n]
    return entry
