"""Reads a GGUF file's metadata and tensor table, and maps its tensor bytes, without copying them.

The layout is that of ggml's `docs/gguf.md`, versions 2 and 3, little-endian. The `gguf` package has a reader too, but
it keeps every array element as an object of its own: 3 s for the tokenizer of a small model, where this takes 0.1 s.
Nothing that the file says is believed before it was compared with the file's size, so a damaged or hostile file costs
an error and never a large allocation.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from streamgen.errors import ModelLoadError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4
DEFAULT_ALIGNMENT = 32

ByteArray: TypeAlias = npt.NDArray[np.uint8]

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_FLOAT32_TYPE = 6
_STRING_TYPE = 8
_ARRAY_TYPE = 9
_NUMBERS: dict[int, np.dtype[Any]] = {
    code: np.dtype(name)
    for code, name in {
        0: "u1",
        1: "i1",
        2: "<u2",
        3: "<i2",
        4: "<u4",
        5: "<i4",
        6: "<f4",
        7: "?",
        10: "<u8",
        11: "<i8",
        12: "<f8",
    }.items()
}
_SMALLEST_KEY_VALUE = 8 + 4 + 1
_SMALLEST_TENSOR_INFO = 8 + 4 + 4 + 8


@dataclass(frozen=True)
class GGUFTensor:
    """Where a tensor lies. `shape` is in numpy's order: rows first, the last dimension contiguous."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    num_bytes: int


class GGUFFile:
    """An open GGUF file: `metadata` by key, `tensors` by name.

    Numeric arrays are numpy arrays, string arrays lists of str. Raises ModelLoadError, naming the file, if it cannot
    be read or is not what it says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0
        try:
            with path.open("rb") as file:
                self._size = os.fstat(file.fileno()).st_size
                # A private writable map: torch and numpy share its pages without warning of read-only memory.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if self._size else None
        except OSError as error:
            raise ModelLoadError(f"Cannot open {path}: {error.strerror or error}.") from error
        except ValueError as error:
            raise ModelLoadError(f"Cannot map {path} into memory: {error}.") from error
        if self._map is None or self._map[:4] != MAGIC:
            raise self._error("it does not begin with GGUF's magic number")
        self._position = 4
        version = self._u32()
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                raise self._error("it is big-endian, which is not supported")
            raise self._error(f"its version is {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are supported")
        num_tensors = self._count("tensors", _SMALLEST_TENSOR_INFO)
        num_keys = self._count("metadata keys", _SMALLEST_KEY_VALUE)
        self.metadata = self._read_metadata(num_keys)
        self.tensors = self._read_tensor_table(num_tensors)

    def data(self, tensor: GGUFTensor) -> ByteArray:
        """The tensor's bytes as they lie in the file, [rows, bytes of a row]; no copy is made."""
        assert self._map is not None
        flat = np.frombuffer(self._map, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.offset)
        block, size = GGML_QUANT_SIZES[tensor.type]
        return flat.reshape(-1, tensor.shape[-1] // block * size)

    def close(self) -> None:
        """Let go of the file. Tensors that still share its memory keep it mapped until they are gone."""
        self._map = None

    def _error(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path} is not a GGUF file that can be used: {what}.")

    def _truncated(self, what: str) -> ModelLoadError:
        return self._error(f"it ends within its {what} (at byte {self._position} of {self._size})")

    def _u32(self) -> int:
        return self._unpack(_U32)

    def _u64(self) -> int:
        return self._unpack(_U64)

    def _unpack(self, layout: struct.Struct) -> int:
        assert self._map is not None
        if self._position + layout.size > self._size:
            raise self._truncated("header")
        (value,) = layout.unpack_from(self._map, self._position)
        self._position += layout.size
        return int(value)

    def _count(self, what: str, smallest: int) -> int:
        count = self._u64()
        if count > (self._size - self._position) // smallest:
            raise self._error(f"it claims {count} {what}, more than its {self._size} bytes can hold")
        return count

    def _strings(self, count: int) -> list[str]:
        assert self._map is not None
        data, position, size, unpack = self._map, self._position, self._size, _U64.unpack_from
        out = []
        for _ in range(count):
            if position + 8 > size:
                raise self._truncated("strings")
            (length,) = unpack(data, position)
            end = position + 8 + length
            if end > size:
                raise self._truncated("strings")
            out.append(data[position + 8 : end].decode("utf-8", "replace"))
            position = end
        self._position = position
        return out

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING_TYPE:
            return self._strings(1)[0]
        if kind == _ARRAY_TYPE:
            if depth == MAX_ARRAY_DEPTH:
                raise self._error("its arrays are nested too deep")
            return self._array(depth + 1)
        value = self._numbers(kind, 1)[0]
        # The shortest decimal of a float32 is what its author wrote: 1e-05, not 9.999999747378752e-06.
        return float(str(value)) if kind == _FLOAT32_TYPE else value.item()

    def _array(self, depth: int) -> Any:
        kind = self._u32()
        if kind == _STRING_TYPE:
            return self._strings(self._count("strings", 8))
        if kind == _ARRAY_TYPE:
            return [self._value(kind, depth) for _ in range(self._count("arrays", 12))]
        dtype = _NUMBERS.get(kind)
        return self._numbers(kind, self._count("numbers", dtype.itemsize if dtype else 1))

    def _numbers(self, kind: int, count: int) -> npt.NDArray[Any]:
        assert self._map is not None
        dtype = _NUMBERS.get(kind)
        if dtype is None:
            raise self._error(f"its metadata has values of an unknown type, {kind}")
        if self._position + count * dtype.itemsize > self._size:
            raise self._truncated("metadata")
        # Copied, so that metadata which outlives the file does not keep it mapped.
        values = np.frombuffer(self._map, dtype=dtype, count=count, offset=self._position).copy()
        self._position += values.nbytes
        return values

    def _read_metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self._strings(1)[0]
            if key in metadata:
                raise self._error(f"it has the key {key!r} twice")
            metadata[key] = self._value(self._u32())
        return metadata

    def _read_tensor_table(self, count: int) -> dict[str, GGUFTensor]:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 8 <= alignment <= 2**20 or alignment & (alignment - 1):
            raise self._error(f"its alignment is {alignment!r}")
        entries = [self._read_tensor_info() for _ in range(count)]
        start = -(-self._position // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, kind, offset in entries:
            block, size = GGML_QUANT_SIZES[kind]
            elements = 1
            for extent in shape:
                elements *= extent
            if shape[-1] % block:
                raise self._error(f"tensor {name} has rows of {shape[-1]} values, no multiple of {kind.name}'s {block}")
            num_bytes = elements // block * size
            if offset % alignment or start + offset + num_bytes > self._size:
                raise self._error(
                    f"tensor {name} should lie at byte {start + offset} with {num_bytes} bytes, "
                    f"but the file has {self._size} bytes; it may have been cut off"
                )
            if name in tensors:
                raise self._error(f"it has the tensor {name} twice")
            tensors[name] = GGUFTensor(name, shape, kind, start + offset, num_bytes)
        return tensors

    def _read_tensor_info(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._strings(1)[0]
        num_dimensions = self._u32()
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise self._error(f"tensor {name} has {num_dimensions} dimensions")
        extents = tuple(self._u64() for _ in range(num_dimensions))
        if 0 in extents:
            raise self._error(f"tensor {name} is empty")
        code = self._u32()
        try:
            kind = GGMLQuantizationType(code)
        except ValueError:
            raise self._error(f"tensor {name} has an unknown type, {code}") from None
        return name, extents[::-1], kind, self._u64()
