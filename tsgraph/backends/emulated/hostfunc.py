"""Host functions: Python that a graph runs in order between its kernels, at each replay and never while recording.

As on a GPU, one that raises does not stop the graph: what comes after it runs, and the replay raises at its end. CUDA
runs them in a thread of the driver's, where nothing may call CUDA; here they run in the thread that replays, with grad
mode on and inference mode off, as in any fresh thread, and what would call the device is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import torch

from tsgraph.backends.blame import user_line
from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.dispatch_state import DispatchState
from tsgraph.backends.emulated.dispatcher import unseen_by_functions, unseen_by_operators
from tsgraph.backends.emulated.nodes import Launch
from tsgraph.backends.emulated.streams import access, current_stream
from tsgraph.backends.emulated.trace import Node
from tsgraph.backends.emulated.trees import tensors_in
from tsgraph.errors import ReplayFailed


@attrs.frozen
class Failure:
    """What a host function raised, and which one it was."""

    node: Node
    error: Exception

    def __str__(self) -> str:
        return f"{self.node}: {type(self.error).__name__}: {self.error}"


_THREAD = threading.local()


def record_host_function(function: Callable[..., object], *args: Any) -> None:
    """Run `function(*args)` at each replay, in order with what the current stream records; outside a recording, now.

    Tensors among `args` count as read when waits between streams are checked. What else it touches is not known.

    Raises: CaptureUnsupported in a recording that is invalid, and inside a host function.
    """
    current.refuse_in_host_function("record_host_function")
    stream = current_stream()
    capture = stream.capture
    if capture is None:
        with current.in_host_function():
            function(*args)
        return
    capture.refuse_if_invalid("record_host_function")
    name = getattr(function, "__qualname__", repr(function))
    with unseen_by_functions(), unseen_by_operators():
        reads = [touch for tensor in tensors_in(list(args)) for touch in access(tensor, writes=False)]
        node = capture.append(stream, Node(f"host function {name}", user_line()), reads)
        state = DispatchState(inference=False, grad=True, default=torch.get_default_dtype(), autocast=())
    run = partial(_call, node, partial(function, *args))
    capture.launches.append(Launch(node, state, run, run))


def _call(node: Node, function: Callable[[], object]) -> None:
    try:
        with current.in_host_function():
            function()
    except Exception as error:  # noqa: BLE001 - whatever it is, the graph goes on
        _THREAD.failures.append(Failure(node, error))


@contextmanager
def surfacing() -> Iterator[None]:
    """Raise at the end what host functions raise in the block.

    Raises: ReplayFailed from the first, with notes of the others.
    """
    failures: list[Failure] = []
    _THREAD.failures = failures
    try:
        yield
    except BaseException as error:
        _note(error, failures)
        raise
    if failures:
        raise _report(failures) from failures[0].error


def _report(failures: list[Failure]) -> ReplayFailed:
    node = failures[0].node
    hint = "correct the function; the graph ran on after it, and can be replayed again"
    error = ReplayFailed(str(failures[0]), hint=hint, operation=node.operator, line=node.line)
    _note(error, failures[1:])
    return error


def _note(error: BaseException, failures: list[Failure]) -> None:
    for failure in failures:
        error.add_note(f"also {failure}")
