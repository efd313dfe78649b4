"""Compile the kernels now, so that the first start of a server need not: `python -m streamgen_kernels.int8`."""

import sys

from streamgen_kernels.int8.target import refusal

if __name__ == "__main__":
    reason = refusal()
    if reason is not None:
        sys.exit(f"The 8-bit kernels are not compiled: {reason}.")
    from streamgen_kernels.int8.decoder import compile_kernels

    compile_kernels()
