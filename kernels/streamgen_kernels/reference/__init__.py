"""Plain torch in float32: what the operators mean. Never optimized; the other backends are tested against it."""

from streamgen_kernels.reference.paged_attention import paged_attention
from streamgen_kernels.reference.rms_norm import add_rms_norm, rms_norm
from streamgen_kernels.reference.rope import rope
from streamgen_kernels.reference.sampling import sample
from streamgen_kernels.reference.silu_mul import silu_mul
from streamgen_kernels.reference.store_kv import store_kv

__all__ = ["add_rms_norm", "paged_attention", "rms_norm", "rope", "sample", "silu_mul", "store_kv"]
