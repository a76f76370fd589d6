"""What the driver tells of a graph, through a stand-in for its library; and that it never costs a recording."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tsgraph.backends import driver
from tsgraph.backends.driver import NotTold, demangled, list_nodes, nodes_of
from tsgraph.backends.reach import Blocks, Handed
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
        if isinstance(self.nodes[node.value - 1], int):
            return 1  # CUDA_ERROR_INVALID_VALUE: no kernel
        parameters._obj.function = self.nodes.index(self.nodes[node.value - 1]) + 1
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


def test_kernels_that_are_alike_are_told_once() -> None:
    """One that was launched a thousand times is one object; another grid, or another function, is another."""
    wider, other = (KERNEL[0], (8, 2, 1)), (b"other", KERNEL[1])
    told = nodes_of(Library(*[KERNEL] * 3, wider, other), STREAM)
    assert [("scale_rows", (4, 2, 1))] * 3 == [(node.name, node.grid) for node in told[:3]]
    assert 1 == len({id(node) for node in told[:3]})
    assert [("scale_rows", (8, 2, 1)), ("other", (4, 2, 1))] == [(node.name, node.grid) for node in told[3:]]


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


# -- what nodes are handed --------------------------------------------------------------------------------------------

WEIGHT, ROWS, KV = 0x7F0000000000, 0x7F0000001000, 0x7F0000002000


class Handing(Library):
    """Kernels have one parameter each, the third of their words. Copies and fills have addresses, too."""

    asked = 0

    def __init__(self, *nodes: Any) -> None:
        super().__init__(*nodes)
        self.values = [ctypes.c_uint64(node[2]) if isinstance(node, tuple) else None for node in nodes]
        self.arrays = [value and (ctypes.c_void_p * 1)(ctypes.addressof(value)) for value in self.values]

    def cuGraphKernelNodeGetParams_v2(self, node: Any, parameters: Any) -> int:  # noqa: N802
        code = super().cuGraphKernelNodeGetParams_v2(node, parameters)
        if not code:
            parameters._obj.parameters = ctypes.addressof(self.arrays[node.value - 1])
        return code

    def cuFuncGetParamInfo(self, function: Any, at: Any, offset: Any, size: Any) -> int:  # noqa: N802
        self.asked += 1
        offset._obj.value, size._obj.value = 0, 8
        return 0 if at.value == 0 else 1

    def cuGraphMemcpyNodeGetParams(self, node: Any, told: Any) -> int:  # noqa: N802
        ctypes.c_uint64.from_buffer(told._obj, 48).value = WEIGHT  # srcDevice
        ctypes.c_uint64.from_buffer(told._obj, 136).value = ROWS  # dstDevice
        ctypes.c_uint64.from_buffer(told._obj, 0).value = KV  # an offset, and no address
        return 0

    def cuGraphMemsetNodeGetParams(self, node: Any, told: Any) -> int:  # noqa: N802
        ctypes.c_uint64.from_buffer(told._obj).value = KV
        return 0


def reach_of(library: Any) -> dict[int, str] | None:
    """What is handed to the nodes of the graph under way, and by which first; None where they do not tell."""
    handed = Handed(Blocks.of([(at, 256) for at in (WEIGHT, ROWS, KV)]))
    nodes_of(library, STREAM, handed)
    found = handed.reach(lambda: Blocks.of(()), ())
    return None if found is None else {address: each.node for address, each in found.items()}


def test_kernels_tell_what_they_are_handed() -> None:
    """Alike or not, each has parameters of its own; how they lie is asked once for a kernel of the graph."""
    library = Handing((*KERNEL, ROWS + 8), (*KERNEL, WEIGHT), (MANGLED, (1, 1, 1), ROWS), (*KERNEL, WEIGHT))
    library.nodes = tuple(node if node[0] == MANGLED else (*node[:2], 0) for node in library.nodes)
    assert {ROWS: "scale_rows", WEIGHT: "scale_rows"} == reach_of(library)
    assert 4 == library.asked


def test_copies_and_fills_tell_what_they_are_handed() -> None:
    """Where they read and write, by their kinds: they have no names."""
    assert {WEIGHT: "memcpy", ROWS: "memcpy"} == reach_of(Handing(1))
    assert {KV: "memset"} == reach_of(Handing(2))
    assert {} == reach_of(Handing(3, 5, 6, 7, 8, 9, 10, 11))


@pytest.mark.parametrize("kind", [4, 12, 13, 99])
def test_a_node_that_hides_others_is_not_told(kind: int) -> None:
    """Graphs in graphs, operations on memory, conditions, and what is new: whatever else the graph has."""
    assert reach_of(Handing((*KERNEL, ROWS), kind)) is None


@pytest.mark.parametrize("lacks", ["cuFuncGetParamInfo", "cuGraphMemcpyNodeGetParams", "cuGraphMemsetNodeGetParams"])
def test_a_driver_that_lacks_a_call_does_not_tell(lacks: str) -> None:
    """Before CUDA 12.4; the nodes are told all the same."""

    class Lacking(Handing):
        def __getattribute__(self, name: str) -> Any:
            if name == lacks:
                raise AttributeError(name)
            return super().__getattribute__(name)

    library = Lacking((*KERNEL, ROWS), 1, 2)
    assert reach_of(library) is None
    assert ["kernel", "memcpy", "memset"] == [node.kind for node in nodes_of(library, STREAM)]


def test_kernels_past_the_cap_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at them."""
    monkeypatch.setattr(driver, "MOST_NAMED", 1)
    assert {ROWS: "scale_rows"} == reach_of(Handing((*KERNEL, ROWS)))
    assert reach_of(Handing((*KERNEL, ROWS), (*KERNEL, ROWS))) is None


def test_a_kernel_without_a_name_is_called_by_its_kind() -> None:
    """It is handed memory like any other, here a kernel of a library."""

    class ByKernel(Handing):
        cuKernelGetParamInfo = Handing.cuFuncGetParamInfo  # noqa: N815

        def cuGraphKernelNodeGetParams_v2(self, node: Any, parameters: Any) -> int:  # noqa: N802
            code = super().cuGraphKernelNodeGetParams_v2(node, parameters)
            parameters._obj.function, parameters._obj.kernel = None, node.value
            return code

    assert {ROWS: "kernel"} == reach_of(ByKernel((*KERNEL, ROWS)))


def test_nothing_is_told_of_a_pass_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some nodes may have told before."""

    class Erring(Handing):
        def cuGraphNodeGetType(self, *_: Any) -> int:  # noqa: N802
            return 700

    monkeypatch.setattr(driver, "_library", lambda: Erring((*KERNEL, ROWS), 3))
    handed = Handed(Blocks.of([(ROWS, 256)]))
    assert list_nodes(STREAM, handed) is None
    assert handed.reach(lambda: Blocks.of(()), ()) is None
