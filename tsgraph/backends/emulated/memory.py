"""Graph pools of the emulated device, what uninitialised memory holds, and the bytes of the machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from tsgraph.backends.emulated.dispatcher import unseen_by_operators


class EmulatedPool:
    """The memory that recordings of one runtime take. Each block is its own for now: none is used twice."""

    def __init__(self) -> None:
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes that live recordings of this pool hold."""
        return self._bytes

    def allocate(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A poisoned tensor of exactly `size` and `stride`."""
        with unseen_by_operators():
            tensor = torch.empty_strided(size, stride, dtype=dtype, device="cpu")
            poison(tensor)
        self._bytes += tensor.untyped_storage().nbytes()
        return tensor

    def give_back(self, count: int) -> None:
        """Take back `count` bytes."""
        self._bytes -= count


def poison(tensor: torch.Tensor) -> None:
    """Fill `tensor` with what no result may be mistaken for: NaN, an integer out of any range, alternating booleans.

    On a GPU such memory holds whatever was there before: a recording that reads it is wrong, so it must be seen.
    """
    if tensor.dtype is torch.bool:
        _alternate(tensor)
    elif tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    else:
        limits = torch.iinfo(tensor.dtype)
        tensor.fill_(limits.min or limits.max)


def _alternate(tensor: torch.Tensor) -> None:
    flat = torch.empty(0, dtype=torch.bool, device="cpu").set_(tensor.untyped_storage())
    flat[::2] = True
    flat[1::2] = False


def machine_bytes() -> tuple[int, int]:
    """Free and total bytes of this machine's memory; all of it counts as free where the system does not say."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    free = page * os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else total
    return free, total
