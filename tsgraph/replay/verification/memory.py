"""What a verification keeps an eye on: every tensor it knows of, copied, so that what happened to it can be undone.

States, static buffers and the memory of recurrent state and sampler are put back before every run, and everything is as
it was in the end. Other collaborators' memory is left to them: a refresh brings it up to date before each step, and may
know on the host what it wrote last; where it is declared as state it is put back before eager steps, and in the end.
What the step holds and nobody declared is watched, and so are weights: no replay may write there. Weights are watched
by two sums per row.

A copy takes at most half of the device's free memory; beyond that copies are on the host, and sums tell what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs
import torch

from tsgraph.backends.emulated.memory import machine_bytes
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import State
from tsgraph.buffers.holders import Held, held_by, held_by_modules
from tsgraph.buffers.owners import storage_address
from tsgraph.buffers.state import COPY_SHARE, bits, changed_rows, row_sums
from tsgraph.errors import OutOfBudget
from tsgraph.protocols.backend import Backend, Pool
from tsgraph.replay.verification.mismatch import Mismatch, compare

Role = Literal["state", "metadata", "buffer", "recurrent", "sampler", "step", "constant"]
PUT_BACK: tuple[Role, ...] = ("state", "recurrent", "sampler", "step")
"""Roles of what is put back before each run; static buffers are dirtied on purpose in between."""

_OWN: Mapping[str, Role] = {"recurrent": "recurrent", "sampler": "sampler"}
"""Collaborators whose memory is part of the live state."""


@attrs.frozen(eq=False, kw_only=True)
class Holdings:
    """Where an engine's memory hangs: what a runtime was told of, and the step, which may hold more."""

    modules: Sequence[torch.nn.Module] = ()
    fixed: Mapping[str, torch.Tensor] = attrs.field(factory=dict)
    parts: Mapping[str, Any] = attrs.field(factory=dict)
    step: Any = None


@attrs.frozen(eq=False)
class Left:
    """What a run left in one tensor: the `rows` that are not as before it, and their words."""

    rows: list[int]
    values: torch.Tensor


# -- one tensor -------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Kept:
    """One tensor as integers, `now` [rows, …], and what it held `before`: a copy, its row `sums`, or both.

    `sinks`: rows that may hold anything. `scratch`: all of it may, between steps. `dtype`: what the integers are.
    """

    role: Role
    path: str
    dtype: torch.dtype
    now: torch.Tensor
    before: torch.Tensor | None
    sums: torch.Tensor | None
    sinks: frozenset[int] = frozenset()
    scratch: bool = False
    _undo: list[Left] = attrs.field(factory=list, init=False)

    def changed(self) -> list[int]:
        """The rows that are not as before."""
        if self.sums is not None:
            return changed_rows(row_sums(self.now), self.sums)
        return [] if self.before is None else changed_rows(self.now, self.before)

    def left(self) -> Left:
        """What it holds now that it did not hold before."""
        rows = self.changed()
        return Left(rows, _rows(self.now, rows))

    def restore(self) -> None:
        """Put back what it held before, where there is a copy."""
        if self.before is not None and (rows := self.changed()):
            _put(self.now, rows, _rows(self.before, rows).to(self.now.device))

    def rebase(self) -> None:
        """What it holds now is what it held before, from here on, until `undo`."""
        if self.before is not None and (rows := self.changed()):
            self._undo.append(Left(rows, _rows(self.before, rows)))
            self._set_before(rows, _rows(self.now, rows))

    def accept(self) -> None:
        """Take what it holds for right from here on, where it cannot be put back."""
        if self.before is None:
            self.sums = row_sums(self.now)

    def undo(self) -> None:
        """Put back what it held in the beginning."""
        while self._undo:
            first = self._undo.pop()
            self._set_before(first.rows, first.values)
        self.restore()

    def _set_before(self, rows: list[int], words: torch.Tensor) -> None:
        if self.before is not None:
            _put(self.before, rows, words.to(self.before.device))
        if self.sums is not None:
            _put(self.sums, rows, row_sums(words.to(self.sums.device)))

    def nudge(self) -> bool:
        """Flip the lowest bit of every float that is no sink's, now and before; twice is never. Whether that was done.

        So a write of what is there already becomes visible. Only a right reader of nothing but sinks notices nothing.
        """
        if self.before is None or self.sums is not None or not self.dtype.is_floating_point or self.scratch:
            return False
        for words in (self.now, self.before):
            flips = words.new_tensor(_lowest_bits(self.dtype.itemsize, words.dtype))
            held = _rows(words, sorted(self.sinks))
            words.bitwise_xor_(flips)
            _put(words, sorted(self.sinks), held)
        return True

    def mismatch(self, expected: Left, actual: Left, tolerance: float | None) -> Mismatch | None:
        """How two runs differ in what they left, sinks apart."""
        rows = sorted({*expected.rows, *actual.rows} - self.sinks)
        if not rows:
            return None
        one, other = (self._held(rows, left) for left in (expected, actual))
        return compare(one, other, tolerance=tolerance, rows=rows)

    def _held(self, rows: list[int], left: Left) -> torch.Tensor:
        """What `rows` held after a run, in the tensor's own dtype: what was there before, but for what was left."""
        held = _rows(self.now if self.before is None else self.before, rows).to(self.now.device)
        place = {row: at for at, row in enumerate(rows)}
        pairs = [(place[row], at) for at, row in enumerate(left.rows) if row in place]
        _put(held, [to for to, _ in pairs], _rows(left.values, [at for _, at in pairs]))
        return held.view(self.dtype)


def _rows(words: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """A copy of these rows."""
    return words.index_select(0, torch.tensor(rows, dtype=torch.int64, device=words.device))


def _put(words: torch.Tensor, rows: Sequence[int], values: torch.Tensor) -> None:
    words.index_copy_(0, torch.tensor(rows, dtype=torch.int64, device=words.device), values)


def _lowest_bits(itemsize: int, word: torch.dtype) -> int:
    """A word with the lowest bit of each of its elements set."""
    return sum(1 << (8 * at) for at in range(0, word.itemsize, itemsize))


# -- all of it --------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Memory:
    """Everything that is kept an eye on. `left_out`: what could not be, in words."""

    kept: tuple[Kept, ...]
    left_out: tuple[str, ...] = ()

    def of(self, *roles: Role) -> Iterator[Kept]:
        """What has one of these roles."""
        return (each for each in self.kept if each.role in roles)

    @torch.inference_mode()
    def restore(self, *roles: Role) -> None:
        """Put back what has one of these roles; none: all but constants, of which there is no copy."""
        for each in self.of(*roles or (*PUT_BACK, "metadata", "buffer")):
            each.restore()

    @torch.inference_mode()
    def rebase(self) -> None:
        """Take what there is now as what runs begin with."""
        for each in self.of(*PUT_BACK, "buffer"):
            each.rebase()

    @torch.inference_mode()
    def undo(self) -> None:
        """Make everything as it was when it was first looked at, weights apart."""
        for each in self.kept:
            each.undo()

    @torch.inference_mode()
    def left(self) -> dict[str, Left]:
        """What a run left in states and in the memory of recurrent state, by path."""
        return {each.path: each.left() for each in self.of("state", "recurrent")}

    @torch.inference_mode()
    def nudge(self) -> None:
        """See `Kept.nudge`: all states."""
        for each in self.of("state"):
            each.nudge()


def survey(
    backend: Backend, arena: Arena, states: Mapping[str, State], holdings: Holdings, pool: Pool | None = None
) -> Memory:
    """Look at everything that does not lie in `pool`, where replays write.

    Raises: OutOfBudget naming a state that fits nowhere: it could not be put back.
    """
    recorded = (lambda _: False) if pool is None else (lambda tensor: pool.holds(tensor.data_ptr()))
    surveyor = _Surveyor(backend, _by_nearest(holdings.parts), recorded)
    with torch.inference_mode():
        kept = [*surveyor.states(states), *surveyor.buffers(arena), *surveyor.held(holdings)]
    return Memory(tuple(kept), tuple(surveyor.left_out))


@attrs.define(eq=False)
class _Surveyor:
    """Looks at one tensor after the other. What lies in memory that was seen before is not looked at twice.

    `parts`: what each collaborator holds. `recorded`: whether a tensor lies in the pool, where replays write.
    """

    backend: Backend
    parts: Mapping[str, Sequence[Held]]
    recorded: Callable[[torch.Tensor], bool]
    left_out: list[str] = attrs.field(factory=list)
    _seen: set[int] = attrs.field(factory=set)
    _device: int = attrs.field(init=False)
    _host: int = attrs.field(factory=lambda: machine_bytes()[0] // COPY_SHARE)

    @_device.default
    def _device_bytes(self) -> int:
        return self.backend.memory().free // COPY_SHARE

    def states(self, states: Mapping[str, State]) -> Iterator[Kept]:
        others = [held for name, found in self.parts.items() if name not in _OWN for held in found]
        metadata = {storage_address(held.tensor) for held in others}
        for name, state in states.items():
            words = {"sinks": frozenset(state.sink or ()), "scratch": state.restore}
            role: Role = "metadata" if storage_address(state.tensor) in metadata else "state"
            yield from self._own(role, f"state {name}", state.tensor, **words)

    def buffers(self, arena: Arena) -> Iterator[Kept]:
        for label, tensor in arena.tensors().items():
            yield from self._own("buffer", f"buffer {label}", tensor)

    def _own(self, role: Role, path: str, tensor: torch.Tensor, **words: Any) -> Iterator[Kept]:
        """What must be put back: states may overlap, so each is kept for itself."""
        self._seen.add(storage_address(tensor))
        yield from self._kept(role, path, tensor, **words)

    def held(self, holdings: Holdings) -> Iterator[Kept]:
        """What modules, collaborators and the step hold, each storage once."""
        yield from self._watched("constant", held_by_modules(holdings.modules))
        for name, found in self.parts.items():
            yield from self._watched(_OWN.get(name), found)
        fixed = (Held("fixed", name, tensor, lambda: None) for name, tensor in holdings.fixed.items())
        yield from self._watched("constant", fixed)
        by_step = held_by(holdings.step, "step", "step", functions=True)
        yield from self._watched("step", (held for held in by_step if not self.recorded(held.tensor)))

    def _watched(self, role: Role | None, found: Iterable[Held]) -> Iterator[Kept]:
        """Of each storage that is new its largest tensor; with no role it is only noted that it was seen."""
        largest: dict[int, Held] = {}
        for held in found:
            address = storage_address(held.tensor)
            if address and address not in self._seen:
                largest[address] = max(largest.get(address, held), held, key=lambda each: each.tensor.nbytes)
        self._seen.update(largest)
        for held in largest.values():
            if role is not None:
                yield from self._kept(role, f"{held.kind} {held.name}", held.tensor)

    def _kept(self, role: Role, path: str, tensor: torch.Tensor, **words: Any) -> Iterator[Kept]:
        """The tensor, copied if it is to be put back; nothing for what cannot be read bit by bit.

        Raises: OutOfBudget for a state or buffer that fits nowhere.
        """
        if not _is_plain(tensor):
            self.left_out += (
                [f"{path} cannot be read bit by bit: what writes there is not seen"] if tensor.numel() else []
            )
            return
        now, dtype = bits(tensor if tensor.dim() else tensor.reshape(1)), tensor.dtype.to_real()
        place = "nowhere" if role == "constant" else self._place(tensor)
        if place != "nowhere":
            before = now.clone() if place == "beside" else now.to("cpu", copy=True)
            yield Kept(role, path, dtype, now, before, None if place == "beside" else row_sums(now), **words)
        elif role in ("state", "metadata", "buffer"):
            raise _too_large(path, tensor)
        else:
            yield Kept(role, path, dtype, now, None, row_sums(now), **words)
            self.left_out += [] if role == "constant" else [f"{path} is too large to copy: writes to it are not undone"]

    def _place(self, tensor: torch.Tensor) -> Literal["beside", "host", "nowhere"]:
        """Where a copy fits: beside the tensor, or on the host."""
        on_device = tensor.device == self.backend.device
        if on_device and tensor.nbytes <= self._device:
            self._device -= tensor.nbytes
            return "beside"
        if tensor.nbytes <= self._host:
            self._host -= tensor.nbytes
            return "host" if on_device else "beside"
        return "nowhere"


def _by_nearest(parts: Mapping[str, Any]) -> dict[str, list[Held]]:
    """What collaborators hold, each storage by the one that is nearest to it: they may know each other."""
    found = [(name, held) for name, part in parts.items() for held in held_by(part, "collaborator", name)]
    nearest: dict[int, str] = {}
    for name, held in sorted(found, key=lambda each: each[1].name.count(".")):
        nearest.setdefault(storage_address(held.tensor), name)
    return {name: [held for _, held in found if nearest[storage_address(held.tensor)] == name] for name in parts}


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bits can be read and put back: a strided tensor with memory, no two elements in one place."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not plain or tensor.layout is not torch.strided or not storage_address(tensor) or not tensor.numel():
        return False
    spread = all(step > 0 for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    return spread and tensor.element_size() in (1, 2, 4, 8)


def _too_large(path: str, tensor: torch.Tensor) -> OutOfBudget:
    return OutOfBudget(
        f"{path} of {tensor.nbytes} bytes has no room for a copy, on the device or the host: runs could not be undone",
        hint="verify an engine with a smaller cache: the slots are the same",
        state=path,
        bytes=tensor.nbytes,
    )
