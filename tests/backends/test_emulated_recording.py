"""What a recording does and does not do, beside computing the right values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.errors import CaptureUnsupported

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


@torch.library.custom_op("tsgraph_tests::counted", mutates_args=())
def counted(x: torch.Tensor) -> int:
    """A kernel that returns a number."""
    return x.shape[0]


counted.register_fake(lambda x: x.shape[0])


@pytest.fixture
def backend() -> EmulatedBackend:
    """A fresh one."""
    RAN.clear()
    return EmulatedBackend()


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

    def test_refuses_an_operator_without_a_fake_kernel(self, record: Record, x: torch.Tensor) -> None:
        """What nobody described is refused by name, with the way to describe it."""
        with pytest.raises(CaptureUnsupported, match=r"tsgraph_tests\.unknown\.default .*no fake kernel") as caught:
            record(lambda: unknown(x))
        assert "register_fake" in caught.value.hint

    def test_refuses_an_operator_that_returns_a_number(self, record: Record, x: torch.Tensor) -> None:
        """It would have to run for the host to know, also where its fake kernel gives one."""
        with pytest.raises(CaptureUnsupported, match=r"tsgraph_tests\.counted\.default .*returns a number to the host"):
            record(lambda: counted(x))

    def test_modes_of_the_users_see_what_they_would_see(self, record: Record, x: torch.Tensor) -> None:
        """A dispatch mode inside the block is handed the step's operators, and nothing of the recording's own."""
        seen = []

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        def step() -> None:
            with Operators():
                (x.view(2, 2) + torch.zeros(2, device=x.device)).relu_()

        graph = record(step)
        assert ["aten.view.default", "aten.zeros.default", "aten.add.Tensor", "aten.relu_.default"] == seen
        assert seen[1:] == [node.operator for node in graph.nodes]

    def test_a_device_context_names_the_device(self, backend: EmulatedBackend, record: Record, x: torch.Tensor) -> None:
        """Inside `with torch.device(...)` in the step, factories make device tensors; around the block they do not."""
        made = []

        def step() -> None:
            with torch.device(x.device):
                made.append(torch.zeros(2))

        record(step)
        with torch.device("cpu"):
            record(lambda: made.append(torch.zeros(2)))
        assert [True, False] == list(map(backend.holds, made))


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
        assert made[0].isnan().all()
        graph.replay()
        assert (False, [1] * 4) == (backend.holds(made[0]), made[0].tolist())

    def test_moving_nowhere_copies_nothing(self, record: Record, x: torch.Tensor) -> None:
        """`to` the device on a device tensor, and to the host on a host tensor, return their argument."""
        host, same = torch.zeros(2), []
        graph = record(lambda: same.append((x.to(x.device) is x, x.to(x) is x, host.to("cpu") is host)))
        assert ([(True, True, True)], ()) == (same, graph.nodes)
