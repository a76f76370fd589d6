"""Values that no result may be mistaken for, by dtype: whoever reads them crashes or computes what everybody sees."""

from __future__ import annotations

import torch

NAN_BYTES = (0xFF, 0x7F)
"""Two bytes that, repeated, are NaN in every float of 16, 32 or 64 bits and a huge integer in every other dtype."""


def hostile_value(dtype: torch.dtype, pad: float = 0) -> float:
    """NaN for floats, a huge odd index for integers; for booleans the opposite of `pad`.

    Odd, since sums of a few must not wrap to 0; positive, since readers that skip a hole skip every negative one.
    """
    if dtype is torch.bool:
        return not pad
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    most = torch.iinfo(dtype).max
    return (most - most // 3) | 1
