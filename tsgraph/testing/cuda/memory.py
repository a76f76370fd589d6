"""Bytes in use on the device: now, and the most there have been."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch

from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.memory import lease_of
from tsgraph.backends.emulated.residence import Place, Residence
from tsgraph.backends.emulated.streams import is_current_stream_capturing
from tsgraph.testing.cuda.eager_memory import EagerMemory
from tsgraph.testing.cuda.pools import Pools

Kind = Literal["allocated", "reserved"]


class MeteredResidence(Residence):
    """A registry that knows the most bytes that live device tensors ever had at once.

    Tensors die unnoticed, so it counts what was added since it last looked, and looks when that could be a new peak.
    """

    def __init__(self) -> None:
        super().__init__()
        self.eager = EagerMemory()
        self._most = self._last = self._added = 0

    def add(self, tensor: torch.Tensor, place: Place = "device") -> None:
        """Put the storage of `tensor` in `place`.

        Raises: CaptureUnsupported where CUDA would be asked for the memory, and a capture forbids it. Torch itself
        allows it on a stream that is captured.
        """
        if lease_of(tensor) is None and not is_current_stream_capturing():
            self._ask_for(tensor, place)
        super().add(tensor, place)
        if place == "device":
            self._added += tensor.untyped_storage().nbytes()
            if self._last + self._added > self._most:
                self.look()

    def forget(self, keys: Iterable[int]) -> None:
        """Nothing: what a failed recording leaves behind is the device's, as on a GPU."""

    def _ask_for(self, tensor: torch.Tensor, place: Place) -> None:
        if place == "device":
            self.eager.take(tensor.untyped_storage())
        elif self.place(tensor) != place:
            current.refuse_unsafe("an allocation of pinned memory", "pin it before the recording")

    def look(self) -> int:
        """The bytes of the live device tensors."""
        self._last, self._added = self.bytes, 0
        self._most = max(self._most, self._last)
        return self._last

    @property
    def most(self) -> int:
        """The most bytes since the last `restart`."""
        return self._most

    def restart(self) -> None:
        """The most is what there is now."""
        self._most = 0
        self._most = self.look()


class Meter:
    """Bytes of device tensors (allocated), and these with what pools hold beside them (reserved)."""

    def __init__(self, residence: MeteredResidence, pools: Pools) -> None:
        self._residence, self._pools = residence, pools
        self._most_spare = 0

    def now(self) -> dict[Kind, int]:
        """The bytes now."""
        allocated, spare = self._residence.look(), self._pools.spare
        self._most_spare = max(self._most_spare, spare)
        return {"allocated": allocated, "reserved": allocated + spare}

    def most(self) -> dict[Kind, int]:
        """The most allocated since `restart`; of what pools hold beside, the most at any question."""
        self.now()
        return {"allocated": self._residence.most, "reserved": self._residence.most + self._most_spare}

    def restart(self) -> None:
        """The most is what there is now."""
        self._residence.restart()
        self._most_spare = self._pools.spare
