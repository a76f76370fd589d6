"""`torch.cuda.CUDAGraph`, over recordings of the emulated device.

`torch.cuda.graph` and `torch.cuda.make_graphed_callables` are torch's own: they are written in terms of it.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, NoReturn

from torch.overrides import _get_current_function_mode

from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.functions import FunctionMode
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.backends.emulated.recording import Recording
from tsgraph.backends.emulated.refusal import refuse
from tsgraph.errors import CaptureUnsupported, InternalError
from tsgraph.testing.cuda import stacks
from tsgraph.testing.cuda.generators import Generator, drawing_from, is_on_device
from tsgraph.testing.cuda.machine import Machine, layers_here, machine_now
from tsgraph.testing.cuda.pools import Handle, new_handle
from tsgraph.testing.cuda.refusals import not_emulated

_NO_DRIVER = "there is no driver's graph behind it"


class CUDAGraph:
    """Stands in for `torch.cuda.CUDAGraph`. `emulated` is the graph behind it, to look at what was recorded."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.keep_graph = keep_graph
        self.generators: list[Generator] = []
        self._machine: Machine = machine_now()
        self._recording: Recording | None = None
        self._recorder: FunctionMode | None = None
        self._captured: EmulatedGraph | None = None
        self._handle: Handle | None = None
        self._leave: Any = None
        self._outer: tuple[Any, Any] = (None, None)  # recorder and graph of a capture around this one

    @property
    def emulated(self) -> EmulatedGraph:
        """What was recorded. Raises: RuntimeError if nothing was."""
        if self._captured is None:
            raise RuntimeError("this CUDAGraph has captured nothing")
        return self._captured

    def capture_begin(
        self, pool: Handle | None = None, capture_error_mode: Any = "global", check_input_liveness: bool = False
    ) -> None:
        """Record what this thread puts on its current stream from now on.

        Inputs that were dropped are found at the replay in any case, if the emulation is checked.

        Raises: CaptureUnsupported where no capture can begin; RuntimeError for a graph that has captured already, an
        unknown mode and a pool that is gone.
        """
        if self._recording is not None or self._captured is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph: create a new one to capture again."
            )
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            expected = "expected `global`, `thread_local`, or `relaxed`"
            raise RuntimeError(f"Unknown capture error mode: {expected}, got {capture_error_mode}")
        handle, layers = pool or new_handle(), layers_here()
        self._recording = self._begin(handle, capture_error_mode)
        self._handle = handle
        self._leave = weakref.finalize(self, self._machine.pools.close, handle)
        self._leave.atexit = False
        self._outer = layers.functions.recorder, layers.functions.graph
        self._take_over(layers)

    def _begin(self, handle: Handle, mode: Any) -> Recording:
        machine = self._machine
        pool = machine.pools.open(handle)
        recording = Recording(machine.residence, pool, checked=machine.checked, mode=mode)
        try:
            recording.begin()
        except BaseException as error:
            if "cuda" not in getattr(error, "context", {}):  # torch itself refuses before it opens the pool
                machine.pools.settle(handle)
            machine.pools.close(handle)
            raise
        return recording

    def capture_end(self) -> None:
        """End the recording: it can be replayed.

        Raises: CaptureUnsupported as `Recording.end` does: the recording is over, except on a wrong stream or thread.
        """
        recording, layers = self._recording, layers_here()
        if recording is None:
            raise refuse("CUDAGraph.capture_end", "this graph is not being captured", "begin a capture first")
        if layers.functions.graph is not self:  # another thread captures it, as the recording will say
            recording.end()
        self._hand_back(layers)
        try:
            recording.end()
        except BaseException:
            if recording.over:
                self._close(recording)
                self._forget()
            else:
                self._take_over(layers)
            raise
        self._close(recording)
        self._captured, self._recording, self._recorder = recording.graph, None, None
        self._outer = None, None

    def abort(self) -> None:
        """End a recording that this thread has left behind. Not of torch's: for the end of the emulation."""
        layers = layers_here()
        if self._recording is not None and layers.functions.graph is self:
            self._hand_back(layers)
            self._recording.abort()
            self._forget()

    def replay(self) -> None:
        """Run what was recorded, with fresh random numbers.

        Raises: RuntimeError for a graph that has captured nothing; CaptureUnsupported in a recording; ReplayFailed.
        """
        if self._captured is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        with drawing_from(self._machine.generator):
            self._captured.replay()

    def instantiate(self) -> None:
        """Nothing to do: a recording is ready when it has ended."""
        self.emulated  # noqa: B018 - raises where nothing was captured

    def reset(self) -> None:
        """Drop what was captured; the graph can capture again.

        A capture that forbids it is invalid from then on, and torch does no more than warn. While it captures, there is
        nothing to drop.
        """
        if self._captured is not None:
            try:
                current.refuse_unsafe("CUDAGraph.reset", "reset graphs before or after the recording")
            except CaptureUnsupported as error:
                warnings.warn(f"CUDA warning: {error}", stacklevel=2)
            self._captured.drop()
        if self._recording is None:
            self._forget()

    def pool(self) -> Handle:
        """The handle of the pool. Raises: RuntimeError before the first capture."""
        if self._captured is None or self._handle is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._handle

    def register_generator_state(self, generator: Generator) -> None:
        """Let the recording draw from `generator`. The default one of the device needs no registration.

        Raises: RuntimeError for a generator of the host.
        """
        if not is_on_device(generator):
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        self.generators.append(generator)

    def enable_debug_mode(self) -> None:
        """Nothing to do: `emulated.table()` shows any recording."""

    def debug_dump(self, debug_path: str) -> NoReturn:
        """Raises: NotEmulated."""
        raise not_emulated("torch.cuda.CUDAGraph.debug_dump", _NO_DRIVER, "print graph.emulated.table()")

    def raw_cuda_graph(self) -> NoReturn:
        """Raises: NotEmulated."""
        raise not_emulated("torch.cuda.CUDAGraph.raw_cuda_graph", _NO_DRIVER)

    def raw_cuda_graph_exec(self) -> NoReturn:
        """Raises: NotEmulated."""
        raise not_emulated("torch.cuda.CUDAGraph.raw_cuda_graph_exec", _NO_DRIVER)

    def get_graph_data(self) -> NoReturn:
        """Raises: NotEmulated."""
        raise not_emulated("torch.cuda.CUDAGraph.get_graph_data", _NO_DRIVER, "call graph.emulated.describe()")

    def _close(self, recording: Recording) -> None:
        if self._handle is not None and not recording.broken:
            self._machine.pools.settle(self._handle)

    def _take_over(self, layers: Any) -> None:
        """This is the graph that the thread captures, and the upper layer of its recording is off the stack."""
        self._recorder = _take_recorder()
        layers.functions.recorder, layers.functions.graph = self._recorder, self

    def _hand_back(self, layers: Any) -> None:
        _put_back(self._recorder)
        layers.functions.recorder, layers.functions.graph = self._outer

    def _forget(self) -> None:
        if self._leave is not None:
            self._leave()
        self._recording = self._recorder = self._captured = self._handle = self._leave = None
        self._outer = None, None


def _take_recorder() -> FunctionMode:
    """The upper layer of the recording that has just begun, off the stack: the thread's own layer calls it."""
    recorder = _get_current_function_mode()
    if not isinstance(recorder, FunctionMode):
        raise InternalError(f"a recording began, but {recorder} is its upper layer")
    stacks.drop_functions(recorder)
    return recorder


def _put_back(recorder: FunctionMode | None) -> None:
    """Put it on top again, where the end of the recording expects it."""
    if recorder is not None:
        stacks.raise_functions(recorder)
