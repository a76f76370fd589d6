"""Live state around a warm-up, early or late: what a warm-up may not keep is undone, or found and refused.

A warm-up is a real run on the engine's own tensors (faults J1, J3, J4). States declared `restore=True` are copied
before and put back after. States with sink rows must be bitwise the same in every other row afterwards, and the sinks
get back what they held too, so that no dummy batch leaves a NaN behind in a row that masked reads touch (fault B6).

Copies take at most half of the free memory, in the order of declaration. A sink state beyond that is watched by two
64-bit sums per row: they tell which rows changed, but cannot undo it, and the error says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import attrs
import torch

from tsgraph.buffers.contract import State
from tsgraph.errors import ContractViolation, OutOfBudget
from tsgraph.protocols.backend import Backend

COPY_SHARE = 2
"""Copies of states take at most one part in so many of the device's free memory."""

CHUNK_WORDS = 1 << 22
"""How many integers a comparison or a sum takes at a time: temporaries stay below 32 MiB each."""

SHOWN_ROWS = 8
"""How many of the touched rows an error lists."""

_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_SEEDS = (0x1F83D9AB, 0x5BE0CD19)


class Watch(Protocol):
    """One state during a block."""

    def restore(self) -> None:
        """Undo what can be undone."""

    def violation(self) -> ContractViolation | None:
        """What the block did that it may not, judged before `restore`."""


@attrs.frozen
class StateGuard:
    """Protects `states`, by name, whose memory is on `backend`. Overlapping states are judged one by one."""

    states: Mapping[str, State]
    backend: Backend

    @contextmanager
    def protected(self) -> Iterator[None]:
        """Run a warm-up: on every exit states are as before, but for rows that could only be watched.

        Raises: ContractViolation naming the state and the first rows touched, when a row that is no sink was written;
        OutOfBudget, before the block, where a state to be restored cannot be copied. An exception of the block itself
        goes on, and carries such a violation as a note.
        """
        watches = self._watch()
        try:
            yield
        except BaseException as error:
            self._settle_beside(error, watches)
            raise
        self._settle(watches)

    def _watch(self) -> list[Watch]:
        if not self.states:
            return []
        with torch.inference_mode():  # ordinary and inference tensors alike may be written in it (fault R3)
            return list(self._watches(self.backend.memory().free // COPY_SHARE))

    def _watches(self, budget: int) -> Iterator[Watch]:
        """Copies first: undoing them leaves less for sums to find where states overlap."""
        sums = []
        for name, state in sorted(self.states.items(), key=lambda item: not item[1].restore):
            size = state.tensor.numel() * state.tensor.element_size()
            if size <= budget:
                budget -= size
                yield Copied.of(name, state)
            elif state.restore:
                raise _too_large(name, size, budget)
            else:
                sums.append(Summed.of(name, state))
        yield from sums

    def _settle(self, watches: Iterable[Watch]) -> None:
        self.backend.synchronize()
        found = []
        with torch.inference_mode():
            for watch in watches:
                found.append(watch.violation())
                watch.restore()
        for violation in filter(None, found):
            raise violation

    def _settle_beside(self, error: BaseException, watches: Iterable[Watch]) -> None:
        """Settle without hiding `error`: a device that is dead cannot be restored either."""
        try:
            self._settle(watches)
        except Exception as second:  # noqa: BLE001 - whatever it is, the first error is the one to tell
            error.add_note(f"beside it, when states were restored: {second}")


def _too_large(name: str, size: int, budget: int) -> OutOfBudget:
    return OutOfBudget(
        f"state {name!r} is to be restored after warm-ups, but {size} bytes do not fit in the {budget} left for copies",
        hint="capture while more memory is free, or declare sink rows instead of restore=True",
        state=name,
        bytes=size,
        budget=budget,
    )


@attrs.define(eq=False)
class Copied:
    """A state and its exact copy."""

    name: str
    state: State
    now: torch.Tensor
    before: torch.Tensor
    changed: list[int] | None = None

    @classmethod
    def of(cls, name: str, state: State) -> Copied:
        """Copy `state` now."""
        now = bits(state.tensor)
        return cls(name, state, now, now.clone())

    def restore(self) -> None:
        """Put every bit back: in the rows that changed, where one has looked."""
        if self.changed is None:
            self.now.copy_(self.before)
        elif self.changed:
            rows = torch.tensor(self.changed, device=self.now.device)
            self.now.index_copy_(0, rows, self.before.index_select(0, rows))

    def violation(self) -> ContractViolation | None:
        """The rows that are not as in the copy, unless all of the state is restored anyway."""
        if self.state.restore:
            return None
        self.changed = changed_rows(self.now, self.before)
        return _violation(self.name, self.state, self.changed, "they are restored")


@attrs.define(eq=False)
class Summed:
    """A state too large to copy: two sums of each row, and a copy of the sinks alone."""

    name: str
    state: State
    now: torch.Tensor
    before: torch.Tensor
    sinks: torch.Tensor
    held: torch.Tensor

    @classmethod
    def of(cls, name: str, state: State) -> Summed:
        """Sum up `state` now."""
        now = bits(state.tensor)
        sinks = torch.tensor(state.sink or (), dtype=torch.int64, device=now.device)
        return cls(name, state, now, row_sums(now), sinks, now.index_select(0, sinks))

    def restore(self) -> None:
        """Put the sinks back: nothing else can be."""
        self.now.index_copy_(0, self.sinks, self.held)

    def violation(self) -> ContractViolation | None:
        """The rows whose sums changed."""
        fate = "they cannot be restored, for the state is too large to copy into the memory that is free"
        return _violation(self.name, self.state, changed_rows(row_sums(self.now), self.before), fate)


def _violation(name: str, state: State, changed: list[int], fate: str) -> ContractViolation | None:
    sinks = state.sink or ()
    touched = sorted(set(changed).difference(sinks))
    if not touched:
        return None
    more = f" and {len(touched) - SHOWN_ROWS} more" if len(touched) > SHOWN_ROWS else ""
    rows = ", ".join(map(str, touched[:SHOWN_ROWS]))
    allowed = f"sink rows {', '.join(map(str, sinks))}" if sinks else "no row"
    return ContractViolation(
        "State",
        name,
        f"a warm-up that writes {allowed} only",
        f"writes to rows {rows}{more}; {fate}",
        hint="let pad and dummy rows point at a sink (a pad, a warm-up value), or declare the state restore=True",
    )


# -- bits -------------------------------------------------------------------------------------------------------------


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, rows kept apart, as wide as it goes: NaN compares equal to itself."""
    plain = tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    for word in _WORDS:
        if word.itemsize == plain.element_size() or (plain.dim() > 1 and _packs(plain, word.itemsize)):
            return plain.view(word)
    raise ContractViolation("State", "tensor", "a dtype of 1, 2, 4 or 8 bytes", str(tensor.dtype))


def _packs(tensor: torch.Tensor, itemsize: int) -> bool:
    """Whether the last dimension can be read in words of `itemsize` bytes: dense, and aligned in every other one."""
    per_word = itemsize // tensor.element_size()
    steps = (tensor.shape[-1], tensor.storage_offset(), *tensor.stride()[:-1])
    return per_word > 1 and tensor.stride(-1) == 1 and all(step % per_word == 0 for step in steps)


def changed_rows(now: torch.Tensor, before: torch.Tensor) -> list[int]:
    """The rows in which two tensors of integers, of the same shape, differ."""
    differs = torch.zeros(now.shape[:1], dtype=torch.bool, device=now.device)
    for start, stop in _row_chunks(now):
        differs[start:stop] = now[start:stop].ne(before[start:stop]).reshape(stop - start, -1).any(1)
    rows: list[int] = differs.nonzero().flatten().tolist()  # one wait for the device, however many chunks there are
    return rows


def row_sums(words: torch.Tensor) -> torch.Tensor:
    """Two sums of each row's integers modulo 2^64, `[rows, 2]`, weighted by position with odd pseudo-random numbers.

    One changed integer always changes both (odd numbers are invertible); other changes escape one time in 2^128.
    """
    sums = torch.zeros((words.shape[0], len(_SEEDS)), dtype=torch.int64, device=words.device)
    width = words[0].numel() if len(words) else 0
    for first in range(0, width, CHUNK_WORDS):
        last = min(first + CHUNK_WORDS, width)
        weights = [_weights(first, last, seed, words.device) for seed in _SEEDS]
        for start, stop in _row_chunks(words):
            part = words[start:stop].reshape(stop - start, -1)[:, first:last].to(torch.int64)
            for column, weight in enumerate(weights):
                sums[start:stop, column] += (part * weight).sum(1)
    return sums


def _row_chunks(words: torch.Tensor) -> Iterator[tuple[int, int]]:
    rows = words.shape[0] if words.numel() else 0
    step = max(1, CHUNK_WORDS * max(rows, 1) // max(words.numel(), 1))
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def _weights(first: int, last: int, seed: int, device: torch.device) -> torch.Tensor:
    """An odd number for each position: the mixing of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = torch.arange(first, last, dtype=torch.int64, device=device) * -0x61C8864680B583EB + seed
    mixed = (mixed ^ (mixed >> 30)) * -0x40A7B892E31B1A47
    mixed = (mixed ^ (mixed >> 27)) * -0x6B2FB644ECCEEE15
    return (mixed ^ (mixed >> 31)) | 1
