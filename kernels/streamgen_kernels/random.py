"""The random numbers of `reference/random.py`, word for word, inside a kernel."""

import triton
import triton.language as tl

from streamgen_kernels.reference import random

STRIPE = tl.constexpr(random.STRIPE)
LANES = tl.constexpr(random.LANES)
PURPOSE_SAMPLE = tl.constexpr(random.PURPOSE_SAMPLE)


@triton.jit
def lane_words(seed, sibling, position, purpose, lane):
    """Four random uint32 for each lane: one for each of the token ids that it serves. All but `lane` are scalars."""
    counter = lane.to(tl.uint32)
    zero = counter * 0
    position_word = zero + position.to(tl.uint32)
    sibling_word = zero + sibling.to(tl.uint32)
    return tl.philox(seed, counter, position_word, sibling_word, zero + purpose)


@triton.jit
def gumbel(word):
    u = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    series = u * (1.0 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4))))
    exponential = tl.where(u < 0.015625, series, -tl.log(tl.maximum(1.0 - u, 1.1641532182693481e-10)))
    return -tl.log(exponential)
