"""Host functions: Python that a graph runs in order between its kernels, at each replay and never while recording.

CUDA runs them in a thread of the driver's, where nothing may call CUDA; here they run in the thread that replays, with
grad mode on and inference mode off, as in any fresh thread, and what would call the device is refused. What becomes of
an exception is the same on all backends: `tsgraph.backends.turns`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.dispatch_state import DispatchState
from tsgraph.backends.emulated.dispatcher import unseen_by_functions, unseen_by_operators
from tsgraph.backends.emulated.host_only import on_the_host
from tsgraph.backends.emulated.nodes import Launch, Run
from tsgraph.backends.emulated.residence import Residence
from tsgraph.backends.emulated.streams import access, current_stream
from tsgraph.backends.emulated.trace import HOST_FUNCTION, Node
from tsgraph.backends.emulated.trees import tensors_in
from tsgraph.backends.turns import HostFunction


def put(function: HostFunction, run: Run, residence: Residence) -> None:
    """Record that `run`, which calls `function`, is to be run; outside a recording, run it now.

    Tensors among the arguments of a partial count as read when waits between streams are checked. What else it touches
    is not known.

    Raises: CaptureUnsupported in a recording that is invalid, and inside a host function.
    """
    current.refuse_in_host_function("host_function")
    stream, run = current_stream(), partial(_run, run, residence)
    state = DispatchState(inference=False, grad=True, default=torch.get_default_dtype(), autocast=())
    if stream.capture is None:
        with state.entered():
            run()
        return
    stream.capture.refuse_if_invalid("host_function")
    with unseen_by_functions(), unseen_by_operators():
        reads = [touch for tensor in tensors_in(list(_given(function))) for touch in access(tensor, writes=False)]
        node = Node(f"{HOST_FUNCTION}{function.name}", function.line)
        node = stream.capture.append(stream, node, reads)
    stream.capture.launches.append(Launch(node, state, run, run))


def _run(run: Run, residence: Residence) -> None:
    with on_the_host(residence):
        error = run()
    if isinstance(error, KeyboardInterrupt):  # of the user's, in this thread: no error of the function's
        raise error


def _given(function: HostFunction) -> Iterator[Any]:
    given: Any = function.function
    while isinstance(given, partial):
        yield given.args
        yield given.keywords
        given = given.func
