"""What CUDA's driver tells of a graph that is being recorded, through ctypes: nodes, names of kernels, what they get.

A recording must not fail over its receipt. Whatever the driver lacks or refuses here is not told, and that is all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from tsgraph.backends.reach import Handed, Parameters, parameters_of
from tsgraph.protocols.backend import GraphNode

KINDS = (
    "kernel", "memcpy", "memset", "host", "graph", "empty", "wait event", "event record", "semaphore signal",
    "semaphore wait", "allocation", "free", "memory operations", "conditional",
)  # fmt: skip
"""Kinds of nodes, by the driver's numbers (`CUgraphNodeType`)."""

_UNHANDED = frozenset(KINDS[3:4] + KINDS[5:12])
"""Nodes that are handed no memory of the device, or memory that is the graph's alone."""

_ADDRESSES = {
    "memcpy": ("cuGraphMemcpyNodeGetParams", (slice(40, 56), slice(128, 144))),
    "memset": ("cuGraphMemsetNodeGetParams", (slice(0, 8),)),
}
"""Copies and fills: which call tells of them, and where in its answer (`CUDA_MEMCPY3D`: of the host, of the device; of
source and target) addresses are."""

MOST_NAMED = 4096
"""How many nodes of a graph are asked for a name, a grid and parameters: a few microseconds each."""


class KernelParameters(ctypes.Structure):
    """`CUDA_KERNEL_NODE_PARAMS_v2`, with room for what later versions may add."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("later", ctypes.c_char * 128),
    )


_GRID_ENDS = KernelParameters.block.offset


class NotTold(Exception):
    """The driver answered with an error."""


def list_nodes(stream: int, handed: Handed | None = None) -> tuple[GraphNode, ...] | None:
    """The nodes that are in the graph which the CUDA stream of this handle records; None where the driver is silent.

    What they are handed is added to `handed`.
    """
    try:
        return nodes_of(_library(), stream, handed)
    except Exception:  # noqa: BLE001 - a receipt that knows less is better than no recording
        return None


def nodes_of(library: Any, stream: int, handed: Handed | None = None) -> tuple[GraphNode, ...]:
    """The nodes, by the driver's own `library`. The order is that of recording as far as the driver keeps it.

    Raises: NotTold, AttributeError for a driver without the functions.
    """
    graph = _graph_under_way(library, stream)
    count = ctypes.c_size_t()
    _check(library.cuGraphGetNodes(graph, None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    if count.value:
        _check(library.cuGraphGetNodes(graph, nodes, ctypes.byref(count)))
    told = tuple(_told(library, [ctypes.c_void_p(node) for node in nodes], handed))
    if handed is not None:
        handed.close()
    return told


def _graph_under_way(library: Any, stream: int) -> ctypes.c_void_p:
    """The graph of a capture, which may be looked at while it grows. The third version of the call knows all edges."""
    status, graph = ctypes.c_int(), ctypes.c_void_p()
    third = getattr(library, "cuStreamGetCaptureInfo_v3", None)
    call = library.cuStreamGetCaptureInfo_v2 if third is None else third
    rest = (None,) * (2 if third is None else 3)
    _check(call(ctypes.c_void_p(stream), ctypes.byref(status), None, ctypes.byref(graph), *rest))
    if graph.value is None:
        raise NotTold("the stream records nothing")
    return graph


def _told(library: Any, nodes: list[ctypes.c_void_p], handed: Handed | None) -> Iterator[GraphNode]:
    kernels = Kernels(library, handed)
    for at, node in enumerate(nodes):
        yield (kernels.told(node) if at < MOST_NAMED else None) or _other(library, node, handed)


def _other(library: Any, node: ctypes.c_void_p, handed: Handed | None) -> GraphNode:
    """A node that is no kernel, or not told as one."""
    kind = _kind(library, node)
    if handed is not None:
        _read_other(library, node, kind, handed)
    return GraphNode(kind)


def _read_other(library: Any, node: ctypes.c_void_p, kind: str, handed: Handed) -> None:
    call, places = _ADDRESSES.get(kind, ("", ()))
    told = (ctypes.c_char * 512)()
    if call and not getattr(library, call, _refused)(node, ctypes.byref(told)):
        handed.add(kind, [told.raw[place] for place in places])
    elif kind not in _UNHANDED:
        handed.miss()


def _kind(library: Any, node: ctypes.c_void_p) -> str:
    kind = ctypes.c_int()
    _check(library.cuGraphNodeGetType(node, ctypes.byref(kind)))
    return KINDS[kind.value] if kind.value in range(len(KINDS)) else f"kind {kind.value}"


class Kernels:
    """Tells the kernels of one graph. Most nodes are kernels, and few are unlike all others: one call for each node.

    What is known of a function lives no longer than this: its handle may be another's when its module is unloaded.
    """

    def __init__(self, library: Any, handed: Handed | None) -> None:
        self._library, self._handed = library, handed
        self._ask = getattr(library, "cuGraphKernelNodeGetParams_v2", _refused)
        self._given = KernelParameters()
        self._reference = ctypes.byref(self._given)
        self._bytes = memoryview(self._given).cast("B")
        self._known: dict[bytes, tuple[GraphNode, Parameters | None]] = {}
        self._functions: dict[tuple[str, int | None], tuple[str, Parameters | None]] = {}

    def told(self, node: ctypes.c_void_p) -> GraphNode | None:
        """The node, if it is a kernel and the driver tells what its parameters are."""
        if self._ask(node, self._reference):
            return None
        told = self._bytes[:_GRID_ENDS].tobytes()
        known = self._known.get(told)
        if known is None:
            name, parameters = self._function()
            known = GraphNode("kernel", name, tuple(self._given.grid)), parameters
            if self._given.function:  # kernels of libraries have no such handle to be known by
                self._known[told] = known
        handed = self._handed
        if handed is not None:
            given = self._given
            handed.read(known[0].name or "kernel", known[1], given.parameters, given.extra)
        return known[0]

    def _function(self) -> tuple[str, Parameters | None]:
        """The name of the function, and how its parameters lie. It may be one of a library."""
        named = self._given.function
        kind, handle = ("cuFunc", named) if named else ("cuKernel", self._given.kernel)
        if (kind, handle) not in self._functions:
            pointer = ctypes.c_void_p(handle)
            parameters = None if self._handed is None else self._parameters(kind, pointer)
            self._functions[kind, handle] = self._name(kind, pointer), parameters
        return self._functions[kind, handle]

    def _parameters(self, kind: str, handle: ctypes.c_void_p) -> Parameters | None:
        """How parameters lie; None before CUDA 12.4."""
        ask = getattr(self._library, f"{kind}GetParamInfo", None)
        return None if ask is None else parameters_of(ask, handle)

    def _name(self, kind: str, handle: ctypes.c_void_p) -> str:
        """The kernel's name; empty before CUDA 12.3."""
        name = ctypes.c_char_p()
        try:
            _check(getattr(self._library, f"{kind}GetName")(ctypes.byref(name), handle))
        except (NotTold, AttributeError):
            return ""
        return demangled((name.value or b"").decode(errors="replace"))


def _refused(*_: Any) -> int:
    """In the place of a call that the driver lacks."""
    return 1


def _check(code: int) -> None:
    if code:
        raise NotTold(code)


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def demangled(name: str) -> str:
    """The name of a C++ function as it is written; any other name as it is."""
    call = _demangler()
    if call is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    text = call(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        _free(text)


@cache
def _demangler() -> Callable[..., int | None] | None:
    try:
        call: Any = getattr(ctypes.CDLL("libstdc++.so.6"), "__cxa_demangle")
    except (OSError, AttributeError):
        return None
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return call  # type: ignore[no-any-return]


def _free(memory: int) -> None:
    free = ctypes.CDLL(None).free
    free.argtypes, free.restype = [ctypes.c_void_p], None
    free(memory)
