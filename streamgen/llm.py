"""Offline use: the same engine, without a server.

llm = LLM("path/to/model", dtype="float32")
for output in llm.generate(["The capital of France is"], SamplingParams(max_tokens=8)):
    print(output.outputs[0].text)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, cast

from streamgen.config import MANY, CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from streamgen.engine.async_engine import AsyncEngine
from streamgen.engine.loading import LoadedEngine, Progress, load_engine
from streamgen.errors import ConfigError, InvalidRequestError
from streamgen.text.chat import ChatTemplate
from streamgen.text.tokenizer import Tokenizer
from streamgen.types import FinishReason, SamplingParams, TokenIds, Usage

Prompt: TypeAlias = str | Sequence[int]
T = TypeVar("T")

_NO_QUEUE_BOUNDS = {"max_num_queued_reqs": MANY, "max_num_queued_tokens": MANY}
"""They protect a server from its clients; a batch has the length that it has."""


@dataclass(slots=True)
class CompletionOutput:
    """One of a prompt's `n` continuations."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What a prompt was continued with."""

    prompt: str | None
    """None if the prompt was given as token ids."""
    prompt_token_ids: TokenIds
    outputs: list[CompletionOutput]
    usage: Usage


class LLM:
    """A model in this process. Its methods block; the engine behind them runs on threads of its own.

    Keyword arguments are fields of ModelConfig, CacheConfig, SchedulerConfig and EngineConfig.
    """

    def __init__(self, model: str = "", *, progress: Progress | None = None, **options: Any) -> None:
        """Load a model. Raises SetupError."""
        config = engine_config(model, {**_NO_QUEUE_BOUNDS, **options})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="streamgen-llm", daemon=True)
        self._thread.start()
        self._closed = False
        try:
            self._loaded: LoadedEngine = self._run(load_engine(config, progress=progress, stream_buffer_bytes=2**30))
        except BaseException:
            self._stop_loop()
            raise

    @property
    def engine(self) -> AsyncEngine:
        return self._loaded.engine

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises InvalidRequestError if the model has none."""
        tokenizer = self._loaded.checkpoint.tokenizer
        if tokenizer is None:
            raise InvalidRequestError("This model has no tokenizer: prompts must be token ids.", "prompt")
        return tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_output: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Continue prompts, all of them together in one batch; outputs in the order of the prompts.

        Args:
        params: one for all, or one for each; by default those of the model's generation config.
        on_output: called as soon as each prompt is done, in whatever order that is.

        Raises InvalidRequestError or ContextLengthError, before anything is computed, and EngineError.
        """
        batch = _as_batch(prompts)
        texts = [prompt if isinstance(prompt, str) else None for prompt in batch]
        ids = [self._token_ids(prompt) for prompt in batch]
        if params is None:
            each = [self._defaults_for(prompt) for prompt in ids]
        else:
            each = [params] * len(batch) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(batch):
            raise InvalidRequestError(f"There are {len(batch)} prompts and {len(each)} sampling parameters.")
        return self._run(self._generate(texts, ids, each, on_output))

    def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None, **template_options: Any
    ) -> RequestOutput:
        """Answer a conversation, rendered by the model's chat template. Raises as `generate` does."""
        tokenizer = self.tokenizer
        template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)
        text = template.render(messages, **template_options)
        # The template has written whatever special tokens it wants.
        ids = tokenizer.encode(text, add_special_tokens=False)
        return self._run(self._generate([text], [ids], [params or self._defaults_for(ids)], None))[0]

    def default_params(self) -> SamplingParams:
        """SamplingParams with what the model's generation config says."""
        defaults = self._loaded.checkpoint.generation
        known = {f.name: getattr(defaults, f.name) for f in fields(defaults)}
        return SamplingParams(**{name: value for name, value in known.items() if value is not None})

    def close(self) -> None:
        """Give everything back. Idempotent."""
        if not self._closed:
            self._closed = True
            self._run(self.engine.shutdown())
            self._stop_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _defaults_for(self, prompt: Sequence[int]) -> SamplingParams:
        return self.default_params().within(max(1, self.engine.max_model_len - len(prompt)))

    def _token_ids(self, prompt: Prompt) -> Sequence[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    async def _generate(
        self,
        texts: Sequence[str | None],
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        on_output: Callable[[RequestOutput], None] | None,
    ) -> list[RequestOutput]:
        async def one(text: str | None, prompt: Sequence[int], sampling: SamplingParams) -> RequestOutput:
            stream = self.engine.add(prompt, sampling)
            outputs = [CompletionOutput(index) for index in range(sampling.n)]
            try:
                while deltas := await stream.get():
                    for delta in deltas:
                        output = outputs[delta.index]
                        output.text += delta.text
                        output.token_ids.extend(delta.token_ids)
                        output.finish_reason = delta.finish_reason
                        output.stop_reason = delta.stop_reason
            finally:
                stream.abort()
            result = RequestOutput(text, stream.prompt_token_ids, outputs, stream.usage)
            if on_output is not None:
                on_output(result)
            return result

        for prompt, sampling in zip(prompts, params, strict=True):
            self.engine.validate(prompt, sampling)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(*item)) for item in zip(texts, prompts, params, strict=True)]
        return [task.result() for task in tasks]

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise
        except BaseExceptionGroup as group:
            # One prompt's error ends the call; the others were cancelled because of it.
            raise group.exceptions[0] from None

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as many. Token ids are told from a list of prompts by their first item."""
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [cast("Sequence[int]", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def engine_config(model: str, options: Mapping[str, Any]) -> EngineConfig:
    """Sort options into the configs that have a field of their name. Raises ConfigError for a name that none has."""
    parts: dict[str, Any] = {"model": ModelConfig(), "cache": CacheConfig(), "scheduler": SchedulerConfig()}
    engine: dict[str, Any] = {}
    for name, value in {"model": model, **options}.items():
        owner = next((key for key, part in parts.items() if name in _field_names(part)), None)
        if owner is not None:
            parts[owner] = replace(parts[owner], **{name: value})
        elif name in _field_names(EngineConfig()):
            engine[name] = value
        else:
            raise ConfigError(f"There is no option {name!r}.")
    return replace(EngineConfig(**parts), **engine)


def _field_names(config: Any) -> set[str]:
    return {f.name for f in fields(config)}
