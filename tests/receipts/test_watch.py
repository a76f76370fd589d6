"""What a watch sees of a recording: reads, writes, values, draws; what it cannot see, and what it does not hold."""

import sys
import types

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import State
from tsgraph.buffers.owners import Owners
from tsgraph.receipts.watch import Watch

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's, when it loads Inductor


@pytest.fixture(params=[torch.inference_mode, torch.no_grad, torch.enable_grad], ids=lambda mode: mode.__name__)
def mode(request):
    """Each mode that a step may run in: composite operators arrive whole in the first, taken apart in the others."""
    return request.param


def accesses(watch):
    """What was touched: what it is called, and how."""
    return {external.path: external.access for external in watch.outside.told()}


def baked(watch):
    """What was baked, without lines."""
    return [(each.operator, each.argument, str(each)) for each in watch.notes.told()["baked"]]


# -- memory -----------------------------------------------------------------------------------------------------------


def test_reads_and_writes_are_told_apart(watch, mode):
    """By owner: what is read, what is overwritten without a look, and what is changed in place."""
    kv, out, source = torch.zeros(4), torch.zeros(3), torch.ones(3)
    watched = watch(torch.nn.Linear(3, 3), kv=State(kv, sink=0), out=State(out, restore=True))
    with mode(), watched as seen:
        seen.outside.owners.find(kv)
        torch.nn.functional.linear(source, seen.outside.owners.resolve("parameter weight")())
        kv[1:].add_(source)
        out.copy_(source)
    read = {"unknown ": "read", "parameter weight": "read"}
    assert {**read, "state kv": "read written", "state out": "written"} == accesses(watched)


WRITES = {
    "as out=": (lambda a, b: torch.add(b, b, out=a), "written"),
    "in a foreach list": (lambda a, b: torch._foreach_add_([torch.ones(3), a], 1), "read written"),
    "by index": (lambda a, b: a.index_put_((torch.tensor([0]),), b[:1]), "read written"),
    "by a fill": (lambda a, b: a.fill_(1), "written"),
    "by a random fill": (lambda a, b: a.normal_(), "written"),
}


@pytest.mark.parametrize("way", WRITES)
def test_every_way_to_write_is_seen(watch, way):
    """Out-arguments and lists too; what an operator only fills it does not read."""
    state, other = torch.zeros(3), torch.ones(3)
    watched = watch(state=State(state, restore=True))
    work, access = WRITES[way]
    with torch.inference_mode(), watched:
        work(state, other)
    assert access == accesses(watched)["state state"]


VIEWS = {
    "a view": lambda x: x.view(3, 1),
    "a slice": lambda x: x[1:],
    "a reshape that finds nothing to do": lambda x: x.reshape(3),
    "a conversion that finds nothing to do": lambda x: x.to(torch.float32),
    "dropout at rest": lambda x: torch.nn.functional.dropout(x, 0.5, training=False),
    "a shape": torch.empty_like,
}


@pytest.mark.parametrize("kind", VIEWS)
def test_views_are_no_reads(watch, mode, kind):
    """Nor is what asks for a shape alone."""
    watched = watch()
    x = torch.ones(3)
    with mode(), watched:
        VIEWS[kind](x)
    assert {} == accesses(watched)


def test_a_reshape_that_copies_is_a_read(watch, mode):
    """The same operator, on a layout that it must copy."""
    watched, x = watch(), torch.ones(3, 2)
    with mode(), watched:
        x.t().reshape(6)
    assert {"unknown ": "read"} == accesses(watched)


def test_memory_of_its_own_is_no_outside(watch, mode):
    """What operators made in the block may be read and written at will."""
    watched, x = watch(), torch.ones(3)
    with mode(), watched:
        own = (x + 1).mul_(2)
        (own[1:] + own[:2]).sum()
        torch.add(own, own, out=torch.empty(0))
    (only,) = watched.outside.told()
    assert ("aten.add.Tensor", "read") == (only.operators[0], only.access)


def test_constants_are_the_recordings_own(watch, mode):
    """What `torch.tensor` makes of numbers came into being in the block."""
    watched = watch()
    with mode(), watched:
        torch.tensor([1.0, 2.0]).add_(1)
    assert {} == accesses(watched)


def test_a_new_storage_is_not_laundered(watch, mode):
    """A fresh tensor that is set to old memory does not make that memory the recording's own."""
    watched, old = watch(), torch.ones(3)
    with mode(), watched:
        torch.empty(0).set_(old.untyped_storage(), 0, (3,), (1,)).add(1)
    assert [old.data_ptr()] == [external.address for external in watched.outside.told()]


def test_owners_are_those_of_the_recordings_beginning(watch):
    """A tensor that a module made since the runtime was built has its name."""
    module = torch.nn.Module()
    watched = watch(module)
    module.late = torch.ones(3)
    with torch.inference_mode(), watched:
        module.late + 1
    assert {"attribute late": "read"} == accesses(watched)


def test_memory_of_the_pool_that_no_operator_made_is_inside(watch, pool_of):
    """An extension that allocates past the dispatcher takes pool memory: it is nobody's from outside."""
    unseen, x = torch.ones(3), torch.ones(3)
    watched = watch(pool=pool_of(unseen))
    with torch.inference_mode(), watched:
        x.add(unseen)
    assert [x.data_ptr()] == [external.address for external in watched.outside.told()]


def test_facts_are_those_of_the_owners_tensor(watch):
    """Shape, stride, dtype, address and bytes of the whole, whichever part was read; operators and the first line."""
    table = torch.arange(12, dtype=torch.int32).view(3, 4)
    watched = watch(table=State(table, sink=0))

    def step():
        table[1:, :2].sum()
        table[0].max()

    with torch.inference_mode(), watched:
        step()
    (told,) = watched.outside.told()
    assert ((3, 4), (4, 1), "int32", table.data_ptr(), 48) == (
        told.shape,
        told.stride,
        told.dtype,
        told.address,
        told.bytes,
    )
    assert ("aten.sum.default", "aten.max.default") == told.operators
    assert f"{__file__}:{step.__code__.co_firstlineno + 1}" == told.line


def test_what_nobody_declared_is_named_by_how_the_step_holds_it(watch):
    """Closure, bound object and default; two of one shape stay two."""
    table, holder = torch.ones(3), types.SimpleNamespace(inner=[torch.ones(3)])

    def step(default=torch.ones(3)):  # noqa: B008 - a default that is a tensor
        return table + holder.inner[0] + default

    watched = watch(step=step)
    with torch.inference_mode(), watched:
        step()
    paths = ["step closure table", "step closure holder.inner[0]", "step default [0]"]
    assert paths == [external.path for external in watched.outside.told()]
    assert [False] * 3 == [external.declared for external in watched.outside.told()]


def test_everything_external_is_kept_and_nothing_internal(watch):
    """A dropped input lives on in the receipt's memory; an intermediate dies in the block, as without a watch."""
    held = [torch.ones(3)]
    external, watched = StorageWeakRef(held[0].untyped_storage()), watch()
    with torch.inference_mode(), watched:
        internal = StorageWeakRef((held[0] + 1).untyped_storage())
        dead = internal.expired()
        held.clear()
    assert (True, False) == (dead, external.expired())
    watched.outside.kept.clear()
    assert external.expired()


def test_a_watch_does_not_make_the_pool_larger():
    """Blocks that a step frees serve its later operators, watched or not."""

    def bytes_of_recording(watched):
        backend = EmulatedBackend()
        pool, x = backend.pool(), backend.allocate((1 << 18,), torch.float32, 1)
        owners = Owners(Arena([], 4, backend), {})
        with backend.record(pool) as graph:
            if watched:
                with Watch(owners, backend, pool):
                    for _ in range(20):
                        x.mul(2).add(1).sum()
            else:
                for _ in range(20):
                    x.mul(2).add(1).sum()
        return graph.bytes

    assert bytes_of_recording(watched=False) == bytes_of_recording(watched=True)


class Wrapper(torch.Tensor):
    """A tensor around another, as quantised and distributed tensors are."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*[a.inner if isinstance(a, cls) else a for a in args], **(kwargs or {})))


def test_wrappers_are_looked_through(watch):
    """What is read is what they wrap."""
    watched, inner = watch(), torch.zeros(2)
    wrapped = Wrapper(inner)
    with watched:
        wrapped + 1
    assert [inner.data_ptr()] == [external.address for external in watched.outside.told()]


# -- the host ---------------------------------------------------------------------------------------------------------


def test_a_number_on_the_host_is_baked_and_other_host_memory_is_read_again(watch):
    """A zero-dimensional host tensor is an argument of the launch; a copy from pinned memory is made at each replay."""
    scale, pinned, count, x = torch.tensor(2.5), torch.ones(3), torch.tensor(7), torch.ones(3)
    watched = watch(hosts=(scale, pinned, count))
    with torch.inference_mode(), watched:
        x.mul(scale)
        torch.zeros(3).copy_(pinned)
        torch.zeros((), dtype=torch.int64).copy_(count)
    assert [("aten.mul.Tensor", "other", "2.5")] == [each for each in baked(watched) if each[2] in ("2.5", "7")]
    told = [external for external in watched.outside.told() if external.place == "host"]
    assert [(each.data_ptr(), "read", ("aten.copy_.default",)) for each in (pinned, count)] == [
        (external.address, external.access, external.operators) for external in told
    ]


def test_host_memory_that_the_recording_made_is_kept_as_a_temporary(watch):
    """A copy from it is made again by every replay: it must not die, and nobody can refresh it (faults A7, K2)."""
    watched, x = watch(), torch.zeros(3)
    watched._holds = lambda tensor: tensor.dtype is torch.float32
    with torch.inference_mode(), watched:
        fresh = torch.arange(3)
        x.copy_(fresh)
        reference = StorageWeakRef(fresh.untyped_storage())
        del fresh
    (told,) = [external for external in watched.outside.told() if external.kind == "temporary"]
    assert ("host", False, False) == (told.place, told.declared, reference.expired())


def test_host_work_is_done_once(watch):
    """Operators on host tensors are no part of the graph: told by line, with how often; a value read is told, too."""
    host = torch.arange(3)
    watched = watch()
    watched._holds = lambda _: False

    def step():
        for _ in range(3):
            host.add_(1)
        return int(host.max())

    with torch.inference_mode(), watched:
        step()
    line = step.__code__.co_firstlineno
    assert [("aten.add_.Tensor", f"{__file__}:{line + 2}", 3), ("aten.max.default", f"{__file__}:{line + 3}", 1)] == [
        (each.operator, each.line, each.times) for each in watched.notes.told()["once"]
    ]
    assert [("(read by the host)", "5")] == [each[1:] for each in baked(watched)]
    assert {} == accesses(watched)


# -- values -----------------------------------------------------------------------------------------------------------


def test_values_are_baked_by_line_and_loops_stay_short(watch):
    """Numbers, lists and words, in views as well; what says a tensor's form is none."""
    watched, x = watch(), torch.ones(6)

    def step():
        for scale in (2.0, 2.0, 3.0):
            x.mul(scale)
        x.view(2, 3)
        x.div(2, rounding_mode="floor")
        torch.zeros(3, dtype=torch.int32)

    with torch.inference_mode(), watched:
        step()
    assert [
        ("aten.mul.Tensor", "other", "2.0 (×2), 3.0"),
        ("aten.view.default", "size", "[2, 3]"),
        ("aten.div.Tensor_mode", "other", "2"),
        ("aten.div.Tensor_mode", "rounding_mode", "'floor'"),
        ("aten.zeros.default", "size", "[3]"),
    ] == baked(watched)
    lines = [each.line for each in watched.notes.told()["baked"]]
    assert f"{__file__}:{step.__code__.co_firstlineno + 2}" == lines[0]


DRAWS = {
    "a draw": (lambda x, g: torch.rand_like(x), "default"),
    "with a generator": (lambda x, g: torch.multinomial(x, 1, generator=g), "given"),
    "dropout": (lambda x, g: torch.nn.functional.dropout(x, 0.5, training=True), "default"),
    "dropout at rest": (lambda x, g: torch.nn.functional.dropout(x, 0.5, training=False), None),
    "attention without dropout": (
        lambda x, g: torch.nn.functional.scaled_dot_product_attention(*[x.view(1, 1, 3, 1)] * 3),
        None,
    ),
    "no draw": (lambda x, g: x + 1, None),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_random_numbers_are_told_with_their_generator(watch, kind):
    """Only of operators that draw with these arguments."""
    watched, work = watch(), DRAWS[kind]
    with torch.inference_mode(), watched:
        work[0](torch.ones(3), torch.Generator())
    assert ([] if work[1] is None else [work[1]]) == [each.generator for each in watched.notes.told()["draws"]]


# -- what cannot be seen ----------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_compiler():
    """A compiler that remembers nothing of other tests."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(step, backend, runs):
    """`step` under torch.compile, by `backend`; every run of the compiled code is appended to `runs`."""

    def counted(graph, inputs):
        code = backend(graph, inputs)
        return lambda *args: (runs.append(1), code(*args))[1]

    return torch.compile(step, backend=counted)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_step_runs_compiled_while_it_is_watched_and_afterwards(watch, fresh_compiler, backend, mode):
    """The watch keeps torch.compile on: the compiled code runs in the block, and again after it."""
    runs = []
    step = compiled(lambda x: (x + 1).relu_().mul_(2), torch._dynamo.lookup_backend(backend), runs)
    x, watched = torch.ones(3), watch()
    with mode():
        with watched:
            assert [4, 4, 4] == step(x).tolist()
        assert 1 == len(runs)
        step(x)
    assert 2 == len(runs)
    assert {"unknown ": "read"} == accesses(watched)


def test_a_mode_without_the_override_would_run_eagerly(fresh_compiler):
    """The test above can fail: under a mode that does not ignore compiled code, it does not run."""

    class Plain(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    runs = []
    step = compiled(lambda x: x + 1, torch._dynamo.lookup_backend("eager"), runs)
    with torch.no_grad(), Plain():
        step(torch.ones(3))
    assert [] == runs


def test_a_region_that_inductor_compiled_is_opaque_and_told_with_what_it_was_handed(watch, fresh_compiler):
    """Its inputs count as read, its outputs as the recording's own, and code around it is watched as ever."""
    weight, state = torch.eye(3), torch.zeros(3, 3)

    def work(x):
        return torch.mm(torch.mm(x, weight), weight)

    step = torch.compile(work, backend="inductor")
    watched = watch(state=State(state, restore=True), step=work)
    with torch.no_grad(), watched:
        state.add_(step(torch.ones(3, 3)))
    ((opaque,), told) = (watched.notes.told()["opaque"], accesses(watched))
    assert ("compiled region", f"{__file__}:{work.__code__.co_firstlineno}") == (opaque.kind, opaque.line)
    assert ("read", "read written") == (told["step closure weight"], told["state state"])
    assert 2 == len(told)


def test_what_inductor_says_that_it_changes_is_written(watch):
    """Of a region's inputs and constants those that it mutates; numbers among them are baked."""
    region = types.SimpleNamespace(mutated_input_idxs={1}, constants={"c": torch.ones(3)})
    x, state = torch.ones(3), torch.zeros(3)
    watched = watch(state=State(state, restore=True))
    with torch.no_grad(), watched:
        made = watched._run_region(region, lambda: (x + 1,), [x, state, 7])[0]
        made.add_(1)
    assert ["read", "read written", "read"] == [external.access for external in watched.outside.told()]
    assert [("compiled region Inductor's", "input 2", "7")] == baked(watched)[:1]


def test_a_triton_kernel_is_opaque_and_told_with_what_it_was_handed(watch, monkeypatch):
    """Its tensors count as read, its numbers as baked; one that is only compiled is no launch."""

    class JITFunction:
        __name__, arg_names = "scale_rows", ["x", "factor"]

        def run(self, *args, grid, warmup, **kwargs):
            return args[0].mul_(args[1])

    stand_in = types.ModuleType("triton.runtime.jit")
    stand_in.JITFunction = JITFunction
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", stand_in)
    kernel, kv = JITFunction(), torch.zeros(3)
    watched = watch(kv=State(kv, sink=0))
    with torch.inference_mode(), watched:
        kernel.run(kv, 3, grid=(4,), warmup=False)
        kernel.run(kv, 5, grid=(4,), warmup=True)
    kernel.run(kv, 4, grid=(4,), warmup=False)
    assert [("Triton kernel", "scale_rows", 1)] == [
        (each.kind, each.name, each.times) for each in watched.notes.told()["opaque"]
    ]
    name = "Triton kernel scale_rows"
    assert [(name, "factor", "3"), (name, "grid", "(4,)")] == baked(watched)[:2]
    assert {"state kv": "read written"} == accesses(watched)


def test_a_higher_order_operator_is_opaque(watch):
    """It has no schema: what it is given counts as read."""
    watched, x, flag = watch(), torch.ones(3), torch.tensor(True)
    with torch.no_grad(), watched:
        torch.cond(flag, torch.sum, torch.prod, (x,))
    assert ["higher-order operator"] == [each.kind for each in watched.notes.told()["opaque"]]
    assert 2 == len(watched.outside.told())


def test_everything_is_switched_off_on_every_exit(watch):
    """After an exception no mode is left, and nothing of torch is patched."""
    from torch._inductor.output_code import CompiledFxGraph

    original = CompiledFxGraph.__call__
    with pytest.raises(ValueError, match="planted"), watch():
        raise ValueError("planted")
    assert (0, original) == (torch._C._len_torch_dispatch_stack(), CompiledFxGraph.__call__)
