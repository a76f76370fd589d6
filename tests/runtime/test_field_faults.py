"""Faults from the field about values, memory, state and what follows, each planted: named, or refused before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.runtime.planting import IDS, captured, found, ids, rows_of, suspected
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.buffers.contract import Rows, State
from tsgraph.capture.mode import is_capturing
from tsgraph.errors import BadBatch
from tsgraph.protocols.null import NullAttention
from tsgraph.runtime import GraphRuntime

# -- C: what is baked in ----------------------------------------------------------------------------------------------


def test_c3_a_temperature_that_is_a_python_number():
    """Changed after the capture it is eager's and not the graph's; as a declared input it is both's."""
    how = {"temperature": 1.0}
    runtime = captured(lambda ids: ids / how["temperature"])
    assert runtime.verify(ids).ok
    how["temperature"] = 2.0
    finding = found(runtime.verify(ids), "equality")
    assert ("baked", "output") == (suspected(finding)[0], finding.name)
    inputs = {"ids": IDS, "temperature": Rows(torch.float32, pad=1.0)}
    runtime = captured(lambda ids, temperature: ids / temperature, inputs=inputs)
    assert runtime.verify(lambda rows: {**ids(rows), "temperature": torch.full((rows,), 2.0)}).ok


def test_c7_a_longest_length_that_the_key_lacks():
    """A mask made of a Python number lets fewer rows see than eager does."""
    longest = {"m": 2}

    def inputs(rows: int) -> dict[str, torch.Tensor]:
        longest["m"] = max(rows, 1)
        return ids(rows)

    runtime = captured(lambda ids: ids * (torch.arange(len(ids), device=ids.device) < longest["m"]), sizes=(4,))
    finding = found(runtime.verify(inputs), "equality")
    assert ("baked", (2,)) == (suspected(finding)[0], rows_of(finding))


def test_c9_a_flag_that_was_left_on_while_capturing():
    """The recording returns what the step no longer does."""
    flags = {"hidden": True}

    def step(ids: torch.Tensor) -> Any:
        return {"next": ids + 1, "hidden": ids * 2} if flags["hidden"] else {"next": ids + 1}

    runtime = captured(step)
    assert runtime.verify(ids).ok
    flags["hidden"] = False
    finding = found(runtime.verify(ids), "structure")
    assert "baked" == suspected(finding)[0]
    assert "hidden" in finding.says


# -- D: the host ------------------------------------------------------------------------------------------------------


def test_d2_a_list_as_an_index_is_refused_while_recording():
    """A tensor made of Python data is a hidden copy from the host: the capture names the line."""
    suppressed = [0, 1]

    def step(logits: torch.Tensor) -> torch.Tensor:
        masked = logits.clone()
        masked[:, suppressed] = -1.0
        return masked

    inputs = {"logits": Rows(torch.float32, pad=0.0, shape=(3,))}
    runtime = GraphRuntime.for_step(
        step, inputs=inputs, sizes=(2,), outputs="request", backend="emulated", observers=()
    )
    assert runtime.capture().failed
    cause = runtime.slots["default", 2].cause
    assert cause is not None
    assert "test_field_faults.py" in cause.detail
    assert "not verified: no slot was replayed" == runtime.verify().verdict


# -- E: memory of the pool --------------------------------------------------------------------------------------------


def test_e5_a_workspace_that_is_made_while_recording():
    """It takes the place of what the step dropped before, so that each replay writes over what the engine put there."""
    workspaces: dict[Any, torch.Tensor] = {}

    def step(ids: torch.Tensor) -> torch.Tensor:
        dropped = ids * 2
        form = torch.empty_like(dropped, device="meta")
        del dropped
        key = is_capturing(), len(ids)
        if key not in workspaces:
            workspaces[key] = torch.empty_like(form, device=ids.device)
        return ids + workspaces[key]

    def inputs(rows: int) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            for workspace in workspaces.values():
                workspace.fill_(5)
        return ids(rows)

    finding = found(captured(step).verify(inputs), "equality")
    assert "unwritten" == suspected(finding)[0]


# -- J: state ---------------------------------------------------------------------------------------------------------


def test_j1_state_that_a_step_updates_in_place():
    """Declared, it is as it was after warm-ups, capture and verification, and a replay updates it once."""
    state = torch.ones(1)

    def step(ids: torch.Tensor) -> Any:
        state.mul_(2)
        return ids + state.long()

    runtime = captured(step, state={"s": State(state, restore=True)})
    assert runtime.verify(ids).ok
    assert [1.0] == state.tolist()
    assert [3, 4] == runtime(**ids(2)).tolist()
    assert [2.0] == state.tolist()


def undeclared(policy: dict[str, Any]) -> GraphRuntime:
    """A step that counts its calls in a tensor that nobody declared. Not captured yet."""
    backend = EmulatedBackend()
    counter = backend.allocate((1,), torch.int64, 4)

    def step(ids: torch.Tensor) -> torch.Tensor:
        counter.add_(2)
        return ids + 1

    return GraphRuntime.for_step(
        step, inputs={"ids": IDS}, sizes=(2,), outputs="request", backend=backend, observers=(), policy=policy
    )


def test_j3_lengths_that_a_step_increments_undeclared():
    """The warm-up is refused and names them; allowed to warm up, every replay is found to write them."""
    runtime = undeclared({})
    assert runtime.capture().failed
    assert "undeclared" in str(runtime.slots["default", 2].cause)
    runtime = undeclared({"undeclared_writes": "allow"})
    runtime.capture()
    finding = found(runtime.verify(ids), "writes")
    assert ("step closure counter", ["undeclared"]) == (finding.name, suspected(finding))


def test_j4_pads_in_a_row_that_somebody_may_get():
    """Warm-ups write to a sink, and so pass; pad rows write to row 3, which any request may have."""
    for pad in (0, 3):
        totals = torch.zeros(6)

        def step(account: torch.Tensor, totals: torch.Tensor = totals) -> torch.Tensor:
            totals.index_fill_(0, account, 0.0)
            return account + 1

        state, inputs = {"totals": State(totals, sink=0)}, {"account": Rows(torch.int64, pad=pad, warm=0)}
        report = captured(step, inputs=inputs, state=state).verify()
        assert (pad == 0) == report.ok
    finding = found(report, "sinks", "state totals")
    assert (["pad write"], (3,)) == (suspected(finding), rows_of(finding))


# -- O, P, Q: pad rows afterwards -------------------------------------------------------------------------------------


def test_o4_a_count_over_pad_rows():
    """A sum over all rows counts pads; what is returned for each request is cut to the live ones."""

    def step(accept: torch.Tensor) -> Any:
        return {"each": accept, "all": accept.sum()}

    inputs = {"accept": Rows(torch.int64, pad=2)}
    runtime = captured(step, inputs=inputs, outputs={"each": "request", "all": "whole"})
    report = runtime.verify(lambda rows: {"accept": torch.arange(rows)})
    assert ["output['all']"] == sorted({each.name for each in report.findings})
    assert "pad read" == suspected(found(report, "isolation"))[0]
    assert [1, 1, 1] == runtime(accept=torch.ones(3, dtype=torch.int64))["each"].tolist()


def test_p2_an_adapter_that_no_slot_knows():
    """An input that is not among the declared ones is refused, and not ignored."""
    runtime = captured(lambda ids: ids + 1)
    with pytest.raises(BadBatch, match="no buffer 'adapter'"):
        runtime(**ids(2), adapter=torch.zeros(2))


class Borrowing(NullAttention):
    """Gives pad rows a state slot that looks free: the first that no row of this batch has."""

    def __init__(self, backend: EmulatedBackend, *, sink: int | None) -> None:
        self.slots, self.sink = backend.allocate((4,), torch.int64, 5), sink

    def bind(self, batch):
        self.slots.fill_(5)

    def refresh(self, batch, live):
        free = min({0, 1, 2, 3, 4} - set(batch.owner[:live].tolist()))
        self.slots[: batch.rows].copy_(batch.owner)
        self.slots[live : batch.rows] = free if self.sink is None else self.sink

    def begin_eager(self, batch):
        self.refresh(batch, int(batch.owner.ge(0).sum()))


def test_q4_a_pad_that_borrows_a_parked_requests_slot():
    """It writes to a row that is no sink, without any live row; a reserved sink is borrowed from nobody."""
    for sink in (5, None):
        backend, states = EmulatedBackend(), torch.zeros(6)
        attention = Borrowing(backend, sink=sink)

        def step(owner: torch.Tensor, attention: Any = attention, states: torch.Tensor = states) -> torch.Tensor:
            states.index_fill_(0, attention.slots[: len(owner)], 7.0)
            return owner + 1

        runtime = captured(
            step,
            inputs={"owner": Rows(torch.int64, pad=-1, read_by=("graph", "device"))},
            state={"states": State(states, sink=5)},
            backend=backend,
            attention=attention,
        )
        report = runtime.verify(lambda rows: {"owner": torch.arange(1, rows + 1)})
        assert (sink is not None) == report.ok
    finding = found(report, "sinks", "state states")
    assert (["pad write"], (0,)) == (suspected(finding), rows_of(finding))


def test_q5_rows_that_no_kernel_writes():
    """A skipped pad row of an output that starts uninitialised is read by the next operator: live rows see it."""

    def step(ids: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(ids).index_copy_(0, place, ids)  # all rows write to row 0
        return ids + out.sum()

    def inputs(rows: int) -> dict[str, torch.Tensor]:
        return {**ids(rows), "place": torch.zeros(rows, dtype=torch.int64)}

    report = captured(step, inputs={"ids": IDS, "place": IDS}).verify(inputs)
    assert "pad read" in suspected(found(report, "isolation"))
    assert "uninitialised" in found(report, "repeatability").suspects[0].why
