"""The watch over a recording: a dispatch mode that sees every operator, and says what of it will last.

A replay runs no Python and allocates nothing: it reads and writes addresses. So each operator's memory is either the
recording's own (an operator of it returned it first, or it lies in the pool) or from outside, and then it matters whose
it is, whether it will be there, and who keeps its contents up to date.

Not seen: the inside of regions that Inductor compiled, Triton kernels that are launched by hand, and launches by
extensions that are no registered operators. The first two are told as opaque, with what they were handed; of the last
only the graph's own nodes tell. The watch holds no memory of the recording's own, so that the pool can use it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import attrs
import torch

from tsgraph.backends.blame import user_line
from tsgraph.backends.emulated.dispatcher import is_plain
from tsgraph.backends.emulated.trees import tensors_in
from tsgraph.backends.modes import OperatorMode
from tsgraph.backends.opaque import compiled_regions, triton_launches
from tsgraph.buffers.owners import Owners, storage_address
from tsgraph.protocols.backend import Backend, Pool
from tsgraph.receipts.call import Argument, Call, facts_of, is_scalar
from tsgraph.receipts.inside import Inside
from tsgraph.receipts.notes import Notes, value_of
from tsgraph.receipts.outside import Outside
from tsgraph.receipts.receipt import Place

REGION, LAUNCH, HIGHER = "compiled region", "Triton kernel", "higher-order operator"


@attrs.frozen
class Part:
    """A part that nobody looks into, in the place of an operator."""

    kind: str
    what: str
    line: str

    @property
    def name(self) -> str:
        """Its kind and what it is."""
        return f"{self.kind} {self.what}"


class Watch(OperatorMode):
    """Watches the block, which is one recording of this thread, with memory of `pool`. Works in inference mode, too.

    `outside`, `inside` and `notes` are what it saw: memory from outside, the recording's own, and all else. `seconds`
    it took.
    """

    def __init__(self, owners: Owners, backend: Backend, pool: Pool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.outside = Outside(owners, backend, pool)
        self.notes = Notes()
        self.inside = Inside()
        self.seconds = 0.0
        self._holds, self._owners = backend.holds, owners
        self._quiet = False
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        self._owners.refresh()
        self._exits.enter_context(compiled_regions(self._run_region))
        self._exits.enter_context(triton_launches(self._note_launch))
        super().__enter__()  # type: ignore[no-untyped-call]
        self.seconds = -time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds += time.perf_counter()
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        self._exits.close()

    # -- operators ----------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator, and write down what of it lasts."""
        kwargs = kwargs or {}
        if types and not all(map(is_plain, types)):
            return NotImplemented  # a wrapper takes itself apart; its plain tensors come by here
        if self._quiet:
            return func(*args, **kwargs)
        call = Call(facts_of(func), args, kwargs, user_line())
        self._quiet = True  # what an operator launches itself is its own business: its schema stands for it
        try:
            result = call.facts.run(*args, **kwargs)
        finally:
            self._quiet = False
        self._note(call, result)
        return result

    def _note(self, call: Call, result: Any) -> None:
        facts, results = call.facts, (result,) if type(result) is torch.Tensor else tuple(tensors_in(result))
        made = on_device = False
        for tensor, address in call.made_by(results):
            made, is_there = True, self._holds(tensor)
            on_device |= is_there
            self.inside.add(tensor, address, call.name, call.line, on_device=is_there)
        is_view = facts.turns or (facts.looks and not made and len(results) > 0)
        if is_view and not call.scalars:
            return
        if on_device or self._is_of_device(call, results):
            self._note_device(call, is_view=is_view)
        elif not results and call.tensors and is_scalar(result):
            self.notes.value(call.name, "(read by the host)", repr(result), call.line)
        elif not (is_view or facts.idle or not (call.tensors or results)):
            self.notes.host_work(call.name, call.line)

    def _is_of_device(self, call: Call, results: Iterable[torch.Tensor]) -> bool:
        for _, tensor, _ in call.tensors:  # the first one, as a rule
            if self._holds(tensor):
                return True
        return any(map(self._holds, results))

    def _note_device(self, call: Call, *, is_view: bool) -> None:
        for name, value in call.scalars:
            self.notes.value(call.name, name, repr(value), call.line)
        if is_view:
            return
        for argument, tensor, address in call.tensors:
            made = self.inside.facts.get(address)
            if made is None or not made[-1]:  # else it is the recording's own affair
                self._note_operand(call, argument, tensor, address)
        if call.facts.draws:
            self.notes.draw(call.name, call.arguments, call.line)
        if not call.facts.plain:
            self.notes.opaque(HIGHER, call.name, call.line)

    def _note_operand(self, call: Call, argument: Argument, tensor: torch.Tensor, address: int) -> None:
        """A host tensor that is a number is an argument of the launch; replays use any other memory again."""
        reads, writes = argument.reads, argument.name in call.written
        if not ((reads or writes) and address and tensor.numel()):
            return
        place: Place = "device" if self._holds(tensor) else "host"
        if place == "host" and tensor.dim() == 0 and not call.facts.copies:
            self.notes.value(call.name, argument.name, value_of(tensor), call.line)
        elif address not in self.inside.facts:
            self.outside.touch(tensor, address, call, read=reads, written=writes, place=place)
        elif reads:
            self.outside.temporary(tensor, address, call)

    # -- what cannot be seen ------------------------------------------------------------------------------------------

    def _run_region(self, region: Any, call: Callable[[], Any], inputs: Any) -> Any:
        """Code that Inductor compiled: what it is handed counts as read, and as written where Inductor says so."""
        if self._quiet:
            return call()
        given, mutated = list(inputs), frozenset(getattr(region, "mutated_input_idxs", None) or ())
        handed = {f"input {at}": (each, at in mutated) for at, each in enumerate(given)}
        constants = getattr(region, "constants", None) or {}
        handed |= {f"constant {name}": (each, False) for name, each in constants.items()}
        part = Part(REGION, getattr(region, "compile_region_name", None) or "Inductor's", user_line())
        self._note_handed(part, handed)
        before = {storage_address(each) for each in tensors_in(given)}
        self._quiet = True
        try:
            result = call()
        finally:
            self._quiet = False
        for each in tensors_in(result):
            address = storage_address(each)
            if address and address not in before:
                self.inside.add(each, address, part.name, part.line, on_device=self._holds(each))
        return result

    def _note_launch(self, name: str, arguments: Mapping[str, Any]) -> None:
        """A Triton kernel: whether it reads or writes what it is handed, nobody says; that counts as read."""
        if not self._quiet:
            part = Part(LAUNCH, name, user_line())
            self._note_handed(part, {key: (each, False) for key, each in arguments.items()})

    def _note_handed(self, part: Part, handed: Mapping[str, tuple[Any, bool]]) -> None:
        self.notes.opaque(part.kind, part.what, part.line)
        for name, (value, written) in handed.items():
            if is_scalar(value):
                self.notes.value(part.name, name, repr(value), part.line)
            for tensor in tensors_in(value):
                address = storage_address(tensor)
                if address and tensor.numel() and address not in self.inside.facts:
                    place: Place = "device" if self._holds(tensor) else "host"
                    self.outside.touch(tensor, address, part, read=True, written=written, place=place)
