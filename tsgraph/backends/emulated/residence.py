"""Which storages live on the emulated device, and which are pinned host memory.

Keyed by storage, so that every view shares it and a tensor moved by `set_` or `.data =` takes that of its new memory.
References are weak: they keep no memory alive, only the address of a dead storage from being used again unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import attrs
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tsgraph.backends.emulated.aliases import is_dropped
from tsgraph.backends.emulated.dispatcher import storage_key

Place = Literal["device", "pinned"]
_FIRST_SWEEP = 256


@attrs.frozen
class _Entry:
    reference: StorageWeakRef
    place: Place
    bytes: int


class Residence:
    """The registry. A storage that is not in it is ordinary (pageable) host memory."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._sweep_at = _FIRST_SWEEP

    def add(self, tensor: torch.Tensor, place: Place = "device") -> None:
        """Put the storage of `tensor` in `place`."""
        storage = tensor.untyped_storage()
        self._entries[storage_key(storage)] = _Entry(StorageWeakRef(storage), place, storage.nbytes())
        if len(self._entries) > self._sweep_at:
            self._sweep()

    def forget(self, keys: Iterable[int]) -> None:
        """Make the live storages of these keys ordinary host memory again."""
        for key in keys:
            self._entries.pop(key, None)

    def place(self, tensor: torch.Tensor) -> Place | None:
        """Where the storage of `tensor` was put; None for ordinary host memory and for tensors without a storage."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse and opaque layouts
            return None
        entry = self._entries.get(storage_key(storage))
        return None if entry is None else entry.place

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` lives on the device."""
        return self.place(tensor) == "device"

    @property
    def bytes(self) -> int:
        """Bytes of the device storages that the user has."""
        self._sweep()
        device = {key: entry.bytes for key, entry in list(self._entries.items()) if entry.place == "device"}
        return sum(count for key, count in device.items() if not is_dropped(key))

    def _sweep(self) -> None:
        # An entry keeps its key from being used again, so what other threads add meanwhile is not lost.
        for key in [key for key, entry in list(self._entries.items()) if entry.reference.expired()]:
            self._entries.pop(key, None)
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._entries))
