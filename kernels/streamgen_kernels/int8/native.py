"""Functions whose bodies are LLVM's intermediate language: for what Python has no words.

LLVM turns a vector of 16 lanes into one, two or four registers of the processor at hand. Addresses are integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import cgutils
from numba.extending import intrinsic

from streamgen_kernels.int8.compiled_code import keep

LANES = 16

BYTE, INT, LONG, FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
BYTES, INTS, FLOATS = (ir.VectorType(kind, LANES) for kind in (BYTE, INT, FLOAT))
VECTOR_BYTES = 4 * LANES
"""Bytes of a vector of floats."""
HALVES_BYTES = 2 * LANES


def compiled(function: Any = None, *, kept: bool = False) -> Any:
    """Compile a function as all kernels are: without the interpreter's lock, and dividing as the processor does.

    Args: `kept` keeps the code, with that of all functions that it calls, on disk.
    """
    if function is None:
        return lambda function: compiled(function, kept=kept)
    return keep(function, _jit) if kept else _jit(function)


def _jit(function: Any, *, cache: bool = False) -> Any:
    return njit(nogil=True, error_model="numpy", boundscheck=False, cache=cache)(function)


def native(returns: Any, *parameters: Any) -> Callable[[Any], Any]:
    """Make `write(builder, *arguments)`, which writes a body and returns its result, a function for compiled code.

    Args: numba's types of the result and of each parameter. A function that returns nothing has the result `none`.
    """

    def decorate(write: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, _signature: Any, arguments: Any) -> Any:
            result = write(Builder(builder), *arguments)
            return context.get_dummy_value() if result is None else result

        def typed(_context: Any, *_arguments: Any) -> Any:
            return returns(*parameters), generate

        typed.__name__, typed.__doc__ = write.__name__, write.__doc__
        # numba wants to see each parameter: the first is its own there and the builder here.
        typed.__signature__ = signature(write)  # type: ignore[attr-defined]
        return intrinsic(typed)

    return decorate


class Builder:
    """llvmlite's builder with the words that kernels here need. `ir` is llvmlite's own."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.ir = builder

    # Addresses

    def at(self, address: Any, index: Any, stride: Any) -> Any:
        """The address of item `index`; both numbers may be constants."""
        if index == 0 and isinstance(index, int):
            return address
        index, stride = (LONG(value) if isinstance(value, int) else value for value in (index, stride))
        return self.ir.add(address, self.ir.mul(index, stride))

    def load(self, kind: Any, address: Any) -> Any:
        return self.ir.load(self.ir.inttoptr(address, kind.as_pointer()), align=1)

    def load_halves(self, address: Any) -> Any:
        """A vector of floats from 16 of type float16."""
        return self.ir.fpext(self.load(ir.VectorType(ir.HalfType(), LANES), address), FLOATS)

    def store(self, value: Any, address: Any) -> None:
        self.ir.store(value, self.ir.inttoptr(address, value.type.as_pointer()), align=1)

    def prefetch(self, address: Any) -> None:
        """Ask for the cache line that holds an address, which need not exist."""
        pointer = self.ir.inttoptr(address, BYTE.as_pointer())
        # To be read, to be kept in all caches, as data.
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, INT(0), INT(3), INT(1))

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        """Repeat what is written inside; yields the index."""
        with cgutils.for_range(self.ir, count) as loop:
            yield loop.index

    # Vectors

    def spread(self, scalar: Any) -> Any:
        """A vector with the scalar in every lane."""
        vector = ir.VectorType(scalar.type, LANES)
        first = self.ir.insert_element(vector(ir.Undefined), scalar, INT(0))
        return self.ir.shuffle_vector(first, vector(ir.Undefined), INTS([0] * LANES))

    def across(self, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """One number from all lanes: of the two halves, then of the halves of those, and so on."""
        half = LANES // 2
        while half:
            partner = self.ir.shuffle_vector(
                vector, vector.type(ir.Undefined), INTS([lane ^ half for lane in range(LANES)])
            )
            vector = combine(vector, partner)
            half //= 2
        return self.ir.extract_element(vector, INT(0))

    def call(self, name: str, returns: Any, *arguments: Any) -> Any:
        """One of LLVM's own functions, or one of the processor's or the system's."""
        kind = ir.FunctionType(returns, [argument.type for argument in arguments])
        return self.ir.call(cgutils.get_or_insert_function(self.ir.module, kind, name), arguments)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """The vector x · y + z, rounded once."""
        return self.call(f"llvm.fma.v{LANES}f32", FLOATS, x, y, z)

    def larger(self, x: Any, y: Any) -> Any:
        """The larger integer."""
        return self.ir.select(self.ir.icmp_signed(">", x, y), x, y)

    def variables(self, *values: Any) -> Variables:
        return Variables(self.ir, values)


class Variables:
    """Values that a loop changes. LLVM keeps them in registers."""

    def __init__(self, builder: ir.IRBuilder, values: tuple[Any, ...]) -> None:
        self._builder = builder
        self._slots = [cgutils.alloca_once(builder, value.type) for value in values]
        for index, value in enumerate(values):
            self[index] = value

    def __getitem__(self, index: int) -> Any:
        return self._builder.load(self._slots[index])

    def __setitem__(self, index: int, value: Any) -> None:
        self._builder.store(value, self._slots[index])


def floats(value: float) -> Any:
    return FLOATS([value] * LANES)


def ints(value: int) -> Any:
    return INTS([value] * LANES)
