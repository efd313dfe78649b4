"""The table of operators that layers and runner are given: one contract, three backends.

- `triton`: the modules beside this one, one file an operator. Needs a GPU, or Triton's interpreter.
- `cpu`: production without a GPU.
- `reference`: plain torch in float32, the truth that the other two are tested against.

Letters in shapes: T tokens, R rows (requests of a step), H hidden size, Hq and Hk query and key-value heads, D head
size, V vocabulary. A tensor given to an operator has a last dimension of stride 1; leading ones may be strided.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

if TYPE_CHECKING:
    from torch import Tensor

Backend = Literal["triton", "cpu", "reference"]

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this choose the largest logit: dividing by less would overflow float32."""


class RmsNorm(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return x / sqrt(mean(x²) + eps) · weight over the last dimension (Zhang and Sennrich 2019), rounded once.

        x [T, H] or [T, heads, D], weight [H] or [D]; returns x's shape and dtype, contiguous.
        """


class AddRmsNorm(Protocol):
    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(rms_norm(s), s) with s = x + residual rounded to x's dtype. All [T, H]."""


class Rope(Protocol):
    def __call__(self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
        """Rotate q [T, Hq, D] and k [T, Hk, D] in place, pairing dimension i with i + D/2 (Su et al. 2021).

        positions [T] int64; cos_sin [max_position, D] float32, first half cosines, second half sines.
        """


class SiluMul(Protocol):
    def __call__(self, gate_up: Tensor) -> Tensor:
        """silu(gate) · up for gate_up [T, 2I] = [gate | up]; returns [T, I] (Shazeer 2020, SwiGLU)."""


class StoreKv(Protocol):
    def __call__(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """Write k, v [T, Hk, D] into the caches [num_blocks, block_size, Hk, D].

        slot_mapping [T] int64: block · block_size + offset; a negative slot is skipped.
        """


class PagedAttention(Protocol):
    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        query_start: Tensor,
        context_lens: Tensor,
        *,
        scale: float,
        max_query_len: int,
        max_context_len: int,
    ) -> Tensor:
        """Causal attention of each row's queries over the row's blocks; returns q's shape [T, Hq, D], contiguous.

        block_table [R, max_blocks], query_start [R + 1], context_lens [R], all int32. Row r's queries are the last
        query_start[r + 1] - query_start[r] of its context_lens[r] tokens; a row with none is padding. Query head h
        reads key-value head h // (Hq / Hk). The two maxima are upper bounds known to the host, not exact values.
        Output rows that belong to no request are left unwritten.
        """


class Sample(Protocol):
    def __call__(
        self,
        logits: Tensor,
        *,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        seed: Tensor,
        sibling: Tensor,
        position: Tensor,
        greedy_only: bool,
    ) -> Tensor:
        """One token id a row, int64 [R]; -1 for a row with NaN or +inf in its logits, or nothing but -inf.

        logits [R, V] float32 (-inf bans a token); temperature, top_p, min_p [R] float32; top_k, sibling [R] int32;
        seed, position [R] int64. A row's result is a function of that row alone. `greedy_only` says that every
        temperature is below GREEDY_TEMPERATURE. The exact rules are in `reference/sampling.py`.
        """


@dataclass(frozen=True)
class Operators:
    """The operators of one backend. `counters` counts the uses of each fast path, so that a test can prove it ran."""

    backend: Backend
    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    rope: Rope
    silu_mul: SiluMul
    store_kv: StoreKv
    paged_attention: PagedAttention
    sample: Sample
    counters: Counter[str]


_TRITON_MODULES = {
    "rms_norm": "rms_norm",
    "add_rms_norm": "rms_norm",
    "rope": "rope",
    "silu_mul": "silu_mul",
    "store_kv": "store_kv",
    "paged_attention": "paged_attention",
    "sample": "sampling",
}


def get_operators(name: Backend) -> Operators:
    """The operators of a backend, which is imported only now, with counters of their own.

    An operator that has fast paths takes a keyword `counters: Counter[str]`, which is bound here. Raises ValueError
    for an unknown name and ImportError where the backend cannot be imported (Triton outside of Linux).
    """
    if name not in get_args(Backend):
        raise ValueError(f"No operators called {name!r}; there are {', '.join(get_args(Backend))}.")
    counters: Counter[str] = Counter()
    bound = {operator: _bind(_find(name, operator), counters) for operator in _TRITON_MODULES}
    return Operators(backend=name, counters=counters, **bound)


def _find(backend: Backend, operator: str) -> Any:
    module = f"streamgen_kernels.{_TRITON_MODULES[operator] if backend == 'triton' else backend}"
    return getattr(import_module(module), operator)


def _bind(function: Any, counters: Counter[str]) -> Any:
    return partial(function, counters=counters) if "counters" in signature(function).parameters else function
