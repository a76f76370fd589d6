"""What a recording does and does not do, and what a replay does, beside computing the right values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.errors import CaptureUnsupported, ReplayFailed

Record = Callable[[Callable[[], object]], EmulatedGraph]
RAN: list[str] = []


@torch.library.custom_op("tsgraph_tests::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    """A kernel that says that it ran."""
    RAN.append("double")
    return x * 2


@double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("tsgraph_tests::bump_", mutates_args=("x",))
def bump_(x: torch.Tensor, by: torch.Tensor) -> None:
    """Adds a host number in place."""
    x += by


@torch.library.custom_op("tsgraph_tests::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    """A kernel without a fake."""
    return x.clone()


@torch.library.custom_op("tsgraph_tests::liar", mutates_args=())
def liar(x: torch.Tensor) -> torch.Tensor:
    """A kernel whose fake is wrong."""
    return x[:1].clone()


@liar.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("tsgraph_tests::state", mutates_args=())
def state(x: torch.Tensor) -> torch.Tensor:
    """Gives the state of torch that its kernel sees: inference, grad, autocast, default dtype is double."""
    seen = [
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype() is torch.float64,
    ]
    return torch.tensor(seen)


@state.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(4, dtype=torch.bool)


def outer(x: torch.Tensor) -> torch.Tensor:
    """Composed of operators that autocast casts, though not cast itself."""
    return torch.einsum("i,j->ij", x, x) @ x


@pytest.fixture
def backend() -> EmulatedBackend:
    """A fresh one."""
    RAN.clear()
    return EmulatedBackend()


@pytest.fixture
def x(backend: EmulatedBackend) -> torch.Tensor:
    """A static input of four ones."""
    return backend.allocate((4,), torch.float32, 1)


@pytest.fixture
def record(backend: EmulatedBackend) -> Record:
    """Records a function into a pool of its own."""

    def record(step: Callable[[], object]) -> EmulatedGraph:
        with backend.record(backend.pool()) as graph:
            step()
        return graph

    return record


class TestRecording:
    def test_runs_no_kernel(self, record: Record, x: torch.Tensor) -> None:
        """Inputs stay as they are, in-place changes included, and a kernel with side effects has none."""
        graph = record(lambda: double(x.add_(1)))
        assert ([1, 1, 1, 1], []) == (x.tolist(), RAN)
        graph.replay()
        assert ([2, 2, 2, 2], ["double"]) == (x.tolist(), RAN)

    @pytest.mark.parametrize(
        ("dtype", "poison"),
        [
            (torch.float32, [float("nan")] * 3),
            (torch.bfloat16, [float("nan")] * 3),
            (torch.float8_e4m3fn, [float("nan")] * 3),
            (torch.int64, [-(2**63)] * 3),
            (torch.uint8, [255] * 3),
            (torch.bool, [True, False, True]),
        ],
        ids=str,
    )
    def test_poisons_what_it_returns(
        self, record: Record, x: torch.Tensor, dtype: torch.dtype, poison: list[object]
    ) -> None:
        """Outputs hold what no result may be mistaken for until the first replay."""
        made = []
        graph = record(lambda: made.append(torch.ones(3, dtype=dtype, device=x.device)))
        assert str(poison) == str(made[0].to(torch.float32 if dtype.is_floating_point else dtype).tolist())
        graph.replay()
        assert [1, 1, 1] == made[0].to(torch.float32).tolist()

    def test_memory_without_a_kernel_keeps_what_it_holds(self, record: Record, x: torch.Tensor) -> None:
        """`empty` records nothing: what a replay does not write is as before, poison at first (fault Q5)."""
        made = []

        def step() -> None:
            out = torch.empty(4, device=x.device)
            out[:2] = x[:2]
            made.append(out)

        graph = record(step)
        graph.replay()
        assert "[1.0, 1.0, nan, nan]" == str(made[0].tolist())
        made[0].fill_(5)
        graph.replay()
        assert [1, 1, 5, 5] == made[0].tolist()

    def test_views_are_real_and_are_no_nodes(self, record: Record, x: torch.Tensor) -> None:
        """A view of an input shows its values at once; changes through it are recorded."""
        views = []

        def step() -> None:
            views.append(x.view(2, 2).t()[1])
            views[0].mul_(3)

        graph = record(step)
        assert ["aten.mul_.Tensor"] == [node.operator for node in graph.nodes]
        assert [1, 1] == views[0].tolist()
        assert x.untyped_storage() is views[0].untyped_storage()
        graph.replay()
        assert [1, 3, 1, 3] == x.tolist()

    def test_in_place_and_out_return_their_argument(self, record: Record, x: torch.Tensor) -> None:
        """The caller gets the very tensor back that it passed."""
        checks = []

        def step() -> None:
            out = torch.empty(4, device=x.device)
            checks.append(torch.add(x, x, out=out) is out)
            checks.append(x.mul_(2) is x)

        record(step)
        assert [True, True] == checks

    def test_consumes_no_random_numbers(self, record: Record, x: torch.Tensor) -> None:
        """The generator is as before; replays draw fresh numbers, and those of eager for the same seed (fault C4)."""
        made = []
        before = torch.get_rng_state()
        graph = record(lambda: made.append(torch.rand(4, device=x.device)))
        assert torch.equal(before, torch.get_rng_state())
        draws = []
        for seed in (0, None, 0, 1):
            if seed is not None:
                torch.manual_seed(seed)
            graph.replay()
            draws.append(made[0].tolist())
        torch.manual_seed(0)
        assert [torch.rand(4).tolist(), torch.rand(4).tolist()] == draws[:2]
        assert draws[0] == draws[2] != draws[3]

    def test_takes_the_generator_it_is_given(self, record: Record, x: torch.Tensor) -> None:
        """A generator of the user's is drawn from at each replay, and not before."""
        numbers, made = torch.Generator().manual_seed(3), []
        graph = record(lambda: made.append(torch.rand(4, device=x.device, generator=numbers)))
        graph.replay()
        assert torch.equal(torch.rand(4, generator=torch.Generator().manual_seed(3)), made[0])

    def test_host_work_runs_at_once_and_is_no_node(self, record: Record, x: torch.Tensor) -> None:
        """Tensors that are made without `device=` live on the host: they are computed, readable, and not recorded."""
        read = []

        def step() -> None:
            table = torch.arange(3) * 2 + torch.tensor([1, 1, 1])
            chosen = table[torch.tensor([0, 2])]
            read.append((table.tolist(), int(table.sum()), chosen.numpy().tolist(), bool(table[0])))

        assert () == record(step).nodes
        assert [([1, 3, 5], 9, [1, 5], True)] == read

    @pytest.mark.parametrize(
        "make",
        [
            lambda x, host: torch.zeros(4, device=x.device),
            lambda x, host: torch.arange(4, device="cpu"),
            lambda x, host: torch.zeros_like(host, device=x.device),
            lambda x, host: host.new_ones(4, device=x.device),
            lambda x, host: x.new_zeros(4),
            lambda x, host: torch.full_like(x, 2),
            lambda x, host: torch.scalar_tensor(4, device=x.device),
        ],
    )
    def test_factories_make_device_tensors_where_asked(
        self, backend: EmulatedBackend, record: Record, x: torch.Tensor, make: Callable[..., torch.Tensor]
    ) -> None:
        """With `device=`, or after a device tensor, the result lives there, and is recorded."""
        made = []
        graph = record(lambda: made.append(make(x, torch.zeros(4))))
        assert backend.holds(made[0])
        assert 1 == len(graph.nodes)

    def test_bakes_the_value_of_a_host_scalar(self, record: Record, x: torch.Tensor) -> None:
        """A zero-dimensional host operand counts with its value at recording (fault C3), and promotes as a tensor."""
        scalar, made = torch.tensor(2.0, dtype=torch.float64), []
        graph = record(lambda: made.append((x.to(torch.int32) * scalar, bump_(x, scalar))))
        scalar.fill_(100)
        graph.replay()
        assert (torch.float64, [2, 2, 2, 2]) == (made[0][0].dtype, made[0][0].tolist())
        assert [3, 3, 3, 3] == x.tolist()

    def test_python_numbers_are_baked(self, record: Record, x: torch.Tensor) -> None:
        """A Python number counts with its value at recording (fault C3)."""
        temperature, made = [2.0], []
        graph = record(lambda: made.append(x / temperature[0]))
        temperature[0] = 4.0
        graph.replay()
        assert [0.5] * 4 == made[0].tolist()

    def test_a_subclass_of_tensors_is_recorded_by_its_parts(self, backend: EmulatedBackend, record: Record) -> None:
        """What a tensor subclass does with the device tensors inside it is recorded, not run."""
        from torch.testing._internal.two_tensor import TwoTensor

        pair = TwoTensor(backend.allocate((2,), torch.float32, 1), backend.allocate((2,), torch.float32, 2))
        made: list[Any] = []
        with torch.no_grad():
            graph = record(lambda: made.append(pair * 3))
        assert 2 == len(graph.nodes)
        graph.replay()
        assert ([3, 3], [6, 6]) == (made[0].a.tolist(), made[0].b.tolist())


class TestCopies:
    def test_reads_pinned_memory_at_each_replay(
        self, backend: EmulatedBackend, record: Record, x: torch.Tensor
    ) -> None:
        """A copy from pinned memory is recorded, and brings what is there when it is replayed."""
        host = backend.pin((4,), torch.float32)
        graph = record(lambda: x.copy_(host, non_blocking=True))
        for value in (3, 4):
            host.fill_(value)
            graph.replay()
            assert [value] * 4 == x.tolist()

    def test_writes_pinned_memory_at_each_replay(
        self, backend: EmulatedBackend, record: Record, x: torch.Tensor
    ) -> None:
        """A copy into pinned memory happens at replay only."""
        host = backend.pin((4,), torch.float32)
        graph = record(lambda: host.copy_(x, non_blocking=True))
        assert [0] * 4 == host.tolist()
        graph.replay()
        assert [1] * 4 == host.tolist()

    def test_moves_pinned_memory_to_the_device(self, backend: EmulatedBackend, record: Record, x: torch.Tensor) -> None:
        """`to(device, non_blocking=True)` of a pinned tensor makes a device tensor, of the dtype asked for."""
        host, made = backend.pin((4,), torch.int64), []
        graph = record(lambda: made.append(host.to(x.device, torch.float32, non_blocking=True)))
        assert (True, torch.float32) == (backend.holds(made[0]), made[0].dtype)
        host.fill_(7)
        graph.replay()
        assert [7] * 4 == made[0].tolist()

    def test_moves_to_the_host_without_blocking(
        self, backend: EmulatedBackend, record: Record, x: torch.Tensor
    ) -> None:
        """`to("cpu", non_blocking=True)` gives pinned host memory that replays fill."""
        made = []
        graph = record(lambda: made.append(x.to("cpu", non_blocking=True)))
        graph.replay()
        assert (False, [1] * 4) == (backend.holds(made[0]), made[0].tolist())

    def test_moving_nowhere_copies_nothing(self, record: Record, x: torch.Tensor) -> None:
        """`to` the device on a device tensor, and to the host on a host tensor, return their argument."""
        host, same = torch.zeros(2), []
        graph = record(lambda: same.append((x.to(x.device) is x, x.to(x) is x, host.to("cpu") is host)))
        assert ([(True, True, True)], ()) == (same, graph.nodes)


class TestReplay:
    def test_does_not_run_python(self, record: Record, x: torch.Tensor) -> None:
        """The step runs once, whatever the number of replays."""
        runs = []

        def step() -> None:
            runs.append(1)
            x.add_(1)

        graph = record(step)
        for _ in range(3):
            graph.replay()
        assert ([1], [4] * 4) == (runs, x.tolist())

    def test_writes_into_the_recorded_outputs(self, record: Record, x: torch.Tensor) -> None:
        """Every replay fills the tensors that the recording returned, at their addresses (fault E1)."""
        made = []
        graph = record(lambda: made.append((x + 1, x.topk(2), x.view(2, 2).split(1), torch._foreach_add([x, x], 1))))
        leaves = [made[0][0], *made[0][1], *made[0][2], *made[0][3]]
        addresses = [leaf.data_ptr() for leaf in leaves]
        for value in (1, 5):
            x.fill_(value)
            graph.replay()
            assert [value + 1] * 4 == made[0][0].tolist() == made[0][3][1].tolist()
            assert [value] * 2 == made[0][1].values.tolist()
        assert addresses == [leaf.data_ptr() for leaf in leaves]

    def test_no_mode_of_the_users_sees_it(self, record: Record, x: torch.Tensor) -> None:
        """Neither function modes nor dispatch modes are asked."""
        seen: list[object] = []

        class Functions(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        graph = record(lambda: torch.softmax(x + 1, 0))
        with Functions(), Operators():
            graph.replay()
            graph.replay()
        assert [] == seen

    def test_runs_in_the_state_of_torch_that_held_at_record(self, record: Record, x: torch.Tensor) -> None:
        """Inference mode, grad mode, autocast and default dtype are those of each operation, and put back."""
        made = []

        def step() -> None:
            made.append(state(x))
            with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
                made.append(state(x))
            torch.set_default_dtype(torch.float64)
            made.append(state(x))
            torch.set_default_dtype(torch.float32)

        with torch.no_grad():
            graph = record(step)
        graph.replay()
        expected = [[False, False, False, False], [True, False, True, False], [False, False, False, True]]
        assert expected == [seen.tolist() for seen in made]
        after = (torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
        assert (False, True, False, torch.float32) == (*after, torch.get_default_dtype())

    def test_tracks_no_gradient(self, record: Record, x: torch.Tensor) -> None:
        """A replay in grad mode, of operations on what has come to require a gradient, builds no backward pass."""
        made = []
        graph = record(lambda: made.append(x.mul_(2) + 1))
        x.requires_grad_()
        graph.replay()
        assert ([3] * 4, None, True) == (made[0].tolist(), made[0].grad_fn, x.is_leaf)

    def test_checks_the_first_replay_against_the_fake_kernel(self, record: Record, x: torch.Tensor) -> None:
        """A fake kernel that promised another shape is found before anybody reads the output."""
        graph = record(lambda: liar(x))
        with pytest.raises(ReplayFailed, match=r"liar.* returned \(1,\) float32 where its fake kernel promised \(4,\)"):
            graph.replay()


class TestAutograd:
    def test_refuses_to_record_gradients(self, backend: EmulatedBackend, record: Record, x: torch.Tensor) -> None:
        """A parameter in grad mode is refused with the way out; without grad mode it is recorded."""
        weight = nn.Parameter(torch.ones(4))
        backend.adopt([weight])
        with pytest.raises(CaptureUnsupported, match="'other' requires a gradient") as caught:
            record(lambda: x * weight)
        assert "torch.inference_mode()" in caught.value.hint
        for mode in (torch.no_grad(), torch.inference_mode()):
            with mode:
                assert 1 == len(record(lambda: x * weight).nodes)

    def test_detached_parameters_are_welcome(self, backend: EmulatedBackend, record: Record, x: torch.Tensor) -> None:
        """Grad mode alone is no reason to refuse."""
        weight = nn.Parameter(torch.ones(4))
        backend.adopt([weight])
        assert 1 == len(record(lambda: x * weight.detach()).nodes)


class TestAutocast:
    @pytest.fixture(params=[torch.no_grad, torch.inference_mode], ids=["no_grad", "inference"])
    def mode(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Without gradients, one way or the other."""
        with request.param():
            yield

    @pytest.mark.usefixtures("mode")
    @pytest.mark.parametrize("inside", [False, True])
    @pytest.mark.parametrize("step", [nn.Linear(4, 4), outer], ids=["linear", "einsum"])
    def test_casts_as_eager(
        self, backend: EmulatedBackend, record: Record, x: torch.Tensor, step: Callable[..., torch.Tensor], inside: bool
    ) -> None:
        """Autocast around or inside a recording gives eager's dtypes and bits."""
        if isinstance(step, nn.Module):
            backend.adopt(step.parameters())
        made = []

        def cast() -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return step(x) + step(x)

        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
            graph = record(lambda: made.append(cast() if inside else step(x) + step(x)))
        graph.replay()
        expected = cast()
        assert expected.dtype is made[0].dtype
        assert torch.equal(expected, made[0])

    def test_leaves_no_cast_behind(self, backend: EmulatedBackend, record: Record, x: torch.Tensor) -> None:
        """What autocast cast in a recording is not found by eager code after it, nor the other way round."""
        linear = nn.Linear(4, 4)
        backend.adopt(linear.parameters())
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            linear(x)
            record(lambda: linear(x))
            assert not linear(x).isnan().any()


class TestCompile:
    def test_a_compiled_callable_is_recorded_operator_by_operator(self, record: Record, x: torch.Tensor) -> None:
        """Inside a recording it runs its eager code; afterwards it compiles as ever."""
        compiled: list[object] = []

        def compiler(module: torch.fx.GraphModule, _: object) -> Callable[..., object]:
            compiled.append(module)
            return module.forward

        step = torch.compile(lambda x: torch.sin(x) * 2, backend=compiler)
        made = []
        graph = record(lambda: made.append(step(x)))
        assert (["aten.sin.default", "aten.mul.Tensor"], []) == ([node.operator for node in graph.nodes], compiled)
        graph.replay()
        assert torch.equal(step(x), made[0])
        assert 1 == len(compiled)
