from __future__ import annotations

from torch import Tensor

from streamgen.layers.context import ForwardContext
from streamgen_kernels.operators import Operators


class Attention:
    """Store a layer's new keys and values, then attend over all of the row's."""

    def __init__(self, head_dim: int, *, operators: Operators, group: int, layer: int) -> None:
        self._scale = head_dim**-0.5
        self._operators = operators
        self._group = group
        self._layer = layer

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, context: ForwardContext) -> Tensor:
        """From q [T, heads, D], k and v [T, kv_heads, D], the first two rotated: [T, heads, D]."""
        group = context.groups[self._group]
        kv = group.layers[self._layer]
        self._operators.store_kv(k, v, kv.keys, kv.values, group.slot_mapping)
        return self._operators.paged_attention(
            q,
            kv.keys,
            kv.values,
            group.block_table,
            context.query_start,
            context.context_lens,
            scale=self._scale,
            max_query_len=context.max_query_len,
            max_context_len=context.max_context_len,
        )
