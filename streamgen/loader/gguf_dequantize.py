"""GGUF tensor bytes → numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from streamgen.loader.gguf_file import ByteArray

_Q = GGMLQuantizationType
FLOAT_TYPES: dict[GGMLQuantizationType, np.dtype[Any]] = {
    _Q.F32: np.dtype("<f4"),
    _Q.F16: np.dtype("<f2"),
    _Q.BF16: np.dtype("<u2"),
}
BLOCK_TYPES = (_Q.Q4_0, _Q.Q4_1, _Q.Q5_0, _Q.Q5_1, _Q.Q8_0, _Q.Q4_K, _Q.Q5_K, _Q.Q6_K)
SUPPORTED_TYPES = (*FLOAT_TYPES, *BLOCK_TYPES)

VALUES_AT_A_TIME = 2**16
"""The gguf package works on 16 rows at a time, which is mostly overhead on a small model's short rows. Blocks do not
know of rows, so they are handed over in pieces of this many values, whose temporaries stay in the cache: three times
as fast for the default model."""


def to_numpy(data: ByteArray, shape: tuple[int, ...], kind: GGMLQuantizationType) -> npt.NDArray[Any]:
    """Bytes [rows, bytes of a row] → an array of `shape`.

    F32 and F16 share the memory of `data`, and so does BF16, whose bits come as uint16, as numpy has no such type.
    Block types become float32.
    """
    if kind in FLOAT_TYPES:
        return data.view(FLOAT_TYPES[kind]).reshape(shape)
    block, size = GGML_QUANT_SIZES[kind]
    blocks = data.reshape(-1, size)
    values = np.empty((len(blocks), block), dtype=np.float32)
    step = VALUES_AT_A_TIME // block
    for start in range(0, len(blocks), step):
        piece = blocks[start : start + step]
        values[start : start + step] = dequantize(piece.reshape(1, -1), kind).reshape(len(piece), block)
    return values.reshape(shape)
