"""Which of the processor's instructions the kernels are compiled for."""

from __future__ import annotations

import platform
from typing import Literal

from llvmlite import binding
from numba.core import config

IntegerDot = Literal["avx512vnni", "avxvnni", "avx2", "plain"]

IS_X86 = platform.machine().lower() in {"x86_64", "amd64"}


def _features() -> dict[str, bool]:
    """Of this processor, or of the one that NUMBA_CPU_FEATURES describes."""
    if config.CPU_FEATURES is None:
        return dict(binding.get_host_cpu_features())
    return {flag[1:]: flag[0] == "+" for flag in config.CPU_FEATURES.split(",") if flag}


def refusal() -> str | None:
    """Why the kernels cannot run here, or None."""
    if IS_X86 and not _features().get("f16c"):
        # LLVM would call functions of a C library that nobody links.
        return "the processor has no instructions for float16 (F16C)"
    return None


def _integer_dot() -> IntegerDot:
    """The best way that the processor has to add products of bytes."""
    if not IS_X86:
        return "plain"
    has = _features()
    if has.get("avx512vnni") and has.get("avx512f"):
        return "avx512vnni"
    if has.get("avxvnni"):
        return "avxvnni"
    return "avx2" if has.get("avx2") else "plain"


INTEGER_DOT = _integer_dot()
