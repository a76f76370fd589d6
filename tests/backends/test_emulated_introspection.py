"""The recorded graph as data: nodes with their operands by storage, a table, a chart, plain JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import mermaidx
import pytest
import torch

from tsgraph import GraphRuntime, Rows
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.errors import CallerError

Record = Callable[[Callable[[], object]], EmulatedGraph]
Facts = list[tuple[str, tuple[int, ...], torch.dtype, str]]


@torch.library.custom_op("tsgraph_tests::scale_into", mutates_args=("out",))
def scale_into(x: torch.Tensor, out: torch.Tensor, by: torch.Tensor) -> None:
    """Writes into an argument and returns nothing."""
    out.copy_(x * by)


@pytest.fixture
def backend() -> EmulatedBackend:
    """A fresh one."""
    return EmulatedBackend()


@pytest.fixture
def x(backend: EmulatedBackend) -> torch.Tensor:
    """A static input of two rows of three ones."""
    return backend.allocate((2, 3), torch.float32, 1)


@pytest.fixture
def record(backend: EmulatedBackend) -> Record:
    """Records a function into a pool of its own."""

    def record(step: Callable[[], object]) -> EmulatedGraph:
        with backend.record(backend.pool()) as graph:
            step()
        return graph

    return record


def reads(graph: EmulatedGraph, number: int) -> Facts:
    """What a node reads: name, shape, dtype, storage."""
    return [(o.name, o.shape, o.dtype, str(o.storage)) for o in graph.nodes[number].inputs]


def writes(graph: EmulatedGraph, number: int) -> Facts:
    """What a node writes, likewise."""
    return [(o.name, o.shape, o.dtype, str(o.storage)) for o in graph.nodes[number].outputs]


class TestNodes:
    def test_operands_have_name_shape_dtype_and_storage(self, record: Record, x: torch.Tensor) -> None:
        """Storages are numbered as they are met, external and pool apart; views of one storage share its number."""
        graph = record(lambda: (x.t() @ x).topk(2))
        f32 = torch.float32
        assert [("self", (3, 2), f32, "E0"), ("mat2", (2, 3), f32, "E0")] == reads(graph, 0)
        assert [("", (3, 3), f32, "P1")] == writes(graph, 0)
        assert [("self", (3, 3), f32, "P1")] == reads(graph, 1)
        assert [("", (3, 2), f32, "P2"), ("", (3, 2), torch.int64, "P3")] == writes(graph, 1)

    def test_what_is_changed_in_place_is_read_and_written(self, record: Record, x: torch.Tensor) -> None:
        """In-place operators, and custom ones that return nothing, write into the storage that they read."""
        other = torch.empty(2, 3)

        def step() -> None:
            out = torch.empty_like(x)
            scale_into(x, out, torch.tensor(2.0))
            x[1].add_(out[0])

        graph = record(step)
        assert ["x", "out", "by"] == [operand.name for operand in graph.nodes[0].inputs]
        assert [("out", (2, 3), torch.float32, "P1")] == writes(graph, 0)
        assert ["E0", "P1"] == [storage for *_, storage in reads(graph, 1)]
        assert [("self", (3,), torch.float32, "E0")] == writes(graph, 1)
        assert other.shape == x.shape

    def test_a_given_output_is_only_written(self, record: Record, x: torch.Tensor) -> None:
        """What `out=` holds before does not matter, so it is no input."""
        graph = record(lambda: torch.exp(x, out=torch.empty(2, 3, device=x.device)))
        assert [("self", "E0")] == [(name, storage) for name, *_, storage in reads(graph, 0)]
        assert [("out", "P1")] == [(name, storage) for name, *_, storage in writes(graph, 0)]

    @pytest.mark.parametrize("name", ["zero_", "normal_", "random_"])
    def test_what_is_overwritten_is_not_read(self, record: Record, x: torch.Tensor, name: str) -> None:
        """An operator that fills its argument whatever it held reads nothing."""
        graph = record(getattr(x, name))
        assert ([], ["E0"]) == (reads(graph, 0), [storage for *_, storage in writes(graph, 0)])

    def test_a_factory_reads_nothing(self, record: Record, x: torch.Tensor) -> None:
        """Of the tensor that it is like, it takes the shape."""
        graph = record(lambda: (torch.ones_like(x), torch.arange(3, device=x.device)))
        assert ([], []) == (reads(graph, 0), reads(graph, 1))

    def test_the_host_is_told_apart(self, backend: EmulatedBackend, record: Record, x: torch.Tensor) -> None:
        """Pinned memory and baked scalars lie on the host."""
        pinned = backend.pin((2, 3), torch.float32)
        graph = record(lambda: (x.copy_(pinned, non_blocking=True), x * torch.tensor(3.0)))
        assert [("src", "H0")] == [(name, storage) for name, *_, storage in reads(graph, 0)]
        assert [("self", "E1"), ("other", "H2")] == [(name, storage) for name, *_, storage in reads(graph, 1)]

    def test_a_listing_tells_what_a_device_would(
        self, backend: EmulatedBackend, record: Record, x: torch.Tensor
    ) -> None:
        """Kernels by operator, copies between host and device, host functions by name; nothing has a grid."""
        pinned = backend.pin((2, 3), torch.float32)

        def step() -> None:
            x.copy_(pinned, non_blocking=True)
            backend.host_function(print)
            x.mul_(torch.tensor(3.0)).copy_(x.t().reshape(2, 3))

        assert [
            ("memcpy", "aten.copy_.default"),
            ("host", "print"),
            ("kernel", "aten.mul_.Tensor"),
            ("kernel", "aten.clone.default"),
            ("kernel", "aten.copy_.default"),
        ] == [(node.kind, node.name) for node in record(step).listing if node.grid is None]

    def test_a_graph_reaches_the_devices_storages_outside_of_its_pool(
        self, backend: EmulatedBackend, x: torch.Tensor
    ) -> None:
        """By the operator that used each first: of other pools, too. Not those of the host, nor what its pool has."""
        pinned, pool, beside = backend.pin((2, 3), torch.float32), backend.pool(), backend.allocate((6,), x.dtype, 1)
        graphs: list[EmulatedGraph] = []

        def recorded(pool: Any, step: Callable[[], torch.Tensor]) -> torch.Tensor:
            with backend.record(pool) as graph:
                returned = step()
            graphs.append(graph)
            return returned

        here = recorded(pool, lambda: x + 1)
        there = recorded(backend.pool(), lambda: x + 1)

        def step() -> torch.Tensor:
            x.copy_(pinned, non_blocking=True)
            return torch.ones_like(beside).view(2, 3) + x[1:] + here + there

        made = recorded(pool, step)
        copied, added = ("aten.copy_.default", 24), ("aten.add.Tensor", 24)
        reach = graphs[-1].reach
        assert {x.data_ptr(): copied, there.data_ptr(): added} == {at: (r.node, r.bytes) for at, r in reach.items()}
        assert made.data_ptr() not in reach
        assert not any(each.own for each in reach.values())

    def test_lists_are_taken_apart(self, record: Record, x: torch.Tensor) -> None:
        """Each tensor of a list is an operand, of what is read and of what is written."""
        graph = record(lambda: torch._foreach_mul_([x[0], x[1]], 2))
        assert [("self", (3,)), ("self", (3,))] == [facts[:2] for facts in reads(graph, 0)]
        assert reads(graph, 0) == writes(graph, 0)

    def test_memory_that_is_given_out_again_is_another_storage(self, record: Record, x: torch.Tensor) -> None:
        """A dropped intermediate and what comes after it have numbers of their own, wherever they lie."""

        def step() -> None:
            for _ in range(50):
                x.exp()  # dropped at once, so that its memory may be used again

        graph = record(step)
        assert 50 == len({storage for number in range(50) for *_, storage in writes(graph, number)})

    def test_equal_recordings_have_equal_descriptions(self, record: Record, x: torch.Tensor) -> None:
        """Numbers do not depend on addresses."""

        def step() -> None:
            (x.softmax(-1) @ x.t()).argmax(-1)

        assert record(step).describe() == record(step).describe()

    def test_holds_no_tensor(self, record: Record, x: torch.Tensor) -> None:
        """Nodes are plain facts: they keep no memory alive after the release of their graph."""
        graph = record(lambda: x + 1)
        nodes = graph.nodes
        graph.release()
        assert () == graph.nodes
        assert "aten.add.Tensor" in str(nodes[0])


class TestViews:
    def test_describes_as_json(self, record: Record, x: torch.Tensor) -> None:
        """Everything comes back from JSON as it went."""
        graph = record(lambda: x + 1)
        described = graph.describe()
        assert described == json.loads(json.dumps(described))
        assert [{"id": 0, "place": "external", "bytes": 24}] == described["storages"][:1]
        assert (graph.bytes, ["external", "pool"]) == (
            described["bytes"],
            [storage["place"] for storage in described["storages"]],
        )
        (node,) = described["nodes"]
        assert ("aten.add.Tensor", None) == (node["operator"], node["stream"])
        assert [{"name": "self", "shape": [2, 3], "dtype": "float32", "storage": 0}] == node["inputs"]
        assert node["line"].startswith(__file__)

    def test_tabulates(self, record: Record, x: torch.Tensor) -> None:
        """A row for each node, with shapes, dtypes, storages and the file and line of the step; no wider than asked."""
        graph = record(lambda: (x.t() @ x).sum(-1))
        table = graph.table(width=100)
        head, first, second, third = table.splitlines()
        assert ["#", "operator", "reads", "writes", "line"] == head.split()
        assert "0  aten.mm.default" in first
        assert "E0 3×2 float32" in first
        assert "P1 3×3 float32" in first
        assert "test_emulated_introspection.py:" in first
        assert "E0 2×3 float32" == second.strip()
        assert "aten.sum.dim_IntList" in third
        assert 60 >= max(map(len, graph.table(width=60).splitlines()))

    def test_tells_streams_where_there_are_several(self) -> None:
        """A column for the stream appears with the first node that has one."""
        from tsgraph.backends.emulated.graph_views import graph_table
        from tsgraph.backends.emulated.trace import Node

        nodes = [Node("one", "a.py:1"), Node("two", "a.py:2", stream=1)]
        assert [["0", "0", "one", "a.py:1"], ["1", "1", "two", "a.py:2"]] == [
            line.split() for line in graph_table(nodes, 80).splitlines()[1:]
        ]

    def test_charts_the_flow_of_data(self, record: Record, x: torch.Tensor) -> None:
        """Arrows lead from the last writer of a storage to its reader; Mermaid itself draws it."""
        graph = record(lambda: x.copy_(x.exp() * x))
        chart = graph.to_mermaid()
        assert [
            "E0 -->|E0 2×3 float32| n0",
            "n0 -->|P1 2×3 float32| n1",
            "E0 -->|E0 2×3 float32| n1",
            "n1 -->|P2 2×3 float32| n2",
            "n2 -.-> E0",
        ] == [line.strip() for line in chart.splitlines() if "->" in line]
        assert "aten.exp.default" in mermaidx.render(chart).svg()

    def test_charts_a_reader_of_memory_that_nothing_wrote(self, record: Record, x: torch.Tensor) -> None:
        """It has no arrow from anywhere."""
        chart = record(lambda: torch.empty_like(x).add_(x)).to_mermaid()
        assert ["E1 -->|E1 2×3 float32| n0"] == [line.strip() for line in chart.splitlines() if "-->" in line]

    def test_refuses_to_chart_a_large_graph(self, record: Record, x: torch.Tensor) -> None:
        """The error says how many nodes there are, what the limit is, and what to use instead."""

        def step() -> None:
            for _ in range(3):
                x.add_(1)

        graph = record(step)
        with pytest.raises(CallerError, match=r"a graph of 3 nodes .* the limit is 2\n  fix: read table\(\)"):
            graph.to_mermaid(limit=2)
        assert graph.to_mermaid(limit=3).startswith("flowchart TD\n")

    def test_is_reached_from_a_slot(self) -> None:
        """A captured slot of a runtime on the emulated backend tabulates its graph."""
        runtime = GraphRuntime.for_step(
            lambda x: x * 2,
            inputs={"x": Rows(torch.float32, pad=0)},
            outputs="request",
            sizes=(2,),
            backend="emulated",
        )
        runtime.capture()
        graph: Any = runtime.slots["default", 2].graph
        assert "aten.mul.Tensor" in graph.table()
