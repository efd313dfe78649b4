"""Who runs next, and in which memory. Plain Python: no tensors, no event loop, no clock."""
