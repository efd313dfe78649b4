"""Compile the kernels now, so that the first start of a server need not: `python -m streamgen_kernels.int8`."""

from streamgen_kernels.int8.decoder import compile_kernels

if __name__ == "__main__":
    compile_kernels()
