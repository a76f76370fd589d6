"""Which words name the emulated device, and which the host."""

from __future__ import annotations

from typing import Literal

import torch

Place = Literal["device", "host"]

DEVICE = torch.device("cuda", 0)
HOST = torch.device("cpu")


def place_of(named: object) -> Place | None:
    """Where a `device=` points. None for no device, and for others, such as meta, which are left to torch.

    Raises: RuntimeError, as CUDA does, for a GPU that is not there.
    """
    if named is None or isinstance(named, bool):
        return None
    if isinstance(named, int):
        check_index(named)
        return "device"
    if not isinstance(named, str | torch.device):
        return None
    device = torch.device(named)
    if device.type == "cuda":
        check_index(device.index)
        return "device"
    return "host" if device.type == "cpu" else None


def check_index(index: object) -> None:
    """Raises: RuntimeError for a device other than the one there is; None is the current one, as -1 is."""
    if index in (None, -1, 0):
        return
    if isinstance(index, str | torch.device):
        check_device(index)
        return
    raise RuntimeError(f"CUDA error: invalid device ordinal {index}: one GPU is emulated, cuda:0")


def check_device(device: str | torch.device) -> None:
    """Raises: ValueError for what is no CUDA device, RuntimeError for one that is not there."""
    named = torch.device(device)
    if named.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {named}")
    check_index(named.index)
