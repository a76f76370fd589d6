"""Faults of the field that a receipt prevents or names."""

import gc
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from tsgraph import Fixed, Rows, is_capturing
from tsgraph.capture.probing import probe_constants


@contextmanager
def changed(thing, **values):
    """`thing` with other attributes for the block."""
    before = {name: getattr(thing, name) for name in values}
    vars(thing).update(values)
    try:
        yield
    finally:
        vars(thing).update(before)


UNGUARDED = {"staleness": "off"}
"""Nobody looks whether what was captured is still there: the receipt alone has to keep it."""


def undeclared(receipt):
    """What nobody declared."""
    return [external.path for external in receipt.undeclared()]


def test_a1_a_metadata_field_that_is_rebound_is_found_by_its_path(scene, on_device):
    """The receipt has the path and the address of what was captured; the path leads to what is there now."""
    metadata = SimpleNamespace(inner=SimpleNamespace(scale=on_device(2)))
    shown = scene(lambda x: x * metadata.inner.scale)
    (external,) = shown.receipt().undeclared()
    find = shown.runtime._parts.engine.recorder.owners.resolve(external.path)
    assert ("step closure metadata.inner.scale", external.address) == (external.path, find().data_ptr())
    metadata.inner = SimpleNamespace(scale=on_device(3))
    assert (True, 3.0) == (external.address != find().data_ptr(), find().item())
    del metadata.inner
    assert find() is None


def test_a7_metadata_that_are_built_inside_the_step_are_baked_with_the_builders_line(scene):
    """Python runs once: what a builder makes of host lengths is a value at its own line, and differs in a probe."""
    host = SimpleNamespace(length=1)

    def build(x):
        return torch.full_like(x, host.length)

    shown = scene(lambda x: x + build(x))
    line = f"{__file__}:{build.__code__.co_firstlineno + 1}"
    assert [("aten.full_like.default", "fill_value", "1", line)] == [
        (each.operator, each.argument, str(each), each.line)
        for each in shown.receipt().baked
        if "full" in each.operator
    ]
    slot = shown.runtime.slots["default", 2]
    longer = lambda: changed(host, length=9)  # noqa: E731 - a context is a function
    (constant,) = probe_constants(shown.runtime._parts.capturer, slot.batch, (lambda: changed(host), longer)).constants
    assert ("fill_value", "1", "9", line) == (constant.argument, constant.first, constant.second, constant.line)


def test_c3_a_temperature_that_is_a_python_number_is_named(scene):
    """The receipt lists it; a probe under another temperature says that it would have to change."""
    sampling = SimpleNamespace(temperature=1.5)
    shown = scene(lambda x: x / sampling.temperature)
    (baked,) = shown.receipt().baked
    assert ("aten.div.Tensor", "other", (("1.5", 1),)) == (baked.operator, baked.argument, baked.values)
    slot = shown.runtime.slots["default", 2]
    contexts = (lambda: changed(sampling), lambda: changed(sampling, temperature=2.0))
    probe = probe_constants(shown.runtime._parts.capturer, slot.batch, contexts)
    assert [("1.5", "2.0", baked.line)] == [(each.first, each.second, each.line) for each in probe.constants]
    assert "1.5" in probe.table()
    assert "2.0" in probe.table()


class Attention:
    """Metadata that take the longest length to the host when they are bound, as planners do."""

    honours: dict[str, set[float]] = {}  # noqa: RUF012 - what it honours
    kv_indices = None
    most = 0

    def __init__(self):
        from tsgraph.protocols.collaborators import Capabilities

        self.capabilities = Capabilities()

    def init_state(self, setup):
        """Nothing to make."""

    def bind(self, batch):
        self.most = int(batch.lengths.max())

    def refresh(self, batch, live):
        """Nothing is planned anew."""

    begin_eager = bind


@pytest.fixture
def planned(scene):
    """A runtime whose step asks its metadata for the longest length, with lengths that are probed with 100."""

    def make(step):
        attention = Attention()
        inputs = {
            "x": Rows(torch.float32, pad=0),
            "lengths": Rows(torch.int32, pad=1, warm=1, probe=100, read_by=("device",)),
        }
        shown = scene(lambda x, lengths: step(x, attention.most), inputs=inputs, attention=attention)
        slot = shown.runtime.slots["default", 2]
        return probe_constants(shown.runtime._parts.capturer, slot.batch)

    return make


def test_c7_a_longest_length_in_the_graph_is_named(planned):
    """Two batches of one shape differ in their longest row: the Python number that is compared with is told."""
    (constant,) = planned(lambda x, most: x * (torch.arange(2, device=x.device) < most)).constants
    assert ("aten.lt.Scalar", "other", "1", "100") == attrs_of(constant)


def test_c10_a_number_of_splits_that_hangs_on_the_length_is_named(planned):
    """What is launched follows from the dummy's length: both the split and the other kernels are told."""

    def step(x, most):
        splits = 1 if most < 16 else 4
        parts = [x * (1 / splits) for _ in range(splits)]
        return torch.stack(parts).sum(0)

    probe = planned(step)
    assert [("aten.mul.Tensor", "other", "1.0", "0.25 (×4)")] == [attrs_of(each) for each in probe.constants]
    assert ("kernels", "aten.mul.Tensor", "×1", "×4") in [
        (each.part, each.what, each.first, each.second) for each in probe.others
    ]


def attrs_of(constant):
    """A constant without its line."""
    return constant.operator, constant.argument, constant.first, constant.second


def test_e4_a_workspace_of_another_slots_recording_is_named_and_outlives_that_slot(scene):
    """It is told whose recording made it, and releasing that slot does not free what the other graph reads."""
    memo = SimpleNamespace(workspace=None)

    def step(x):
        if is_capturing() and memo.workspace is None:
            memo.workspace = torch.full((1,), 3.0, device=x.device)
        return x * (3 if memo.workspace is None else memo.workspace)

    shown = scene(step, sizes=(2, 4), policy=UNGUARDED)
    (external,) = shown.receipt(2).undeclared()
    assert ("step closure memo.workspace", "in slot default/4 of quick") == (external.path, external.origin[-26:])
    shown.runtime(x=torch.ones(4))
    shown.runtime.release(("default", 4))
    memo.workspace = None
    gc.collect()
    assert [3.0, 6.0] == shown.runtime(x=torch.tensor([1.0, 2.0])).tolist()


def test_e5_a_cache_that_is_filled_inside_a_recording_is_told(scene):
    """Memory of the recording that somebody keeps, and that is no output, escapes: told is where it was made."""
    cache = {}

    def step(x):
        doubled = x * 2
        if is_capturing():
            del doubled
            cache["workspace"] = torch.zeros_like(x)
        return x + 1

    shown = scene(step)
    (escape,) = shown.receipt().escapes
    line = f"{__file__}:{step.__code__.co_firstlineno + 4}"
    assert ("aten.zeros_like.default", line, "step closure cache['workspace']") == (
        escape.operator,
        escape.line,
        escape.holder,
    )
    assert [("slot.memory_escaped", "aten.zeros_like.default")] == shown.warnings


def test_e7_a_tensor_that_a_module_makes_inside_a_recording_is_told_there_and_where_it_is_read(scene):
    """At the end of the first capture as escaped, by the attribute that holds it; in the second as undeclared."""
    module = torch.nn.Module()
    module.table = None

    def step(x):
        if is_capturing() and module.table is None:
            module.table = torch.ones(1, device=x.device)
        return x + (1 if module.table is None else module.table)

    shown = scene(step, sizes=(2, 4), modules=[module])
    assert ["attribute table"] == [escape.holder for escape in shown.receipt(4).escapes]
    read = [external for external in shown.receipt(2).externals if external.name == "table"]
    assert [("attribute table", "aten.ones.default")] == [(each.path, each.origin.split(" at ")[0]) for each in read]


def test_k2_an_input_that_the_user_drops_stays_where_it_is(scene, on_device):
    """The receipt keeps what was captured: a replay reads it, whatever became of the user's name for it."""
    held = [on_device(5, 6)]
    shown = scene(lambda x: x + held[0], policy=UNGUARDED)
    assert ["step closure held[0]"] == undeclared(shown.receipt())
    held.clear()
    gc.collect()
    shown.backend.allocate((2,), torch.float32, 9)
    assert [6.0, 8.0] == shown.runtime(x=torch.tensor([1.0, 2.0])).tolist()


def test_k2_a_weight_that_is_rebound_stays_where_it_was(scene, on_device):
    """`.data =` moves a parameter to other memory; what the graph reads is not freed under it."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(on_device(5, 6))
    shown = scene(lambda x: x + module.weight, modules=[module], policy=UNGUARDED)
    (kept,) = [each for each in shown.receipt().kept if each.data_ptr() == module.weight.data_ptr()]
    module.weight.data = on_device(0, 0)
    gc.collect()
    assert [5.0, 6.0] == kept.tolist()
    assert [6.0, 8.0] == shown.runtime(x=torch.tensor([1.0, 2.0])).tolist()


def test_r2_the_output_of_another_graph_is_named_as_that(scene):
    """A step that reads what another runtime's graph writes: told where undeclared, else its origin stands beside."""
    first = scene(lambda x: {"y": x + 1}).runtime
    chained = first(x=torch.zeros(2))["y"]
    warned = scene(lambda x: x + chained * 2)
    origin = "output['y'] of slot default/2 of quick"
    assert [("step closure chained", origin)] == [(e.path, e.origin) for e in warned.receipt().undeclared()]
    declared = scene(lambda x, y: x + y * 2, inputs={"x": Rows(torch.float32, pad=0), "y": Fixed(chained)})
    assert [] == undeclared(declared.receipt())
    assert [("fixed y", origin)] == [(e.path, e.origin) for e in declared.receipt().externals if e.origin]
    for value in (1.0, 2.0):
        first(x=torch.full((2,), value))
        assert [2 * (value + 1)] * 2 == declared.runtime(x=torch.zeros(2)).tolist()


def test_p2_an_adapter_that_the_recording_never_read_is_told(scene):
    """A declared buffer that no operator touched: replays fill it, and nothing reads it."""
    inputs = {"x": Rows(torch.float32, pad=0), "adapter": Rows(torch.float32, pad=0)}
    has_adapter = SimpleNamespace(now=False)
    shown = scene(lambda x, adapter: x + adapter if has_adapter.now else x + 1, inputs=inputs)
    assert ("adapter",) == shown.receipt().unread
    assert "declared and not touched: adapter" in shown.receipt().table()
