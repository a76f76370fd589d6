"""Undeclared writes of a warm-up: refused before they happen, named, in every mode and under torch.compile."""

import pytest
import torch
from torch.library import Library
from torch.utils._python_dispatch import TorchDispatchMode

from tsgraph.buffers.audit import WriteAudit, written_tensors
from tsgraph.buffers.contract import State
from tsgraph.buffers.owners import Owners
from tsgraph.errors import ContractViolation

HERE = __file__

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's, when it loads Inductor


@pytest.fixture
def audit(field, arena_of):
    """Makes an audit of some modules and states, beside one static buffer called `ids`."""

    def make(*modules, **states):
        make.arena = arena_of(field("ids"))
        return WriteAudit(Owners(make.arena, states, modules))

    return make


@pytest.fixture(params=[torch.inference_mode, torch.no_grad, torch.enable_grad], ids=lambda mode: mode.__name__)
def mode(request):
    """Each mode that a step may run in: composite operators arrive whole in the first, taken apart in the others."""
    return request.param


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_an_undeclared_counter_is_refused_before_it_counts(audit, mode):
    """A counter that the step increments is named with operator, place, dtype and shape, and keeps its value (J3)."""
    count = torch.zeros(1, dtype=torch.int64)

    def step():
        count.add_(1)

    with pytest.raises(ContractViolation) as error, mode(), audit():
        step()
    message, line = str(error.value), step.__code__.co_firstlineno + 1
    assert (
        f"got aten.add_.Tensor at {HERE}:{line} writing an undeclared tensor of torch.int64 and shape (1,)" in message
    )
    assert "State.undeclared: expected a warm-up that writes only to declared buffers and states" in message
    assert 'state={"…": State(tensor, sink=…)}' in error.value.hint
    assert "State(tensor, restore=True)" in error.value.hint
    assert 0 == count.item()


def test_a_normalisation_in_training_is_refused(audit, mode):
    """Running statistics belong to a module: its dotted path is named, though no schema says they are written."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2, momentum=0.5))
    model[1].num_batches_tracked = None
    before = model[1].running_mean.clone()
    with pytest.raises(ContractViolation) as error, mode(), audit(model):
        model(torch.ones(4, 2))
    assert "State.1.running_mean: " in str(error.value)
    assert "batch_norm.default at " in str(error.value)
    assert "writing module buffer 1.running_mean of torch.float32 and shape (2,)" in str(error.value)
    assert torch.equal(before, model[1].running_mean)


def test_a_normalisation_at_rest_is_fine(audit, mode):
    """In evaluation the statistics are read only."""
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.InstanceNorm1d(2, track_running_stats=True)).eval()
    with mode(), audit(model):
        model(torch.ones(4, 2, 3))


def test_the_place_is_the_users_line_inside_library_code(audit):
    """A write made inside torch is blamed on the line of the step that called torch."""
    model = torch.nn.BatchNorm1d(2)

    def step():
        model(torch.ones(4, 2))

    with pytest.raises(ContractViolation) as error, torch.no_grad(), audit(model):
        step()
    line = step.__code__.co_firstlineno + 1
    assert f"aten.add_.Tensor at {HERE}:{line} writing module buffer num_batches_tracked" in str(error.value)


CUSTOM = Library("tsgraph_test_audit", "DEF")
CUSTOM.define("advance(Tensor x, Tensor(a!) state) -> Tensor")
CUSTOM.define("collect_(Tensor[] outputs, Tensor x) -> ()")
CUSTOM.impl("advance", lambda x, state: (state.add_(1), x + state)[1], "CompositeExplicitAutograd")
CUSTOM.impl("collect_", lambda outputs, x: [o.copy_(x) for o in outputs] and None, "CompositeExplicitAutograd")

WRITES = {
    "in place": lambda old, new: old.mul_(2),
    "through a view": lambda old, new: old[1:].zero_(),
    "by index": lambda old, new: old.__setitem__(0, 5.0),
    "by index tensors": lambda old, new: old.index_put_((torch.tensor([0]),), torch.tensor(1.0)),
    "by copy": lambda old, new: old.copy_(new),
    "as out=": lambda old, new: torch.add(new, new, out=old),
    "as one of several out=": lambda old, new: torch.max(new.view(1, 3), 0, out=(old, torch.empty(3).long())),
    "in a foreach list": lambda old, new: torch._foreach_add_([torch.ones(3), old], 1),
    "by a mutable custom operator": lambda old, new: torch.ops.tsgraph_test_audit.advance(new, old),
    "by keyword": lambda old, new: torch.ops.tsgraph_test_audit.advance(x=new, state=old),
    "by an operator that does not say so": lambda old, new: torch.ops.tsgraph_test_audit.collect_([old], new),
    "by a random fill": lambda old, new: old.normal_(),
    "by a new storage": lambda old, new: old.set_(new),
    "by a resize": lambda old, new: old.resize_(5),
}


@pytest.mark.parametrize("way", WRITES)
def test_every_way_to_write_is_seen(audit, way, mode):
    """In-place, views, out=, lists, custom operators: each is refused, and the tensor is as it was."""
    old, new = torch.arange(3.0), torch.ones(3)
    address = old.data_ptr()
    with pytest.raises(ContractViolation, match="writing an undeclared tensor"), mode(), audit():
        WRITES[way](old, new)
    assert ([0, 1, 2], address) == (old.tolist(), old.data_ptr())


def test_a_fixed_tensor_may_not_be_written(field, arena_of):
    """Fixed inputs are the caller's: the error calls it by the name it was given."""
    scale = torch.ones(2)
    owners = Owners(arena_of(field("ids")), {}, (), {"scale": scale})
    with pytest.raises(ContractViolation, match="writing fixed scale of torch"), WriteAudit(owners):
        scale.add_(1)


# -- what is fine -----------------------------------------------------------------------------------------------------


def test_declared_memory_may_be_written(audit, mode):
    """Static buffers and states, whole or in part, and module tensors declared as states."""
    kv, model = torch.zeros(4, 2), torch.nn.BatchNorm1d(2)
    states = {name: State(tensor, restore=True) for name, tensor in model.named_buffers()}
    watch = audit(model, kv=State(kv, sink=0), **states)
    with mode(), watch:
        kv[1:, 0].add_(1)
        audit.arena.views(2)["ids"].add_(1)
        model(torch.ones(4, 2))
    assert (3, 2) == (kv.sum().item(), audit.arena.tensors()["ids"].sum().item())


OWN = {
    "an output": lambda x: (x + 1).add_(1),
    "a view of an output": lambda x: (x + 1)[1:].add_(1),
    "an allocation": lambda x: torch.empty(3).fill_(1),
    "a constant": lambda x: torch.tensor([1.0, 2.0]).add_(1),
    "a constant of an old class": lambda x: torch.Tensor([1.0]).add_(1),
    "a copy that may be a view": lambda x: x.view(3, 1).expand(3, 2).contiguous().add_(1),
    "a reshape that copies": lambda x: x.view(3, 1).expand(3, 2).reshape(6).add_(1),
    "a conversion": lambda x: x.to(torch.int32).add_(1),
    "a list of outputs": lambda x: torch._foreach_add_(torch._foreach_mul([x, x], 2), 1),
    "an out= that grows": lambda x: torch.add(x, x, out=torch.empty(0)).add_(1),
    "an out= list that grows": lambda x: torch.sort(x, out=(torch.empty(0), torch.empty(0).long()))[0].add_(1),
    "an output of a custom operator": lambda x: torch.ops.tsgraph_test_audit.advance(x, torch.zeros(3)).add_(1),
    "a parameter made on the way": lambda x: torch.nn.Parameter(x + 1).data.add_(1),
    "nothing": lambda x: x[:0].add_(1),
}


@pytest.mark.parametrize("kind", OWN)
def test_memory_of_the_warm_ups_own_may_be_written(audit, kind, mode):
    """Whatever came into being inside the block is scratch; what was there before is unchanged."""
    x = torch.arange(3.0)
    with mode(), audit():
        OWN[kind](x)
    assert [0, 1, 2] == x.tolist()


def test_an_operator_that_returns_its_input_makes_nothing_new(audit):
    """Dropout at rest hands back what it got, whole and unannotated in inference mode: still the old memory."""
    x = torch.ones(3)
    with pytest.raises(ContractViolation, match="an undeclared tensor"), torch.inference_mode(), audit():
        torch.nn.functional.dropout(x, 0.5, training=False).add_(1)
    assert [1, 1, 1] == x.tolist()


def test_memory_that_one_warm_up_made_is_old_to_the_next(audit):
    """A counter made lazily is state from then on (fault J3): the second warm-up must not advance it unseen."""
    watch, made = audit(), []
    with watch:
        made.append(torch.zeros(1).add_(1))
    with pytest.raises(ContractViolation, match="an undeclared tensor"), watch:
        made[0].add_(1)


@pytest.mark.parametrize("source", ["tensor", "storage"])
def test_a_new_storage_is_not_laundered(audit, source):
    """A fresh tensor that is set to old memory does not make that memory fresh."""
    old = torch.zeros(3)
    given = (old,) if source == "tensor" else (old.untyped_storage(), 0, (3,), (1,))
    with pytest.raises(ContractViolation, match="an undeclared tensor"), audit():
        torch.empty(0).set_(*given).add_(1)
    assert [0, 0, 0] == old.tolist()


def test_reads_bookkeeping_and_higher_order_operators_pass(audit):
    """Operators that write nothing, or nothing that lasts, are left alone."""
    x, flag = torch.ones(3), torch.tensor(True)
    with torch.no_grad(), audit():
        x.detach_()
        assert 3 == torch.cond(flag, torch.sum, torch.prod, (x,)).item()


class Wrapper(torch.Tensor):
    """A tensor around another, as quantised and distributed tensors are."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [a.inner if isinstance(a, cls) else a for a in args]
        result = func(*plain, **(kwargs or {}))
        return args[0] if func is torch.ops.aten.add_.Tensor else cls(result)


def test_wrappers_are_looked_through(audit):
    """A write to a wrapper is a write to what it wraps."""
    old = Wrapper(torch.zeros(2))
    with audit():
        (old + 1).add_(1)
    with pytest.raises(ContractViolation, match=r"aten\.add_\.Tensor .* an undeclared tensor"), audit():
        old.add_(1)
    assert [0, 0] == old.inner.tolist()


def test_everything_is_switched_off_on_every_exit(audit):
    """After a refusal no mode is left, and writes are nobody's concern."""
    count = torch.zeros(1)
    with pytest.raises(ContractViolation), audit():
        count.add_(1)
    count.add_(1)
    assert 1 == count.item()
    assert 0 == torch._C._len_torch_dispatch_stack()


# -- torch.compile ----------------------------------------------------------------------------------------------------


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


def backend_of(name):
    """One of torch's own compilers."""
    return torch._dynamo.lookup_backend(name)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_step_runs_compiled_inside_and_afterwards(audit, fresh_compiler, backend, mode):
    """The watch keeps torch.compile on: the compiled code runs in the block, and again after it."""
    runs = []
    step = compiled(lambda x: (x + 1).relu_().mul_(2), backend_of(backend), runs)
    x = torch.ones(3)
    with mode():
        with audit():
            assert [4, 4, 4] == step(x).tolist()
        assert 1 == len(runs)
        step(x)
    assert 2 == len(runs)


def test_a_mode_without_the_override_would_run_eagerly(fresh_compiler):
    """The test above can fail: under a mode that does not ignore compiled code, it does not run."""

    class Plain(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    runs = []
    step = compiled(lambda x: x + 1, backend_of("eager"), runs)
    with torch.no_grad(), Plain():
        step(torch.ones(3))
    assert [] == runs


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_write_is_refused(audit, fresh_compiler, backend):
    """A compiled step that advances old memory is refused, blamed on the user's line and not on generated code."""
    count = torch.zeros(3)

    def advance(x):
        return count.add_(x)

    step = compiled(advance, backend_of(backend), [])
    with pytest.raises(ContractViolation) as error, torch.no_grad(), audit():
        step(torch.ones(3))
    assert f" at {HERE}:" in str(error.value)
    assert [0, 0, 0] == count.tolist()


def test_inductor_code_is_opaque_and_its_outputs_are_own(audit, fresh_compiler):
    """Inductor allocates past the dispatcher, yet neither buffers nor outputs of its code are taken for old memory.

    Eager code around it is watched as ever.
    """
    weight, count = torch.eye(3), torch.zeros(3, 3)
    step = torch.compile(lambda x: torch.mm(torch.mm(x, weight), weight), backend="inductor")
    with torch.no_grad():
        for _ in range(2):
            with audit():
                step(torch.ones(3, 3)).add_(1)
        with pytest.raises(ContractViolation, match="an undeclared tensor"), audit():
            count.add_(step(torch.ones(3, 3)))


# -- schemas ----------------------------------------------------------------------------------------------------------


def test_written_arguments_are_found_by_position_and_by_keyword():
    """The schema says which arguments are written, however they are passed."""
    x, out = torch.ones(2), torch.empty(2)
    assert [] == written_tensors(torch.ops.aten.add.Tensor, (x, x), {})
    assert [id(out)] == [id(t) for t in written_tensors(torch.ops.aten.add.out, (x, x), {"out": out})]
    assert [id(x)] == [id(t) for t in written_tensors(torch.ops.aten.add_.Tensor, (x, out), {})]


@pytest.mark.parametrize("name", ["native_batch_norm", "batch_norm", "_batch_norm_impl_index", "instance_norm"])
def test_statistics_are_written_in_training_only(name):
    """Operators whose schemas are silent about their statistics, by their training flag."""
    x, mean, var = torch.ones(4, 2), torch.zeros(2), torch.ones(2)
    operator = getattr(torch.ops.aten, name).default
    rest = (0.1, 1e-5) if name == "native_batch_norm" else (0.1, 1e-5, False)
    counts = [len(written_tensors(operator, (x, None, None, mean, var, flag, *rest), {})) for flag in (True, False)]
    assert [2, 0] == counts


def test_missing_statistics_are_no_writes():
    """A normalisation without running statistics writes nothing."""
    arguments = (torch.ones(4, 2), None, None, None, None, True, 0.1, 1e-5)
    assert [] == written_tensors(torch.ops.aten.native_batch_norm.default, arguments, {})


def test_backward_and_functional_normalisations_only_read():
    """They take statistics by the same names, and leave them."""
    x, mean, var = torch.ones(4, 2), torch.zeros(2), torch.ones(2)
    operator = torch.ops.aten._native_batch_norm_legit_functional.default
    assert [] == written_tensors(operator, (x, None, None, mean, var, True, 0.1, 1e-5), {})
