"""What CUDA's driver tells of a graph that is being recorded, through ctypes: its nodes, and the names of kernels.

A recording must not fail over its receipt. Whatever the driver lacks or refuses here is not told, and that is all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from tsgraph.protocols.backend import GraphNode

KINDS = (
    "kernel", "memcpy", "memset", "host", "graph", "empty", "wait event", "event record", "semaphore signal",
    "semaphore wait", "allocation", "free", "memory operations", "conditional",
)  # fmt: skip
"""Kinds of nodes, by the driver's numbers (`CUgraphNodeType`)."""

MOST_NAMED = 4096
"""How many kernels of a graph are asked for name and grid: a few microseconds each."""

_KERNEL = KINDS.index("kernel")


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


class NotTold(Exception):
    """The driver answered with an error."""


def list_nodes(stream: int) -> tuple[GraphNode, ...] | None:
    """The nodes that are in the graph which the CUDA stream of this handle records; None where the driver is silent."""
    try:
        return nodes_of(_library(), stream)
    except Exception:  # noqa: BLE001 - a receipt that knows less is better than no recording
        return None


def nodes_of(library: Any, stream: int) -> tuple[GraphNode, ...]:
    """The nodes, by the driver's own `library`. The order is that of recording as far as the driver keeps it.

    Raises: NotTold, AttributeError for a driver without the functions.
    """
    graph = _graph_under_way(library, stream)
    count = ctypes.c_size_t()
    _check(library.cuGraphGetNodes(graph, None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    if count.value:
        _check(library.cuGraphGetNodes(graph, nodes, ctypes.byref(count)))
    return tuple(_told(library, [ctypes.c_void_p(node) for node in nodes]))


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


def _told(library: Any, nodes: list[ctypes.c_void_p]) -> Iterator[GraphNode]:
    named = 0
    for node in nodes:
        kind = ctypes.c_int()
        _check(library.cuGraphNodeGetType(node, ctypes.byref(kind)))
        if kind.value == _KERNEL and named < MOST_NAMED:
            named += 1
            yield _kernel(library, node)
        else:
            yield GraphNode(KINDS[kind.value] if kind.value in range(len(KINDS)) else f"kind {kind.value}")


def _kernel(library: Any, node: ctypes.c_void_p) -> GraphNode:
    parameters = KernelParameters()
    try:
        _check(library.cuGraphKernelNodeGetParams_v2(node, ctypes.byref(parameters)))
    except (NotTold, AttributeError):
        return GraphNode("kernel")
    return GraphNode("kernel", _name(library, parameters), tuple(parameters.grid))


def _name(library: Any, parameters: KernelParameters) -> str:
    """The kernel's name; empty before CUDA 12.3."""
    named = parameters.function
    asked, handle = ("cuFuncGetName", named) if named else ("cuKernelGetName", parameters.kernel)
    name = ctypes.c_char_p()
    try:
        _check(getattr(library, asked)(ctypes.byref(name), ctypes.c_void_p(handle)))
    except (NotTold, AttributeError):
        return ""
    return demangled((name.value or b"").decode(errors="replace"))


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
