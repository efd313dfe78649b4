"""A decoder's whole step on CPUs, compiled: 8-bit weights and activations, exact integer sums, one call a step.

`decoder` is the front. `rows`, `product` and `attention` are the work, `team` shares it among threads, and what
Python has no words for is written in LLVM's language: `vectors`, `product_tile` and `attention_tile`, with the words
of `native`. numba compiles it all once a machine and keeps the result on disk.
"""
