"""The upper layer of a thread under emulation: what the user calls, with the words that name the device understood.

Below it nothing lives on CUDA, so `device="cuda"` becomes the CPU, and what is made is noted as the device's. In a
recording the call goes on to the recording's own upper layer, in whose language a CPU device object is the device and
the word "cpu" the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import attrs
import torch
from torch.utils._device import _device_constructors

from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.dispatch_state import autocasts
from tsgraph.backends.emulated.dispatcher import dispatch_keys, unseen_by_operators
from tsgraph.backends.emulated.functions import FunctionMode
from tsgraph.backends.emulated.operation import Call, Function
from tsgraph.backends.emulated.residence import Residence
from tsgraph.backends.emulated.streams import is_current_stream_capturing
from tsgraph.backends.emulated.trees import tensors_in
from tsgraph.testing.cuda import generators, stacks
from tsgraph.testing.cuda.handlers import HANDLERS
from tsgraph.testing.cuda.places import HOST, Place, place_of
from tsgraph.testing.cuda.waits import Judge

Arguments = tuple[Any, ...]
Options = dict[str, Any]


@attrs.define(eq=False)
class Switch:
    """Whether an emulation is on, for the layers that other threads still have when it has ended."""

    on: bool = True


class EmulatedFunctions(FunctionMode):
    """Names of places, and calls that depend on them.

    `generator` draws the device's numbers where none is given. `default` is what `torch.set_default_device` has set.
    `recorder` is the upper layer of the recording that this thread makes, and `graph` the graph that it will be, or
    None. `on_host` is true within a call that was told to make its result on the host.
    """

    def __init__(self, residence: Residence, generator: torch.Generator, switch: Switch) -> None:
        super().__init__(residence)
        self.generator = generator
        self._recorder: FunctionMode | None = None
        self.graph: Any = None
        self.default: torch.device | None = None
        self.on_host = False
        self._switch = switch

    @property
    def active(self) -> bool:
        """Whether the emulation that this layer belongs to is on."""
        return self._switch.on

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: Arguments = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Answer or run `func` as CUDA would, as far as where things are is concerned."""
        options = dict(kwargs or {})
        if not self.active or stacks.faking():
            return func(*args, **options)
        if self.default is not None and options.get("device") is None and func in _device_constructors():
            options["device"] = self.default
        handler = HANDLERS.get(func)
        return self.run(func, args, options) if handler is None else handler(self, func, args, options)

    @property
    def recorder(self) -> FunctionMode | None:
        """The upper layer of the recording that this thread makes."""
        return self._recorder

    @recorder.setter
    def recorder(self, recorder: FunctionMode | None) -> None:
        self._recorder = recorder
        if recorder is not None:
            recorder.draws_by_default = False  # the device has a generator of its own

    @property
    def recording(self) -> bool:
        """Whether this thread is recording: not where CUDA lets it wait aside, on a stream that takes no part."""
        return self.recorder is not None and (is_current_stream_capturing() or not current.may_wait())

    @property
    def watched(self) -> bool:
        """Whether the host may not wait for the device now: this thread is recording, or a capture forbids it."""
        return self.recording or not current.may_wait()

    def run(self, func: Function, args: Arguments, options: Options) -> Any:
        """Run `func` with its place named for the layers below."""
        place = place_of(options.get("device"))
        if options.get("generator") is not None:
            options["generator"] = self._generator(options["generator"], place or self.place_among(args, options))
        if options.pop("pin_memory", False):
            return self._pinned(func, args, options, place)
        if place == "device":
            options["device"] = HOST
        if place == "host":
            return self.run_on_host(func, args, options)
        return self.pass_on(func, args, options)

    def pass_on(self, func: Function, args: Arguments, options: Options) -> Any:
        """Run `func`, to be recorded if this thread is recording: a `device` that is still named is the device."""
        if self.recorder is not None and self.recording:
            return self.recorder.__torch_function__(func, (), args, options)
        if self.watched:
            with Judge(self):
                return super().__torch_function__(func, (), args, options)
        with self.calling(self._understand(func, args, options)):
            return func(*args, **options)

    def run_on_host(self, func: Function, args: Arguments, options: Options) -> Any:
        """Run `func` so that what it makes is the host's, whatever it is made of."""
        call = Call(func, False, torch.is_grad_enabled(), autocasts(), dispatch_keys())
        with self.hosting(), self.calling(call):
            return func(*args, **options)

    @contextmanager
    def hosting(self) -> Iterator[None]:
        """What the block makes is the host's."""
        before, self.on_host = self.on_host, True
        try:
            with nullcontext() if self.recorder is None else unseen_by_operators():
                yield
        finally:
            self.on_host = before

    def place_among(self, *values: Any) -> Place:
        """Where a call with these arguments works, if it names no place."""
        return "device" if any(map(self.residence.holds, tensors_in(values))) else "host"

    def _pinned(self, func: Function, args: Arguments, options: Options, place: Place | None) -> Any:
        if place == "device":
            raise RuntimeError("Only dense CPU tensors can be pinned")
        made = self.run_on_host(func, args, options)
        self.residence.add(made, "pinned")
        return made

    def _generator(self, generator: torch.Generator, place: Place) -> torch.Generator | None:
        """What to draw from at `place`: None is the default there.

        Raises: RuntimeError for one of another place, and in a recording for one that it does not know.
        """
        got: Place = "device" if generators.is_on_device(generator) else "host"
        if place != got:
            raise RuntimeError(f"Expected a {_NAMES[place]} device type for generator but found {_NAMES[got]}")
        if generator is self.generator:
            return None
        if self.graph is not None and got == "device" and generator not in self.graph.generators:
            raise RuntimeError("Attempt to increase offset for a CUDA generator not in capture mode.")
        return generator


_NAMES = {"device": "'cuda'", "host": "'cpu'"}
