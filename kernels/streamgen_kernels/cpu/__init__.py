"""Production operators for a machine without a GPU: few calls of torch, each of which does much.

At one token a step a call costs as much as the arithmetic in it, so the operators are written for the fewest calls.
A row's result never depends on the other rows of the step: see `paged_attention` for what that takes.
"""

from streamgen_kernels.cpu.paged_attention import paged_attention
from streamgen_kernels.cpu.rms_norm import add_rms_norm, rms_norm
from streamgen_kernels.cpu.rope import rope
from streamgen_kernels.cpu.sampling import sample
from streamgen_kernels.cpu.silu_mul import silu_mul
from streamgen_kernels.cpu.store_kv import store_kv

__all__ = ["add_rms_norm", "paged_attention", "rms_norm", "rope", "sample", "silu_mul", "store_kv"]
