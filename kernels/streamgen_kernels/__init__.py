"""Operators of the engine: Triton kernels, a production CPU backend, and plain references, behind one table.

Start at `operators.get_operators`. Importing this package imports neither torch nor triton.
"""
