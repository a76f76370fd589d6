"""A Triton kernel, in a file of its own: Triton reads its source, and a machine without Triton need not load it."""

import triton
import triton.language as tl


@triton.jit
def add_number(x, n, number, block: tl.constexpr):
    """Adds `number` to the `n` elements at x."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(x + at, tl.load(x + at, mask=at < n) + number, mask=at < n)
