"""Which of the processor's instructions the kernels are compiled for."""

from __future__ import annotations

import platform
from typing import Literal

from llvmlite import binding
from numba.core import config

IntegerDot = Literal["avx512vnni", "avxvnni", "avx2", "plain"]

IS_X86 = platform.machine().lower() in {"x86_64", "amd64"}


def _integer_dot() -> IntegerDot:
    """The best way that this processor, or the one that NUMBA_CPU_FEATURES describes, has to add products of bytes."""
    if not IS_X86:
        return "plain"
    if config.CPU_FEATURES is None:
        has = binding.get_host_cpu_features()
    else:
        has = {flag[1:]: flag[0] == "+" for flag in config.CPU_FEATURES.split(",") if flag}
    if has.get("avx512vnni") and has.get("avx512f"):
        return "avx512vnni"
    if has.get("avxvnni"):
        return "avxvnni"
    return "avx2" if has.get("avx2") else "plain"


INTEGER_DOT = _integer_dot()
