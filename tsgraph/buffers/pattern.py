"""The sources of a call, taken without a second look as long as they are like those of the call before.

Torch's own guards, which compiled code asks about its inputs, compare all of them in one call; then the bytes of what
is on the host are copied to a tray, and addresses noted of what is on the device. No tensor, view or list is made.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal

import attrs
import numpy as np
import torch

from tsgraph.buffers.contract import Field
from tsgraph.protocols.backend import Load, Stager

Alike = Callable[..., bool]
Place = Literal["dense", "ragged", "strided", "device"]

_move = ctypes.PYFUNCTYPE(None)(ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0)
"""`ctypes.memmove`, of C's own integers: to make them of Python's, and a result, would cost as much again."""

_WORD = 8


@attrs.frozen(eq=False)
class Take:
    """One source as a call passed it, for the lane of one field; the buffer has so many `groups` (0: none).

    `place`: on the host, dense; or dense with any number of columns, or with strides; or on the device. `lasting`:
    whether the next source like it can be taken without a look.
    """

    lane: int
    field: Field
    source: torch.Tensor
    place: Place
    groups: int
    lasting: bool


class Pattern:
    """What the sources of a call are like. `hidden`: says of each whether it lies on the device, if it does not show.

    What `takes` have for sources is looked at, and not kept.
    """

    def __init__(
        self, takes: Sequence[Take], load: Load, stager: Stager, hidden: Callable[[torch.Tensor], bool] | None
    ) -> None:
        order = ("dense", "device", "ragged", "strided")
        takes = sorted(takes, key=lambda take: order.index(take.place))
        self._names = len({take.field.name for take in takes})
        self._find = _finder(takes)
        self._ragged = [take.place == "ragged" for take in takes]
        self._looks = _Looks([take.source for take in takes], self._ragged)
        self._alike = self._before = _guards([take.source for take in takes], self._ragged)
        self._words, self._hidden = load.words, hidden
        self._dense = _Dense([take for take in takes if take.place == "dense"], load)
        self._addresses = [(at, load.address_of(take.lane)) for at, take in enumerate(takes) if take.place == "device"]
        self._loose = [
            (at, _Loose(take, load, stager)) for at, take in enumerate(takes) if take.place in ("ragged", "strided")
        ]
        self._classes = [at for at, take in enumerate(takes) if type(take.source) is not torch.Tensor]
        self._on_device = [take.place == "device" for take in takes]

    def take(self, sources: Mapping[str, Any], tray: int) -> bool:
        """Take `sources` if they are alike; whether they are. If not, what the tray and the load say means nothing."""
        found = self._found(sources)
        if found is None or not (self._alike(*found) or self._alike_in_this_mode(found)):
            return False
        if self._hidden is not None and not self._placed(found):
            return False
        for at in self._classes:
            found[at].is_neg()  # a class may have something to say before its memory is read
        self._dense.copy(found, tray)
        for at, word in self._addresses:
            self._words[word] = found[at].data_ptr()
        return all(loose.copy(found[at], tray) for at, loose in self._loose) if self._loose else True

    def _found(self, sources: Mapping[str, Any]) -> Sequence[Any] | None:
        try:
            return self._find(sources) if len(sources) == self._names else None
        except KeyError:
            return None

    def _alike_in_this_mode(self, found: Sequence[Any]) -> bool:
        """Torch's guards hold for the mode in which they were made: those of the mode before are kept, too."""
        self._alike, self._before = self._before, self._alike
        if self._alike(*found):
            return True
        if not self._looks.alike(found):
            return False
        self._alike = _guards(found, self._ragged)
        return True

    def _placed(self, found: Sequence[torch.Tensor]) -> bool:
        holds: Any = self._hidden
        return [holds(source) for source in found] == self._on_device


class _Arguments:
    """Arguments of `move`: three of C's integers, which are words of memory: where to, where from, how many bytes."""

    def __init__(self, count: int) -> None:
        memory: Any = np.zeros(3, np.int64)
        self.words: memoryview[int] = memoryview(memory)
        self.words[2] = count
        self.given = tuple(ctypes.c_int64.from_buffer(memory, at * _WORD) for at in range(3))


class _Dense:
    """Copies sources of one shape to a tray, one after the other."""

    def __init__(self, takes: Sequence[Take], load: Load) -> None:
        self._rooms = [load.rooms[take.lane] for take in takes]
        arguments = [_Arguments(take.source.nbytes) for take in takes]
        self._origins: list[Any] = [(each.words, *each.given[1:]) for each in arguments]
        self._targets: dict[int, list[ctypes.c_int64]] = {}

    def copy(self, found: Sequence[torch.Tensor], tray: int) -> None:
        """Copy the first of `found`, those that are dense, to where they belong in the tray."""
        targets = self._targets.get(tray)
        if targets is None:
            targets = self._targets[tray] = [ctypes.c_int64(tray + room) for room in self._rooms]
        move = _move
        for source, target, (words, origin, count) in zip(found, targets, self._origins, strict=False):
            words[1] = source.data_ptr()
            move(target, origin, count)


class _Loose:
    """Copies one source that may have fewer columns each time, or strides."""

    def __init__(self, take: Take, load: Load, stager: Stager) -> None:
        field, self._item = take.field, take.field.dtype.itemsize
        self._lane, self._room, self._load, self._stager = take.lane, load.rooms[take.lane], load, stager
        self._ragged = take.place == "ragged"
        self._columns = take.source.shape[-1] * self._item if field.shape else self._item
        self._widest = field.shape[-1] * self._item if field.shape else self._item
        self._bytes, arguments = take.source.nbytes, _Arguments(take.source.nbytes)
        self._words, self._given = arguments.words, arguments.given
        self._views: dict[tuple[int, int], torch.Tensor] = {}

    def copy(self, source: torch.Tensor, tray: int) -> bool:
        """Copy `source` to its place in the tray. False, with nothing copied, if it has too many columns."""
        if self._ragged:
            if source.nbytes != self._bytes and not self._tell(source):
                return False
            if source.is_contiguous():
                words = self._words
                words[0], words[1] = tray + self._room, source.data_ptr()
                _move(*self._given)
                return True
        self._view(source, tray).copy_(source.detach() if source.requires_grad else source)
        return True

    def _tell(self, source: torch.Tensor) -> bool:
        """It has other columns than the one before, which as many rows had. False for too many."""
        columns = source.shape[-1] * self._item
        if columns > self._widest:
            return False
        self._columns, self._bytes = columns, source.nbytes
        self._words[2] = source.nbytes
        self._load.bring(self._lane, columns)
        return True

    def _view(self, source: torch.Tensor, tray: int) -> torch.Tensor:
        view = self._views.get((tray, self._columns))
        if view is None:
            view = self._views[tray, self._columns] = self._stager.room(self._load, self._lane, source.shape)
        return view


# -- finding and comparing --------------------------------------------------------------------------------------------


def _finder(takes: Sequence[Take]) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """What finds the sources of `takes` among those of a call, in their order. It raises KeyError."""
    names = [take.field.name for take in takes]
    if len(names) > 1 and not any(take.groups for take in takes):
        return itemgetter(*names)
    places = [(take.field.name, take.field.group, take.groups) for take in takes]

    def find(sources: Mapping[str, Any]) -> list[Any]:
        found = []
        for name, group, groups in places:
            source = sources[name]
            if groups:
                if source.__class__ is not dict or len(source) != groups:
                    raise KeyError(name)
                source = source[group]
            found.append(source)
        return found

    return find


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
