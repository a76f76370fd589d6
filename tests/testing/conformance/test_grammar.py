"""`check_grammar`: a right queue passes, and each planted fault is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

from tests.testing.conformance.planting import assert_all_planted, assert_found
from tsgraph.buffers.contract import Rows
from tsgraph.keys import Batch
from tsgraph.testing.conformance import GRAMMAR, Ground, check_grammar
from tsgraph.testing.fakes import FakeGrammar

INPUTS = {"seq_lens": Rows(torch.int32, pad=1)}


@attrs.define(eq=False)
class Queue:
    """A right queue: entries are their own tickets."""

    mask: torch.Tensor = attrs.field(factory=lambda: torch.full((4, 2), -1, dtype=torch.int32))
    entries: list[object] = attrs.field(factory=list)
    previous: object = None
    current: object = None

    def bind(self, batch: Batch) -> torch.Tensor | None:
        return self.mask[: batch.rows]

    def push(self, rows: int, *, who: str = "", ahead: bool = False) -> Any:
        ticket = object()
        self.entries.insert(0 if ahead else len(self.entries), ticket)
        return ticket

    def consume(self) -> None:
        self.previous, self.current = self.current, self.entries.pop(0)

    def claim(self, ticket: Any) -> None:
        if ticket in self.entries:
            self.entries.remove(ticket)

    def abandon(self, ticket: Any) -> None:
        if ticket in self.entries:
            self.entries.remove(ticket)

    def cancel(self, ticket: Any) -> None:
        if ticket in self.entries:
            self.entries.remove(ticket)

    def reset(self) -> None:
        self.previous = self.current = None


class PushesOnePerRow(Queue):
    def push(self, rows: int, *, who: str = "", ahead: bool = False) -> Any:
        return [super(PushesOnePerRow, self).push(1, ahead=ahead) for _ in range(rows)][-1]


class PushesBehind(Queue):
    def push(self, rows: int, *, who: str = "", ahead: bool = False) -> Any:
        return super().push(rows)


class ForgetsClaims(Queue):
    def claim(self, ticket: Any) -> None:
        pass


class AbandonsTheOldest(Queue):
    def abandon(self, ticket: Any) -> None:
        self.entries.pop(0)


class ConsumesTheNewest(Queue):
    def consume(self) -> None:
        self.entries.pop()


class CancelsTheNewest(Queue):
    def cancel(self, ticket: Any) -> None:
        if ticket in self.entries:
            self.entries.pop()


class CancelsTheOldest(Queue):
    def cancel(self, ticket: Any) -> None:
        if ticket not in self.entries and self.entries and ticket is self.current:
            self.entries.pop(0)
        super().cancel(ticket)


class CountsCancels(Queue):
    def cancel(self, ticket: Any) -> None:
        if self.previous is ticket:
            raise LookupError("cancelled twice")
        self.previous = ticket
        super().cancel(ticket)


class KnowsAllTickets(Queue):
    def cancel(self, ticket: Any) -> None:
        if ticket is None:
            raise LookupError("no ticket")
        super().cancel(ticket)


class MakesMasks(Queue):
    def bind(self, batch: Batch) -> torch.Tensor | None:
        return self.mask[: batch.rows].clone()


class ResetMakesMasks(Queue):
    def reset(self) -> None:
        super().reset()
        self.mask = self.mask.clone()


class BindPushes(Queue):
    def bind(self, batch: Batch) -> torch.Tensor | None:
        self.push(batch.rows)
        return super().bind(batch)


class Remembers(Queue):
    def reset(self) -> None:
        self.current = None


class ResetDrops(Queue):
    def reset(self) -> None:
        super().reset()
        self.entries.clear()


PLANTED: dict[str, Any] = {
    "push_adds_one": PushesOnePerRow,
    "push_is_first_in_first_out": ConsumesTheNewest,
    "push_goes_ahead": PushesBehind,
    "claim_outlasts_cancel": ForgetsClaims,
    "abandon_takes_its_own": AbandonsTheOldest,
    "cancel_takes_its_own": CancelsTheNewest,
    "cancel_ignores_consumed": CancelsTheOldest,
    "cancel_ignores_cancelled": CountsCancels,
    "cancel_ignores_unknown": KnowsAllTickets,
    "bind_repeats_the_mask": MakesMasks,
    "bind_leaves_the_queue": BindPushes,
    "reset_forgets": Remembers,
    "reset_keeps_waiting": ResetDrops,
}


def check(make: Callable[[], Any]) -> None:
    """Check what `make` makes."""
    check_grammar(
        make,
        ground=Ground.of(INPUTS),
        waiting=lambda part: part.entries,
        consume=lambda part: part.consume(),
        current=lambda part: (part.previous, part.current),
    )


def test_a_right_queue_passes():
    """One that remembers two entries and has a mask."""
    check(Queue)


def test_the_fake_passes():
    """It has no mask, and remembers nothing."""
    check_grammar(
        FakeGrammar,
        ground=Ground.of(INPUTS),
        waiting=lambda part: part.queue,
        consume=FakeGrammar.consume,
        current=lambda part: (),
    )


def test_every_promise_has_a_planted_fault():
    """None of the checks is idle."""
    assert_all_planted(GRAMMAR, PLANTED)


@pytest.mark.parametrize(("name", "faulty"), [*PLANTED.items(), ("bind_repeats_the_mask", ResetMakesMasks)])
def test_a_fault_is_found(name: str, faulty: Any):
    """Planted, and named by protocol and member."""
    assert_found(GRAMMAR, name, lambda: check(faulty))
