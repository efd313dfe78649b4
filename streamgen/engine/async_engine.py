"""The engine in this process: admits requests, runs the step coroutine, and ends every stream in one way or another."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from streamgen.config import SchedulerConfig
from streamgen.engine.admission import Limits, ResolvedRequest, resolve
from streamgen.engine.client import EngineStats
from streamgen.engine.device_errors import described
from streamgen.engine.engine_loop import EngineLoop, StepFailedError
from streamgen.engine.gpu_thread import GpuThread
from streamgen.engine.logger import get_logger
from streamgen.engine.output_processor import OutputProcessor, SequenceOutput
from streamgen.engine.timings import EngineMetrics, StreamTimings
from streamgen.engine.token_queue import TokenQueue
from streamgen.engine.watchdog import FIRST_STEP_SECONDS, STEP_SECONDS, Watchdog
from streamgen.errors import (
    CorruptedRowError,
    DrainingError,
    EngineDeadError,
    EngineError,
    QueueFullError,
    SlowReaderError,
    StepError,
)
from streamgen.runtime.runner import Runner
from streamgen.scheduling.kv_cache_manager import KVCacheManager
from streamgen.scheduling.request import Request
from streamgen.scheduling.scheduler import Progress, Scheduler
from streamgen.types import Delta, FinishReason, SamplingParams, StepPlan, StepResult

if TYPE_CHECKING:
    from streamgen.text.tokenizer import Tokenizer

WATCH_SECONDS = 1.0
"""How often somebody looks whether the step in flight hangs."""
_SHOWN_REQUESTS = 16
"""Requests of a hung step that are named in the log."""

log = get_logger(__name__)


class AsyncEngine:
    """An EngineClient. Everything of it belongs to the event loop that `start` was called on."""

    def __init__(
        self,
        runner: Runner,
        limits: Limits,
        config: SchedulerConfig,
        *,
        tokenizer: Tokenizer | None = None,
        thread: GpuThread | None = None,
        steps_in_flight: int = 2,
        enable_prefix_caching: bool = True,
        stream_buffer_bytes: int = 2**20,
        step_timeout: float = STEP_SECONDS,
        first_step_timeout: float = FIRST_STEP_SECONDS,
        watch_interval: float = WATCH_SECONDS,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        thread: the GPU thread that built the runner; a new one by default.
        step_timeout: seconds after which a step that has not come back is logged and makes the engine unhealthy.
        first_step_timeout: the same for the first step, in which a device may still compile.
        watch_interval: seconds between two looks at the step in flight.
        """
        self.limits = limits.clamped()
        if self.limits != limits:
            log.warning("max_model_len_clamped", wanted=limits.max_model_len, kv_pool_holds=self.limits.max_model_len)
        self.max_model_len = self.limits.max_model_len
        self.tokenizer = tokenizer
        self.kv = KVCacheManager(limits.num_blocks, limits.block_size, enable_prefix_caching=enable_prefix_caching)
        self.scheduler = Scheduler(
            self.kv,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            policy=config.scheduling_policy,
        )
        self._config = config
        self._runner = runner
        self._thread = thread
        self._steps_in_flight = steps_in_flight
        self._buffer_bytes = stream_buffer_bytes
        self._watchdog = Watchdog(limit=step_timeout, first_limit=first_step_timeout)
        self._watch_interval = watch_interval
        self._seed = seed
        self._clock = clock
        self._outputs = OutputProcessor(tokenizer)
        self._streams: dict[int, list[Request]] = {}
        """The unfinished sequences of each open stream."""
        self._timings: dict[int, StreamTimings] = {}
        self.metrics: EngineMetrics | None = None
        """Whom to tell what happened, and how long it took."""
        self._next_id = 0
        self._loop: EngineLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._stopped = False
        self._dead: str | None = None
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self.on_death: Callable[[str], None] | None = None
        """Called once if the engine cannot go on: the process should end, to be started anew."""

    async def start(self) -> None:
        if self._thread is None:
            self._thread = GpuThread(asyncio.get_running_loop(), depth=self._steps_in_flight)
        self._thread.attach(self._runner)
        self._loop = EngineLoop(
            self.scheduler, self._thread, publish=self._publish, on_step=self._on_step, clock=self._clock
        )
        self._task = asyncio.create_task(self._run(self._loop), name="engine-loop")
        self._watch_task = asyncio.create_task(self._watch(self._loop), name="engine-watchdog")

    @property
    def ready(self) -> bool:
        return self._task is not None and self._dead is None and not self._stopped

    @property
    def healthy(self) -> bool:
        return self.failure is None

    @property
    def failure(self) -> str | None:
        if self._dead is not None:
            return self._dead
        oldest = None if self._loop is None else self._loop.oldest_step
        if oldest is None or not self._watchdog.hangs(oldest, self._clock()):
            return None
        return f"Step {oldest.plan.step} has not come back for {self._clock() - oldest.since:.0f} s."

    def add(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        tenant: str = "",
        correlation_id: str = "",
    ) -> TokenQueue:
        if self._dead is not None:
            raise EngineDeadError("The engine cannot take requests any more.")
        if self._stopped:
            raise DrainingError("The server is shutting down.")
        assert self._loop is not None, "start() comes first"
        resolved = self.validate(prompt_token_ids, params, priority)
        self._refuse_if_full(len(resolved.prompt) * params.n, params.n)
        stream_id = self._next_id
        queue = TokenQueue(
            stream_id,
            resolved.prompt,
            params.n,
            max_bytes=self._buffer_bytes,
            on_abort=lambda: self._abort(stream_id),
        )
        self._timings[stream_id] = StreamTimings(self._clock(), len(resolved.prompt), params.n, params.max_tokens)
        seed = params.seed if params.seed is not None else self._seed * 1_000_003 + stream_id
        leader: Request | None = None
        for index in range(params.n):
            request = resolved.request(self._next_id, index, seed, tenant=tenant, leader=leader)
            self._next_id += 1
            leader = leader or request
            self._streams.setdefault(stream_id, []).append(request)
            self._outputs.add(request, queue, index, params)
            self.scheduler.add(request)
        self._loop.wake()
        log.debug("request_added", request=stream_id, request_id=correlation_id, prompt_tokens=len(resolved.prompt))
        return queue

    def validate(self, prompt_token_ids: Sequence[int], params: SamplingParams, priority: int = 0) -> ResolvedRequest:
        """Check a request without queueing it. Raises InvalidRequestError or ContextLengthError."""
        return resolve(prompt_token_ids, params, self.limits, priority, self._config.scheduling_policy)

    async def generate(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, *, priority: int = 0, tenant: str = ""
    ) -> AsyncIterator[Delta]:
        """Deltas of one request as they come. Leaving the iteration early aborts the request."""
        stream = self.add(prompt_token_ids, params, priority=priority, tenant=tenant)
        try:
            while deltas := await stream.get():
                for delta in deltas:
                    yield delta
        finally:
            stream.abort()

    def stats(self) -> EngineStats:
        scheduler = self.scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=scheduler.num_waiting,
            kv_cache_usage=self.kv.pool.usage,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            preemptions=scheduler.num_preemptions,
            prefix_cache_queries=scheduler.num_prefix_queries,
            prefix_cache_hits=scheduler.num_prefix_hits,
            steps=0 if self._loop is None else self._loop.num_steps,
        )

    async def shutdown(self) -> None:
        """Stop at once, and give the device back. Streams that are open end by DrainingError. Idempotent."""
        self._stopped = True
        for task in (self._watch_task, self._task):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._fail_all(DrainingError("The server shut down before this request was finished."))
        if self._thread is not None:
            thread, self._thread = self._thread, None
            await asyncio.get_running_loop().run_in_executor(None, thread.close)

    async def _run(self, loop: EngineLoop) -> None:
        try:
            await loop.run()
        except StepFailedError as error:
            # The step's traceback has been logged with the step.
            self._die(str(error))
        except Exception as error:
            log.exception("engine_loop_failed")
            self._die(described(error))

    def _die(self, why: str) -> None:
        """Nothing will be computed any more: say so to every stream, and to whoever runs the process."""
        self._dead = why
        log.error("engine_died", reason=why, streams=len(self._streams))
        self._fail_all(EngineDeadError("The engine failed and cannot go on."))
        if self.on_death is not None:
            self.on_death(why)

    async def _watch(self, loop: EngineLoop) -> None:
        """Say once of a step that hangs what it holds. Nobody else would: it raises nothing, and nothing follows it."""
        while True:
            await asyncio.sleep(self._watch_interval)
            oldest, now = loop.oldest_step, self._clock()
            if oldest is not None and self._watchdog.is_news(oldest, now):
                plan = oldest.plan
                log.error(
                    "step_hangs",
                    step=plan.step,
                    seconds=round(now - oldest.since, 1),
                    rows=len(plan.rows),
                    tokens=plan.num_tokens,
                    requests=self._streams_of(plan),
                    waiting=self.scheduler.num_waiting,
                )

    def _streams_of(self, plan: StepPlan) -> list[int]:
        """The first of the streams that a step computes."""
        outputs = [self._outputs.get(row.request_id) for row in plan.rows]
        streams = dict.fromkeys(output.queue.request_id for output in outputs if output is not None)
        return list(streams)[:_SHOWN_REQUESTS]

    def _refuse_if_full(self, num_tokens: int, count: int) -> None:
        waiting = self.scheduler.num_waiting
        if waiting + count > self._config.max_num_queued_reqs + self._num_free_places():
            raise QueueFullError(f"{waiting} requests wait already; try again later.")
        queued_tokens = self.scheduler.num_waiting_tokens
        if queued_tokens and queued_tokens + num_tokens > self._config.max_num_queued_tokens:
            raise QueueFullError(f"{queued_tokens} prompt tokens wait already; try again later.")

    def _num_free_places(self) -> int:
        """Requests that the next step could admit: those do not count as waiting."""
        return self._config.max_num_seqs - len(self.scheduler.running)

    def _publish(self, progress: Sequence[Progress]) -> None:
        """Tell streams what a step brought. One that ended, failed or overflowed is closed here."""
        now = self._clock()
        gaps: list[float] = []
        for item in progress:
            output = self._outputs.get(item.request.request_id)
            if output is None:
                continue  # ended while this was waiting to be told
            try:
                self._tell(item, output, now, gaps)
            except Exception:
                # A detokenizer may stumble over one sequence's tokens; the others have nothing to do with it.
                log.exception("telling_failed", request=output.queue.request_id)
                self._fail(output.queue.request_id, EngineError("The server failed to put this answer into text."))
        if self.metrics is not None and gaps:
            self.metrics.gaps(gaps)

    def _tell(self, item: Progress, output: SequenceOutput, now: float, gaps: list[float]) -> None:
        request, queue = item.request, output.queue
        if item.finish_reason is FinishReason.ERROR:
            self._fail(queue.request_id, self._row_error(item))
            return
        timings = self._timings[queue.request_id]
        if output.last_token_at is not None:
            gaps.append(now - output.last_token_at)
        elif timings.first_token is None:
            timings.first_token = now
            self._prompt_tokens += timings.prompt_tokens - request.num_cached_tokens
            queue.num_cached_tokens = request.num_cached_tokens
            if self.metrics is not None:
                self.metrics.first_token(now - timings.arrival)
        output.last_token_at = timings.last_token = now
        timings.generation_tokens += len(item.token_ids)
        self._generation_tokens += len(item.token_ids)
        if (reason := output.push(item)) is not None:
            self._close_sequence(queue.request_id, request, reason)
        elif queue.overflowing:
            self._fail(queue.request_id, SlowReaderError("The reader fell too far behind; the request was ended."))

    def _on_step(self, plan: StepPlan, result: StepResult, launched_at: float) -> None:
        if self._watchdog.came_back(plan):
            log.warning("step_came_back", step=plan.step, seconds=round(self._clock() - launched_at, 1))
        if result.error is not None:
            return  # the executor has logged it
        for admission in plan.admitted:
            output = self._outputs.get(admission.request_id)
            timings = None if output is None else self._timings.get(output.queue.request_id)
            if timings is not None and timings.scheduled is None:
                timings.scheduled = launched_at
        num_sampled = len(result.token_ids)
        if self.metrics is not None:
            self.metrics.step(plan.num_tokens - num_sampled, num_sampled)

    def _row_error(self, item: Progress) -> EngineError:
        if item.corrupted:
            if self.metrics is not None:
                self.metrics.request_corrupted()
            return CorruptedRowError("The model computed logits that are not finite for this request.")
        return StepError("The step that computed this request failed.")

    def _close_sequence(self, stream_id: int, request: Request, reason: FinishReason) -> None:
        """Forget a sequence whose reader has been told of its end, and stop computing it."""
        self._outputs.pop(request.request_id)
        if not request.finished:
            self.scheduler.finish(request, reason)
        timings = self._timings[stream_id]
        timings.longest = max(timings.longest, request.num_output_tokens)
        sequences = self._streams[stream_id]
        sequences.remove(request)
        if not sequences:
            self._forget(stream_id, reason)

    def _forget(self, stream_id: int, reason: FinishReason) -> None:
        del self._streams[stream_id]
        timings = self._timings.pop(stream_id)
        if self.metrics is not None:
            timings.report(self.metrics, reason, self._clock())
        if self._loop is not None:
            self._loop.wake()

    def _abort(self, stream_id: int) -> None:
        for request in self._streams.get(stream_id, [])[:]:
            output = self._outputs.get(request.request_id)
            assert output is not None
            output.end(FinishReason.ABORT)
            self._close_sequence(stream_id, request, FinishReason.ABORT)

    def _fail_all(self, error: EngineError) -> None:
        """End all streams by an error, whatever state the scheduler is in: every one of their readers waits."""
        for stream_id in list(self._streams):
            try:
                self._fail(stream_id, error)
            except Exception:
                log.exception("ending_failed", request=stream_id)
                del self._streams[stream_id]

    def _fail(self, stream_id: int, error: EngineError) -> None:
        """End all of a stream by an error."""
        for request in self._streams.get(stream_id, [])[:]:
            output = self._outputs.get(request.request_id)
            assert output is not None
            output.queue.fail(error)
            self._close_sequence(stream_id, request, FinishReason.ERROR)
