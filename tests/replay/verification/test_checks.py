"""Each check of a verification finds what is planted for it, and nothing else is found."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.replay.verification.accounts import Engine
from tests.runtime.planting import (
    X,
    captured,
    failed,
    floats,
    found,
    grammatical,
    ids,
    rows_of,
)
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.buffers.contract import Fixed, Rows, State
from tsgraph.buffers.staging import Cut
from tsgraph.errors import StaleSlot
from tsgraph.grammar.capturable import CapturableGrammar
from tsgraph.protocols.null import NullAttention, NullCommunication
from tsgraph.replay.verification import batches
from tsgraph.slots.outputs import Outputs
from tsgraph.spec.load import load_spec


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Everything alive is frozen once, so that the collections around each capture have little to walk."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_a_small_difference_is_found_or_tolerated():
    """Bit by bit unless a tolerance is given; it is then a part of the largest number of the tensor."""
    factor = {"value": 1.0}
    runtime = captured(lambda x: x * factor["value"], inputs={"x": X})
    factor["value"] = 1.0 + 1e-5
    finding = found(runtime.verify(floats), "equality")
    assert finding.mismatch is not None
    assert 1e-6 < finding.mismatch.largest < 1e-4
    assert runtime.verify(floats, tolerance=1e-4).ok
    assert not runtime.verify(floats, tolerance=1e-6).ok


def test_state_that_a_replay_leaves_is_held_against_eagers():
    """Planted: the amount that is added to an account is a number of the recording's."""
    totals, fee = torch.zeros(6), {"fee": 1.0}

    def step(ids: torch.Tensor) -> torch.Tensor:
        totals.index_put_((ids,), totals[ids] + fee["fee"])
        return ids + 1

    runtime = captured(step, state={"totals": State(totals, sink=0)})
    assert runtime.verify(ids).ok
    fee["fee"] = 2.0
    report = runtime.verify(ids)
    assert {("equality", "state totals")} == failed(report)
    assert (1, 2, 3) == (rows_of(report.findings[0]))
    assert not totals.any()


def test_recurrent_state_is_held_against_eagers(monkeypatch: pytest.MonkeyPatch):
    """Planted: replays update nothing. The collaborator's memory is named, though nobody declared it as state."""
    engine = Engine.on(EmulatedBackend())
    runtime = engine.runtime()
    for program in runtime._server.routes.programs.values():
        program.updates = ()
    assert {("equality", "collaborator recurrent.accepted")} == failed(runtime.verify(engine.inputs))
    assert not engine.accepted.any()


def test_buffers_that_are_not_staged_are_named(monkeypatch: pytest.MonkeyPatch):
    """Planted: pad rows keep what is there. Nothing reads them, so that outputs tell nothing."""
    monkeypatch.setattr(Cut, "write", lambda cut, source: None if source is None else cut.copy(cut.head, source))
    report = captured(lambda ids: ids + 1, policy={"staging": "copies"}).verify(ids, rows=(1,))
    assert {("staging", "buffer ids")} == failed(report)


def test_rows_beyond_the_slot_are_left_alone():
    """Planted: a refresh clears the whole buffer; the rows that it may not touch are told by their place."""
    held: list[torch.Tensor] = []

    class Clearing(NullAttention):
        """Writes beyond its batch."""

        def refresh(self, batch, live):
            held[0][batch.rows :].fill_(1)

    runtime = captured(lambda ids: ids + 1, attention=Clearing())
    held.append(runtime._parts.engine.arena.tensors()["ids"])
    report = runtime.verify(ids, slots=[("default", 2)])
    assert {("staging", "buffer ids")} == failed(report)
    assert "beyond the slot's rows" in report.findings[0].says
    assert (2, 3) == (rows_of(report.findings[0]))


def test_live_rows_that_see_pads_are_told_from_those_that_see_their_number():
    """A minimum over all rows changes with the company; a share of all rows changes with the number alone."""
    report = captured(lambda ids: ids + ids.amin()).verify(ids)
    assert {("isolation", "output")} == failed(report)
    assert {"larger", "eager"} == {place.history for place in report.findings[0].places}
    report = captured(lambda x: x / len(x), inputs={"x": X}).verify(floats)
    assert {"eager"} == {place.history for finding in report.findings for place in finding.places}
    assert captured(lambda x: x / len(x), inputs={"x": X}).verify(floats, alike=False).ok


def test_state_that_pads_write_is_not_what_live_rows_make():
    """Planted: pad rows are counted in row 1. Where that is a sink, or lasts for one step only, it may be."""
    for declared, expected in (
        ({"sink": 0}, {("isolation", "state counts"), ("sinks", "state counts")}),
        ({"sink": (0, 1)}, set()),
        ({"restore": True}, set()),
    ):
        counts = torch.zeros(6, dtype=torch.int64)

        def step(place: torch.Tensor, counts: torch.Tensor = counts) -> torch.Tensor:
            counts.index_add_(0, place, torch.ones_like(place))
            return place + 1

        state = {"counts": State(counts, **declared)}
        runtime = captured(step, inputs={"place": Rows(torch.int64, pad=1, warm=0)}, state=state)
        assert expected == failed(runtime.verify(lambda rows: {"place": torch.arange(2, 2 + rows)}))


def test_discrete_outputs_that_rounding_decides_are_noted():
    """Floats agree within rounding, so a pick among them that differs is taken for a near-tie, and that is said."""

    def step(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"x": x + 1e-7 * len(x), "pick": (x * 0 + len(x)).long()}

    report = captured(step, inputs={"x": X}).verify(floats)
    assert report.ok
    assert "output['pick'] is not what an eager step of the live rows alone makes" in report.left_out[0]


def test_batches_that_are_not_nested_are_noted():
    """A full batch with other rows in front cannot show that company does not matter."""
    report = captured(lambda ids: ids + 1).verify(lambda rows: {"ids": torch.arange(rows) + rows})
    assert report.ok
    assert "does not begin with the batch of fewer" in report.left_out[0]


def test_an_eager_step_that_is_not_the_same_twice():
    """Planted: a hidden counter on the host. It is told, and replays are held to rounding from then on."""
    calls: list[int] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * (1 + 1e-6 * len(calls))

    report = captured(step, inputs={"x": X}).verify(floats)
    assert {("repeatability", "output")} == failed(report)
    assert ["chance", "undeclared"] == [suspect.kind for suspect in report.findings[0].suspects]
    assert captured(step, inputs={"x": X}).verify(floats, tolerance=1e-2).ok


def test_an_eager_step_that_returns_something_else_the_second_time():
    """Planted: its structure changes from call to call."""
    calls: list[int] = []

    def step(ids: torch.Tensor) -> Any:
        calls.append(1)
        return {"next": ids + 1, "more": ids} if fails and len(calls) % 2 else {"next": ids + 1}

    fails = False
    runtime = captured(step)
    fails = True
    assert ("repeatability", "outputs") in failed(runtime.verify(ids))


def test_a_source_that_is_written_is_the_callers(monkeypatch: pytest.MonkeyPatch):
    """Planted: a refresh that writes to what the caller passed (R41)."""
    kept: list[torch.Tensor] = []

    class Writing(NullAttention):
        """Writes to tensors of the caller's, whenever it can."""

        def refresh(self, batch, live):
            for source in kept:
                source.add_(1)

    runtime = captured(lambda ids: ids + 1, attention=Writing())

    def inputs(rows: int) -> dict[str, torch.Tensor]:
        kept[:] = [torch.arange(1, rows + 1)]
        return {"ids": kept[0]}

    assert ("callers", "source ids") in failed(runtime.verify(inputs))


def test_what_others_leave_in_metadata_is_seen():
    """Planted: one slot's refresh is forgotten. Right after an eager step of its rows it is right, by luck."""

    class Forgetful(NullAttention):
        """Metadata that are refreshed for the larger slot only."""

        own = torch.zeros(4, dtype=torch.int64)

        def begin_eager(self, batch):
            self.own[: batch.rows].copy_(batch.ids)

        def refresh(self, batch, live):
            if batch.rows == 4:
                self.begin_eager(batch)

    backend, attention = EmulatedBackend(), Forgetful()
    attention.own = backend.allocate((4,), torch.int64, 0)
    early = {"ids": Rows(torch.int64, pad=0, read_by=("graph", "device"))}
    runtime = captured(lambda ids: ids + attention.own[: len(ids)], inputs=early, backend=backend, attention=attention)
    report = runtime.verify(lambda rows: {"ids": torch.arange(rows) + 10 * rows}, rows=(2,))
    (finding,) = report.findings
    assert ((2,), "equality") == (finding.slot[1:], finding.check)
    assert {"shuffled", "others"} == {place.history for place in finding.places}
    assert "refresh" == finding.suspects[0].kind


def test_outputs_that_lie_elsewhere_each_time(monkeypatch: pytest.MonkeyPatch):
    """Planted: outputs are copies, which no later replay overwrites (R40)."""
    cut = Outputs.cut
    copies: list[Any] = []  # alive, so that the next one has another address

    def copied(self: Outputs, live: int) -> Any:
        copies.append(cut(self, live).clone())
        return copies[-1]

    monkeypatch.setattr(Outputs, "cut", copied)
    assert {("addresses", "output")} == failed(captured(lambda ids: ids + 1).verify(ids))


def test_a_weight_that_replays_change_is_named():
    """Planted: a step that counts in a parameter. It cannot be put back, so it is told once for each case."""
    module = torch.nn.Linear(1, 2, bias=False)
    weight = module.weight.detach()

    def step(x: torch.Tensor) -> torch.Tensor:
        weight[1].add_(1.0)
        return x + 1

    runtime = captured(step, inputs={"x": X}, modules=[module], policy={"undeclared_writes": "allow"})
    report = runtime.verify(floats)
    assert {("writes", "parameter weight")} == failed(report)
    assert (1,) == (rows_of(report.findings[0]))


def test_a_weight_that_is_rebound_is_named():
    """Recorded at one address, it is at another one now; where nobody looks before replays, they differ as well."""
    module = torch.nn.Linear(1, 1, bias=False)
    runtime = captured(
        lambda x: x * module.weight[0, 0], inputs={"x": X}, modules=[module], policy={"staleness": "off"}
    )
    assert runtime.verify(floats).ok
    module.weight = torch.nn.Parameter(module.weight + 1)
    report = runtime.verify(floats)
    assert {("addresses", "parameter weight"), ("equality", "output")} == failed(report)
    assert ["moved"] == [suspect.kind for suspect in found(report, "equality").suspects]


def test_a_step_that_raises_is_a_finding_and_the_others_go_on():
    """Planted: with one live row the step raises in the eager run, where there are any; all else is verified."""
    calls = {"fail": False}

    def step(ids: torch.Tensor) -> torch.Tensor:
        if calls["fail"] and len(ids) == 2:
            raise ValueError("planted\nmore of it")
        return ids + 1

    runtime = captured(step)
    calls["fail"] = True
    report = runtime.verify(ids)
    assert "the step" == found(report, "errors").name
    assert "raised ValueError: planted" == found(report, "errors").says
    assert {2} == {finding.slot.size for finding in report.findings if finding.places[0].live != 2}


def test_an_output_that_is_there_and_then_is_not():
    """What was recorded as None stays None, whatever the step returns later."""
    extra = {"there": False}

    def step(ids: torch.Tensor) -> dict[str, torch.Tensor | None]:
        return {"next": ids + 1, "extra": ids * 2 if extra["there"] else None}

    runtime = captured(step, outputs={"next": "request", "extra": "request"})
    assert runtime.verify(ids).ok
    extra["there"] = True
    finding = found(runtime.verify(ids), "equality")
    assert ("output['extra']", "None instead of a tensor") == (finding.name, str(finding.mismatch))


def test_a_part_that_says_it_is_stale_is_told():
    """It raises before a replay and in eager steps that stand for one; addresses tell nothing about it."""

    class Gone(NullCommunication):
        """A buffer that is gone."""

        def restore(self):
            raise StaleSlot("the buffer is gone", hint="capture again")

    report = captured(lambda ids: ids + 1, comm=Gone()).verify(ids)
    assert {("errors", "the step")} == failed(report)
    assert "raised StaleSlot: the buffer is gone" == report.findings[0].says


def test_an_entry_of_a_step_that_raises_is_taken_back():
    """It was taken when the step began; nothing of it is left, and the other runs have their own."""
    backend = EmulatedBackend()
    grammar, fails = CapturableGrammar(backend, rows=4, vocabulary=8), {"now": False}

    def step(batch: Any) -> Any:
        grammar.fork(batch)
        if fails["now"]:
            raise ValueError("planted")
        drawn = batch.ids + grammar.mask(batch)[:, 0].long()
        grammar.finish(drawn)
        return drawn

    runtime = grammatical(step, backend, grammar, load_spec("decode"))
    fails["now"] = True
    assert {("errors", "the step")} == failed(runtime.verify(ids))
    assert (0, ()) == (len(grammar.queue), grammar._masks.remembered)
    fails["now"] = False
    assert runtime.verify(ids).ok


def test_rows_that_only_their_order_can_serve_are_noted():
    """What the host knows of rows in their order may not fit rows in reverse; then metadata are not tried that way."""

    class Ordered(NullAttention):
        """Knows of increasing ids only."""

        def begin_eager(self, batch):
            if not batch.ids[: len(batch.ids)].tolist() == sorted(batch.ids.tolist(), key=lambda i: i or 99):
                raise ValueError("out of order")

    report = captured(lambda ids: ids + 1, attention=Ordered()).verify(ids)
    assert report.ok
    assert ("an eager step of rows in reverse order raised ValueError: out of order",) == report.left_out


def test_garbage_is_hostile_where_that_can_be_told(monkeypatch: pytest.MonkeyPatch):
    """On a device a huge index would end the process: unless it is asked for, integers stay legal there."""
    asked: list[bool] = []

    def noted(arena: Any, outputs: Any, *, hostile: bool) -> None:
        asked.append(hostile)
        batches.litter(arena, outputs, hostile=hostile)

    monkeypatch.setattr("tsgraph.replay.verification.case.litter", noted)
    runtime = captured(lambda ids: ids + 1, sizes=(2,))
    for hostile in (None, False, True):
        report = runtime.verify(ids, rows=(1,), hostile=hostile)
        assert (hostile is False) == any("hostile=True" in each for each in report.evidence)
    assert [True] * 2 + [False] * 2 + [True] * 2 == asked


def test_fixed_tensors_are_watched():
    """A step gets them as they are, and gives them back so."""
    scale = torch.ones(2)

    def step(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        scale[0].add_(1)
        return x + 1

    runtime = captured(step, inputs={"x": X, "scale": Fixed(scale)}, policy={"undeclared_writes": "allow"})
    assert {("writes", "fixed scale")} == failed(runtime.verify(floats))
