from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamgen.config import Dtype
from streamgen.errors import ConfigError
from streamgen.quantization.numeric_mode import ModeName

BFLOAT16_SINCE = (8, 0)
"""First CUDA capability with bfloat16 arithmetic (Ampere)."""


@dataclass(frozen=True)
class DeviceCapability:
    """What a device can compute. `cuda` is its compute capability, or None for the CPU."""

    cuda: tuple[int, int] | None = None
    int8_is_fast: bool = False
    int8_refusal: str | None = None
    """Why int8 cannot be served, or None."""


@dataclass(frozen=True)
class ResolvedDtype:
    mode: ModeName | Literal["int8"]
    warning: str | None = None


def resolve_dtype(requested: Dtype, capability: DeviceCapability) -> ResolvedDtype:
    """The numeric mode for --dtype on a device. Raises ConfigError for one that was asked for and that it lacks."""
    if capability.cuda is None:
        if requested == "auto":
            if capability.int8_refusal is not None:
                why = f"Computing in float32, several times slower than int8: {capability.int8_refusal}."
                return ResolvedDtype("float32", why)
            return ResolvedDtype("int8" if capability.int8_is_fast else "float32")
        if requested == "int8" and capability.int8_refusal is not None:
            raise ConfigError(f"--dtype int8 cannot be served: {capability.int8_refusal}.")
        return ResolvedDtype(requested)
    if requested == "int8":
        raise ConfigError("--dtype int8 is a mode for CPUs; on a GPU use bfloat16 or float16.")
    if requested in ("auto", "bfloat16") and capability.cuda < BFLOAT16_SINCE:
        has = f"this GPU has compute capability {capability.cuda[0]}.{capability.cuda[1]}, and bfloat16 needs 8.0"
        if requested == "bfloat16":
            raise ConfigError(f"--dtype bfloat16 cannot be served: {has}. Use --dtype float16.")
        return ResolvedDtype("float16", f"Using float16: {has}. Values beyond its range become infinite.")
    return ResolvedDtype("bfloat16" if requested == "auto" else requested)
