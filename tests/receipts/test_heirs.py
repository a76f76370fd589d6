"""Receipts that are taken over from a watched recording: what is the heir's own, and what can be done with them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tsgraph import State
from tsgraph.keys import Reason
from tsgraph.receipts.receipt import CaptureReceipt
from tsgraph.spec.load import parse_spec

LAW = parse_spec(
    {
        "extends": "decode",
        "name": "decode",
        "version": 1,
        "warmup": {"forwards": 1, "per": "variant"},
        "policy": {"freeze_gc": False, "receipts": "warmed"},
    }
)


@pytest.fixture
def engine(on_device):
    """A module with a weight, a state, and a step that returns memory of every kind."""
    module, kv = torch.nn.Module(), on_device(0, 0, 0, 0)
    module.weight = torch.nn.Parameter(on_device(2), requires_grad=False)

    def step(x):
        kv[: len(x)] += x
        made = x * module.weight
        return {"made": made, "again": made.view(-1, 1), "x": x, "kv": kv[: len(x)]}

    return SimpleNamespace(step=step, module=module, kv=kv)


@pytest.fixture
def shown(scene, engine):
    """Captured for sizes 4 and 2, of which the larger was watched."""
    rows = {"made": "request", "again": "request", "x": "request", "kv": "request"}
    return scene(
        engine.step,
        sizes=(2, 4),
        spec=LAW,
        outputs=rows,
        modules=[engine.module],
        state={"kv": State(engine.kv, restore=True)},
        policy={"staleness": "full"},
    )


def test_an_heir_has_what_its_model_touched_and_outputs_of_its_own(shown):
    """Memory from outside is the model's, entry by entry; outputs, nodes and costs are what its own recording made."""
    model, heir = shown.receipt(4), shown.receipt(2)
    assert ("", "default/4") == (model.model, heir.model)
    assert ("default/2", model.externals, model.kept) == (heir.slot, heir.externals, heir.kept)
    assert {"buffer x", "parameter weight", "state kv"} == {each.path for each in heir.externals}

    outputs = {each.name: each for each in heir.outputs}
    assert {
        "['made']": ((2,), ""),
        "['again']": ((2, 1), "output['made']"),
        "['x']": ((2,), "buffer x"),
        "['kv']": ((2,), "state kv"),
    } == {name: (each.shape, each.alias) for name, each in outputs.items()}
    made = shown.runtime.slots["default", 2].outputs.cut(2)["made"]
    assert made.data_ptr() == outputs["['made']"].address

    assert shown.runtime.slots["default", 2].bytes == heir.pool_bytes
    assert heir.nodes == model.nodes
    assert heir.seconds > 0
    assert heir.seconds != model.seconds


def test_an_heir_is_json_like_any_receipt(shown):
    """It comes back equal, and says whose it was."""
    heir = shown.receipt(2)
    again = CaptureReceipt.from_json(heir.to_json())
    assert (heir, "default/4") == (again, again.model)


def test_a_table_says_that_nobody_watched(shown):
    """And whose recording was; the watched one's does not."""
    assert "not watched: what it touches is told of default/4" in shown.receipt(2).table()
    assert "not watched" not in shown.receipt(4).table()


def test_an_heir_has_the_host_functions_that_it_recorded(scene, backend):
    """Not those of its model."""

    def small():
        """Python that only the smaller size runs."""

    def large():
        """Python that only the larger size runs."""

    def step(x):
        backend.host_function(small if len(x) < 4 else large)
        return x + 1

    shown = scene(step, sizes=(2, 4), spec=LAW)
    assert ["large", "small"] == [shown.receipt(size).functions[0].name.rpartition(".")[2] for size in (4, 2)]


def test_a_weight_that_moves_makes_heirs_stale(shown, engine):
    """The guard looks at what the model touched, for all slots; steps are served with the new weight meanwhile."""
    runtime, x = shown.runtime, torch.ones(2)
    assert [2.0, 2.0] == runtime(x=x)["made"].tolist()
    engine.module.weight.data = torch.full((1,), 5.0)
    shown.backend.adopt([engine.module.weight])

    done = runtime.step(x=x)
    assert (Reason.SLOT_STALE, [5.0, 5.0]) == (done.decision.reason, done.outputs["made"].tolist())
    assert {"stale"} == {slot.state for slot in runtime.slots.values()}

    runtime.wake()
    assert ["", ""] == [shown.receipt(size).model for size in (4, 2)], "nothing was warmed up in this run"
    done = runtime.step(x=x)
    assert (("default", 2), [5.0, 5.0]) == (done.decision.key, done.outputs["made"].tolist())


def test_a_runtime_with_heirs_is_verified(shown):
    """Replays of every slot are as eager steps."""
    report = shown.runtime.verify()
    assert report.ok, report.table()


def test_an_output_of_an_heir_is_known_to_other_recordings(scene):
    """A step that reads what an unwatched graph returned finds it by name."""
    shown = scene(lambda x: x + 1, sizes=(2, 4), spec=LAW)
    kept = shown.runtime.slots["default", 2].outputs.cut(2)
    reader = scene(lambda x: x + kept, sizes=(2,))
    assert ["", "output of slot default/2 of decode"] == [each.origin for each in reader.receipt(2).externals]
