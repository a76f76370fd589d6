"""The sources of a call, taken without a second look as long as they are like those of the call before.

Torch's own guards, which compiled code asks about its inputs, compare all of them in one call; then the bytes of what
is on the host are copied to a tray, and addresses noted of what is on the device. No tensor, view or list is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from tsgraph.backends.ring import bytes_at
from tsgraph.buffers.contract import Field
from tsgraph.buffers.steady import Found, Place, Taking, maker
from tsgraph.protocols.backend import Load, Stager

Alike = Callable[..., bool]


@attrs.frozen(eq=False)
class Take:
    """One source as a call passed it, for the lane of one field; the buffer has so many `groups` (0: none).

    `lasting`: whether the next source like it can be taken without a look.
    """

    lane: int
    field: Field
    source: torch.Tensor
    place: Place
    groups: int
    lasting: bool

    def part(self, load: Load, stager: Stager) -> Any:
        """What the steady call needs of it: see `MOVES`."""
        if self.place == "device":
            return load.address_of(self.lane)
        return bytes_at(self.source.nbytes) if self.place == "dense" else _Loose(self, load, stager)

    def room(self) -> Callable[[int], Any]:
        """What gives its room in a tray, by the address: as much as it needs, at its widest."""
        shape = self.source.shape
        wide = (*shape[:-1], self.field.shape[-1]) if self.place == "ragged" else shape
        return bytes_at(math.prod(wide) * self.field.dtype.itemsize)


class Pattern:
    """What the sources of a call are like. `hidden`: says of each whether it lies on the device, if it does not show.

    What `takes` have for sources is looked at, and not kept.
    """

    def __init__(self, takes: Sequence[Take], hidden: Callable[[torch.Tensor], bool] | None) -> None:
        sources = [take.source for take in takes]
        self._ragged = [take.place == "ragged" for take in takes]
        self._looks = _Looks(sources, self._ragged)
        self.alike = self._before = _guards(sources, self._ragged)
        self._hidden, self._on_device = hidden, [take.place == "device" for take in takes]
        self._classes = [at for at, source in enumerate(sources) if type(source) is not torch.Tensor]

    @property
    def asks(self) -> bool:
        """Whether guards do not show all that matters."""
        return self._hidden is not None or bool(self._classes)

    def alike_in_this_mode(self, *found: Any) -> bool:
        """Torch's guards hold for the mode in which they were made: those of the mode before are kept, too."""
        self.alike, self._before = self._before, self.alike
        if self.alike(*found):
            return True
        if not self._looks.alike(found):
            return False
        self.alike = _guards(found, self._ragged)
        return True

    def asked(self, *found: torch.Tensor) -> bool:
        """Whether each is where it was, if that does not show."""
        holds = self._hidden
        if holds is not None and [holds(source) for source in found] != self._on_device:
            return False
        for at in self._classes:
            found[at].is_neg()  # a class may have something to say before its memory is read
        return True


def taking(takes: Sequence[Take], load: Load, stager: Stager, hidden: Callable[[torch.Tensor], bool] | None) -> Taking:
    """What takes the sources of a call that are like those of `takes`, which are in a tray then, or noted by address.

    It says whether they are alike. If not, what the tray and the load say means nothing.
    """
    pattern = Pattern(takes, hidden)
    found = tuple(Found(take.field.name, take.field.group, take.groups, take.place) for take in takes)
    parts = [take.part(load, stager) for take in takes]
    return maker(found, asks=pattern.asks)(pattern, stager.tray, _Rooms(takes, load), load.words, parts)


class _Rooms(dict[int, list[Any]]):
    """For the address of each tray, the memory in it of the sources that are packed there without strides."""

    def __init__(self, takes: Sequence[Take], load: Load) -> None:
        packed = [take for take in takes if take.place in ("dense", "ragged")]
        self._rooms = [(load.rooms[take.lane], take.room()) for take in packed]

    def __missing__(self, tray: int) -> list[Any]:
        rooms = self[tray] = [room_at(tray + start) for start, room_at in self._rooms]
        return rooms


class _Loose:
    """One source that may have fewer columns each time, or strides. `bytes`: how many the one before had."""

    def __init__(self, take: Take, load: Load, stager: Stager) -> None:
        field, self._item = take.field, take.field.dtype.itemsize
        self._lane, self._load, self._stager = take.lane, load, stager
        self._widest = field.shape[-1] * self._item if field.shape else self._item
        self._columns = take.source.shape[-1] * self._item if field.shape else self._item
        self.bytes = take.source.nbytes
        self.bytes_at = bytes_at(self.bytes)
        self._views: dict[tuple[int, int], torch.Tensor] = {}

    def tell(self, source: torch.Tensor) -> bool:
        """It has other columns than the one before, which as many rows had. False for too many."""
        columns = source.shape[-1] * self._item
        if columns > self._widest:
            return False
        self._columns, self.bytes = columns, source.nbytes
        self.bytes_at = bytes_at(self.bytes)
        self._load.bring(self._lane, columns)
        return True

    def copy(self, source: torch.Tensor, tray: int) -> None:
        """Copy `source`, which has strides, to its place in the tray."""
        self._view(source, tray).copy_(source.detach() if source.requires_grad else source)

    def _view(self, source: torch.Tensor, tray: int) -> torch.Tensor:
        view = self._views.get((tray, self._columns))
        if view is None:
            view = self._views[tray, self._columns] = self._stager.room(self._load, self._lane, source.shape)
        return view


# -- comparing ---------------------------------------------------------------------------------------------------------


def _guards(sources: Sequence[torch.Tensor], ragged: Sequence[bool]) -> Alike:
    """What compares others with `sources` in one call: kind, dtype, device, sizes, strides, and torch's own keys.

    Of those that are `ragged`, the last size is not compared, and no stride. It is false where torch is in another mode
    than now, and where a tensor comes twice: then others must look.
    """
    if len(set(map(id, sources))) < len(sources):
        return _never
    sizes: Any = [[*s.shape[:-1], None] if loose else list(s.shape) for s, loose in zip(sources, ragged, strict=True)]
    strides: Any = [[None] * s.dim() if loose else list(s.stride()) for s, loose in zip(sources, ragged, strict=True)]
    try:
        from torch._C._dynamo.guards import TensorGuards

        check: Alike = TensorGuards(*sources, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    except (ImportError, TypeError, RuntimeError):  # they are torch's own affair
        return _never
    return check


def _never(*_found: Any) -> bool:
    return False


class _Looks:
    """Compares with `sources` attribute by attribute: whatever their bytes depend on."""

    def __init__(self, sources: Sequence[torch.Tensor], ragged: Sequence[bool]) -> None:
        self._ragged = ragged
        self._looks = [_look(source, ragged=loose) for source, loose in zip(sources, ragged, strict=True)]

    def alike(self, found: Sequence[Any]) -> bool:
        """Whether each of `found` is like its source."""
        each = zip(found, self._ragged, self._looks, strict=True)
        return all(isinstance(source, torch.Tensor) and _look(source, ragged=r) == look for source, r, look in each)


def _look(source: torch.Tensor, *, ragged: bool) -> tuple[Any, ...]:
    if source.layout is not torch.strided:
        return (source.layout,)
    sizes = (source.shape[:-1], source.dim()) if ragged else (source.shape, source.stride())
    return (type(source), source.dtype, source.device, sizes, source.is_neg(), source.is_conj())
