"""What the driver tells of a graph, through a stand-in for its library; and that it never costs a recording."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tsgraph.backends import driver
from tsgraph.backends.driver import NotTold, demangled, list_nodes, nodes_of
from tsgraph.protocols.backend import GraphNode

STREAM, GRAPH = 7, 0xAB
MANGLED = b"_ZN2at6native11FillFunctorIfE4callEv"


class Library:
    """The driver's functions over a list of nodes: the number of a kind, or a kernel's name and grid."""

    def __init__(self, *nodes: Any) -> None:
        self.nodes = nodes

    def cuStreamGetCaptureInfo_v3(self, stream: Any, status: Any, _: None, graph: Any, *rest: None) -> int:  # noqa: N802
        assert (STREAM, (None, None, None)) == (stream.value, rest)
        status._obj.value, graph._obj.value = 1, GRAPH
        return 0

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:  # noqa: N802
        assert GRAPH == graph.value
        count._obj.value = len(self.nodes)
        for at in range(0 if nodes is None else len(self.nodes)):
            nodes[at] = at + 1
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:  # noqa: N802
        found = self.nodes[node.value - 1]
        kind._obj.value = found if isinstance(found, int) else 0
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node: Any, parameters: Any) -> int:  # noqa: N802
        parameters._obj.function = node.value
        for axis, length in enumerate(self.nodes[node.value - 1][1]):
            parameters._obj.grid[axis] = length
        return 0

    def cuFuncGetName(self, name: Any, function: Any) -> int:  # noqa: N802
        name._obj.value = self.nodes[function.value - 1][0]
        return 0


KERNEL = (b"scale_rows", (4, 2, 1))


def test_nodes_are_told_by_kind_kernels_by_name_and_grid() -> None:
    """In the driver's order; a kind that is new has its number."""
    library = Library(1, KERNEL, 3, 99, (MANGLED, (1, 1, 1)))
    assert (
        GraphNode("memcpy"),
        GraphNode("kernel", "scale_rows", (4, 2, 1)),
        GraphNode("host"),
        GraphNode("kind 99"),
        GraphNode("kernel", "at::native::FillFunctor<float>::call()", (1, 1, 1)),
    ) == nodes_of(library, STREAM)
    assert () == nodes_of(Library(), STREAM)


def test_an_older_driver_is_asked_by_the_older_call() -> None:
    """The second version has one output less."""

    class Older(Library):
        cuStreamGetCaptureInfo_v3: Any = None  # noqa: N815

        def cuStreamGetCaptureInfo_v2(self, *words: Any) -> int:  # noqa: N802
            assert 6 == len(words)
            return Library.cuStreamGetCaptureInfo_v3(self, *words, None)

    assert (GraphNode("memset"),) == nodes_of(Older(2), STREAM)


def test_a_driver_without_names_still_counts() -> None:
    """Before CUDA 12.3 a kernel has its grid alone; one whose parameters are refused has neither."""

    class Nameless(Library):
        cuFuncGetName: Any = None  # noqa: N815

        def __getattribute__(self, name: str) -> Any:
            if name == "cuFuncGetName":
                raise AttributeError(name)
            return super().__getattribute__(name)

    class Refusing(Library):
        def cuGraphKernelNodeGetParams_v2(self, *_: Any) -> int:  # noqa: N802
            return 801

    assert (GraphNode("kernel", "", (4, 2, 1)),) == nodes_of(Nameless(KERNEL), STREAM)
    assert (GraphNode("kernel"),) == nodes_of(Refusing(KERNEL), STREAM)


def test_a_kernel_of_a_library_is_named_by_its_own_call() -> None:
    """What was launched without a function handle."""

    class ByKernel(Library):
        def cuGraphKernelNodeGetParams_v2(self, node: Any, parameters: Any) -> int:  # noqa: N802
            super().cuGraphKernelNodeGetParams_v2(node, parameters)
            parameters._obj.function, parameters._obj.kernel = None, node.value
            return 0

        def cuKernelGetName(self, name: Any, kernel: Any) -> int:  # noqa: N802
            return self.cuFuncGetName(name, kernel)

    assert (GraphNode("kernel", "scale_rows", (4, 2, 1)),) == nodes_of(ByKernel(KERNEL), STREAM)


def test_names_have_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a graph of thousands of kernels the first are named, and all are counted."""
    monkeypatch.setattr(driver, "MOST_NAMED", 2)
    told = nodes_of(Library(*[KERNEL] * 5), STREAM)
    assert ["scale_rows", "scale_rows", "", "", ""] == [node.name for node in told]


@pytest.mark.parametrize("silent", ["error", "nothing recorded", "no library", "no symbol", "a crash"])
def test_a_driver_that_does_not_tell_costs_nothing(monkeypatch: pytest.MonkeyPatch, silent: str) -> None:
    """None, whatever goes wrong."""

    class Erring(Library):
        def cuStreamGetCaptureInfo_v3(self, stream: Any, status: Any, _: None, graph: Any, *rest: None) -> int:  # noqa: N802
            if silent == "a crash":
                raise ZeroDivisionError
            return 700 if silent == "error" else 0

    def library() -> Any:
        if silent == "no library":
            raise OSError("libcuda.so.1: cannot open shared object file")
        return object() if silent == "no symbol" else Erring()

    monkeypatch.setattr(driver, "_library", library)
    assert list_nodes(STREAM) is None


def test_a_stream_that_records_nothing_has_no_nodes() -> None:
    """The real driver, or none: either way nothing is told, and nothing fails."""
    assert list_nodes(0) is None


def test_an_error_of_the_driver_is_its_number() -> None:
    """For whoever asks for the nodes himself."""

    class Erring(Library):
        def cuGraphGetNodes(self, *_: Any) -> int:  # noqa: N802
            return 901

    with pytest.raises(NotTold, match="901"):
        nodes_of(Erring(), STREAM)


def test_names_are_demangled_where_that_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no name of C++, or cannot be read, stays as it is."""
    assert ["triton_poi_fused_0", "_Zwrong"] == [demangled(name) for name in ("triton_poi_fused_0", "_Zwrong")]
    monkeypatch.setattr(driver, "_demangler", lambda: None)
    demangled.cache_clear()
    assert MANGLED.decode() == demangled(MANGLED.decode())
    demangled.cache_clear()


def test_parameters_are_laid_out_as_the_driver_has_them() -> None:
    """Offsets of CUDA_KERNEL_NODE_PARAMS_v2, in bytes."""
    offsets = {name: getattr(driver.KernelParameters, name).offset for name, _ in driver.KernelParameters._fields_}
    assert (0, 8, 20, 32, 40, 48, 56, 64) == tuple(offsets.values())[:8]
    assert ctypes.sizeof(driver.KernelParameters) >= 72
