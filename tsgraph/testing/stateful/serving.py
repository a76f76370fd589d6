"""A state machine over a whole runtime: slots come and go, batches grow and shrink, buffers are dirty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tsgraph.buffers.contract import Field, resolve_fields
from tsgraph.runtime import GraphRuntime
from tsgraph.testing.stateful.expected import Expected, Key
from tsgraph.testing.stateful.machine import ProgramMachine, as_rule
from tsgraph.testing.strategies.batches import Recipe, Sources, Values, make_sources, recipes, sequences

MakeRuntime = Callable[[], GraphRuntime]
IMPORTS = (
    "from math import inf, nan",
    "import torch",
    "from tsgraph.testing.stateful import *",
)
WRONG = ("rows", "dtype", "missing", "unknown", "slot", "trigger", "variant")
NUMBERS = st.integers(0, 30)


# -- the machine ------------------------------------------------------------------------------------------------------


class ServingMachine(ProgramMachine):
    """One runtime. `runtime_machine` fills in what is declared here and makes rules of the methods below."""

    make_runtime: MakeRuntime
    values: Mapping[str, Values]
    alike: bool
    fields: tuple[Field, ...]
    keys: tuple[Key, ...]
    model: Expected

    def __init__(self) -> None:
        super().__init__(make_runtime=type(self).make_runtime)
        for line in IMPORTS:
            self.program.run(line)

    def _build(self, captured: bool) -> None:
        """Build the runtime; mostly, capture everything at once."""
        self.program.run("runtime = make_runtime()")
        runtime: GraphRuntime = self.program.value("runtime")
        self.fields, self.keys = (
            resolve_fields(runtime.spec.buffers, runtime.geometry),
            tuple((key.variant, key.size) for key in runtime.slots),
        )
        states = {key: runtime.slots[key].state for key in self.keys}
        law = runtime.spec.lifecycle
        padding, lazy = runtime.spec.sizes.padding, runtime.spec.policy.capture == "lazy"
        self.model = Expected(law, runtime.sizes, padding, states, runtime.enabled, lazy)
        if captured:
            self._capture(None, None, 0)

    @classmethod
    def warm_up(cls) -> None:
        """Make a runtime and capture it: torch imports a lot then. A failure will be found, too."""
        with suppress(Exception):
            cls.make_runtime().capture()

    def possible(self, drawn: dict[str, Any]) -> bool:
        """Whether every batch has rows."""
        return all(recipe.rows > 0 for recipe in (*drawn.get("batches", ()), drawn.get("recipe", Recipe())))

    # -- slots --

    def _key(self, number: int | None) -> tuple[str, list[Key]]:
        if number is None:
            return "", list(self.keys)
        key = self.keys[number % len(self.keys)]
        return repr(key), [key]

    def _capture(self, slot: int | None, failing: int | None, forward: int) -> None:
        """Capture one slot or all; where `failing`, the step bursts at a forward of that slot."""
        text, keys = self._key(slot)
        if failing is None:
            self.program.run(f"runtime.capture({text})")
            burnt: Key | None = None
        else:
            at = self._key(failing)[1][0]
            call = f"outcome(runtime.capture, {text})" if text else "outcome(runtime.capture)"
            self.program.run(f"with burst(runtime, {at[1]}, {forward}) as fuse: ended = {call}")
            burnt = at if self.program.value("fuse.burnt") else None
        self._captured(keys, burnt)

    def _captured(self, keys: list[Key], burnt: Key | None) -> None:
        """Slots are captured in their order; the first of the burnt size fails, the others are as if nothing was.

        What stale ones hold is released first.
        """
        ready = self.model.law.replays_in
        raises = self.program.value("runtime.spec.policy.on_capture_failure") == "raise"
        ended = "done"
        chosen = [key for key in self.keys if key in keys and self.model.states[key] not in ready]
        stale = [key for key in chosen if self.model.states[key] == self.model.stale]
        for key in stale:
            self.model.fire(key, self.model.law.on_release)
        for key in chosen:
            before = self.model.states[key]
            if key in stale:
                self.model.fire(key, self.model.law.on_reset)
            self.model.capture(key)
            if burnt is not None and key[1] == burnt[1] and self.model.states[key] != before:
                self.model.states[key], burnt = self.model._to(self.model.law.on_failure), None
                ended = "CaptureFailed" if raises else ended
                if raises:
                    break
        self.model.asleep = self.model.asleep and ended != "done"
        self.program.check(ended, "ended", when="ended" in self.program.lines[-1])
        self.agree()

    def _fire(self, slot: int, trigger: str) -> None:
        """Fire one trigger by hand: what was explained comes true."""
        text, (key,) = self._key(slot)
        legal = self.model.may(key, trigger)
        self.program.check(legal, f"{trigger!r} in runtime.spec.lifecycle.triggers(runtime.slots[{text}].state)")
        label = self.program.value(f"explained(runtime.slots[{text}], {trigger!r})[0]")
        self.program.check(True, f"{label!r} == 'IllegalTransition'", when=not legal)
        self.program.check(label, f"outcome(runtime.fire, {text}, {trigger!r})", keep=True)
        if label == "done":
            self.model.fire(key, trigger)
        self.agree()

    def _invalidate(self, slot: int | None) -> None:
        """Say that something has changed."""
        self._fire_role(self.model.law.on_change, slot, "invalidate", "'changed'")

    def _release(self, slot: int | None) -> None:
        """Give memory back."""
        self._fire_role(self.model.law.on_release, slot, "release", "")

    def _reset(self, slot: int | None) -> None:
        """Begin again."""
        self._fire_role(self.model.law.on_reset, slot, "reset", "")

    def _fire_role(self, trigger: str, slot: int | None, method: str, first: str) -> None:
        text, keys = self._key(slot)
        arguments = ", ".join(argument for argument in (first, text) if argument)
        chosen = [key for key in keys if self.model.may(key, trigger)]
        if slot is None and trigger == self.model.law.on_release:
            chosen, self.model.asleep = [key for key in chosen if self.model.holds(key)], True
        if slot is None or chosen:
            self.program.run(f"runtime.{method}({arguments})")
        else:
            call = ", ".join(argument for argument in (f"runtime.{method}", arguments) if argument)
            self.program.check("IllegalTransition", f"outcome({call})", keep=True)
        for key in chosen:
            self.model.fire(key, trigger)
        self.agree()

    def _wake(self) -> None:
        """Bring back what is stale or was released, and try again what failed."""
        self.program.run("runtime.wake()")
        lost = [key for key in self.keys if self.model.lost(key)]
        for key in lost:
            self.model.fire(key, self.model.law.on_reset)
        self._captured(lost, None)

    def _switch(self) -> None:
        """Switch slots off, or on again."""
        self.model.enabled = not self.model.enabled
        self.program.run(f"runtime.enabled = {self.model.enabled}")
        self.agree()

    # -- steps --

    def _serve(self, batches: list[Recipe], variant: int, garbage: int) -> None:
        """Serve one batch after the other over dirty buffers, each held against eager steps."""
        name = self._variant(variant)
        for recipe in batches:
            self.program.check(
                self.model.decision(recipe.rows, name), f"told(runtime.explain({recipe.rows}, variant={name!r}))"
            )
            key, size, reason = decision = self.model.served(recipe.rows, name)
            self._pass(recipe)
            self.program.run("before = state_of(runtime)")
            if key is not None:
                self._eager_alike(size, name)
            self.program.run(f"dirty(runtime, {garbage})")
            self.program.run(f"step = runtime.step(variant={name!r}, **live)")
            self.program.run("outputs, after = kept(step.outputs), state_of(runtime)")
            self.program.check(decision, "told(step.decision)")
            if key is None:
                self._count(reason)
            else:
                self.model.replays[key] = self.model.replays.get(key, 0) + 1
                self.model.pads[key] = self.model.pads.get(key, 0) + size - recipe.rows
                self._compare()
            self.agree()

    def _variant(self, number: int) -> str:
        variants = sorted({variant for variant, _ in self.keys})
        return variants[number % len(variants)]

    def _pass(self, recipe: Recipe) -> Sources:
        sources = make_sources(self.fields, recipe, self.values)
        self.program.run(f"live = {literal(sources)}")
        return sources

    def _eager_alike(self, size: int, variant: str) -> None:
        """What the slot's size gives with neutral pads, in a plain eager step, and what the live rows alone give."""
        self.program.run(f"alike = kept(runtime.eager(variant={variant!r}, **padded(runtime, {size}, live)))")
        self.program.run("alike_state = state_of(runtime); put_state(runtime, before)")
        self.program.run(f"alone = kept(runtime.eager(variant={variant!r}, **live))")
        self.program.run("alone_state = state_of(runtime); put_state(runtime, before)")
        self._count("ASKED")
        self._count("ASKED")

    def _compare(self) -> None:
        """Hold the replay against both."""
        self.program.demand("assert same(alike, outputs), 'the replay is not bitwise the eager step of its size'")
        self.program.demand("assert same(alike_state, after), 'the replay left another state than the eager step'")
        if self.alike:
            self.program.demand("assert near(alone, outputs), 'pad rows have changed outputs of live rows'")
            self.program.demand("assert untouched(runtime, alone_state), 'state was touched by other than live rows'")

    def _eager(self, recipe: Recipe, variant: int) -> None:
        """An eager step in between."""
        self._pass(recipe)
        self.program.run(f"runtime.eager(variant={self._variant(variant)!r}, **live)")
        self._count("ASKED")
        self.agree()

    def _abandon(self, recipe: Recipe) -> None:
        """An eager step that raises."""
        self._pass(recipe)
        self.program.run(f"with burst(runtime, {recipe.rows}, 0): ended = outcome(runtime.eager, **live)")
        self.program.check("Burst", "ended")
        self._count("ASKED")
        self.agree()

    def _count(self, reason: str) -> None:
        self.model.eager[reason.lower()] = self.model.eager.get(reason.lower(), 0) + 1

    def _refuse(self, recipe: Recipe, wrong: str) -> None:
        """A call that must be refused, and then nothing has changed."""
        sources = self._pass(recipe)
        name = min(sources)
        calls = {
            "rows": ("BadBatch", f"runtime, rows={recipe.rows + 1}, **live"),
            "dtype": (
                "BadBatch",
                f"runtime, **live | {{{name!r}: torch.zeros({recipe.rows}, 7, dtype=torch.complex64)}}",
            ),
            "missing": ("BadBatch", f"runtime, rows={recipe.rows}, **{{k: live[k] for k in live if k != {name!r}}}"),
            "unknown": ("BadBatch", "runtime, nobody=torch.zeros(1), **live"),
            "variant": ("BadBatch", "runtime, variant='nobody', **live"),
            "slot": ("UnknownSlot", "runtime.capture, ('nobody', 1)"),
            "trigger": ("IllegalTransition", f"runtime.fire, {self.keys[0]!r}, 'nobody'"),
        }
        label, call = calls[wrong]
        self.program.run("before = state_of(runtime), held(runtime)")
        self.program.check(label, f"outcome({call})", keep=True)
        self.program.demand(
            "assert same(before, (state_of(runtime), held(runtime))), 'a refused call changed something'"
        )
        self.agree()

    # -- what always holds --

    def agree(self) -> None:
        """The snapshot says what should be, and nothing is left on in the process."""
        self.program.check_parts(self.model.figures(), "figures(runtime)")
        self.program.check((False, False), "left_on()")


def literal(sources: Sources) -> str:
    """Tensors as the code that makes them."""
    items = (f"{name!r}: {_literal(value)}" for name, value in sources.items())
    return f"{{{', '.join(items)}}}"


def _literal(value: Any) -> str:
    return literal(value) if isinstance(value, dict) else f"torch.tensor({value.tolist()}, dtype={value.dtype})"


def runtime_machine(
    make_runtime: MakeRuntime, values: Mapping[str, Values | tuple[float, float]] | None = None, *, alike: bool = True
) -> type[ServingMachine]:
    """A state machine over the runtimes that `make_runtime` makes, uncaptured and on the emulated backend.

    Slots are captured (and captures fail), invalidated, released, reset and woken, in any order; between that, batches
    are served that grow and shrink over dirty buffers. Each replay is bitwise the eager step of its size with neutral
    pads; `alike`: its live rows, and what they wrote, are those of a step without pads (off for steps whose rows depend
    on each other or that draw random numbers). A decision, an explanation and a snapshot say what happens; a refused
    call changes nothing.

    `values`: what live rows may hold, by buffer; integers are 0 to 7 where nothing is said. Run it with `find`
    or `check`. Buffers that the engine writes in place are not supported.
    """
    runtime = make_runtime()
    sizes, triggers = runtime.sizes, sorted(t.on for t in runtime.spec.lifecycle.transitions)
    lasting = [t.on for t in runtime.spec.lifecycle.transitions if t.to not in runtime.spec.lifecycle.final]
    slots = st.one_of(st.none(), NUMBERS)
    batch, several = recipes(sizes), sequences(sizes)
    made: dict[str, tuple[Any, Callable[..., Any]]] = {
        "build": (initialize(captured=st.sampled_from((True, True, False))), ServingMachine._build),
        "capture": (
            rule(slot=slots, failing=st.one_of(st.none(), NUMBERS), forward=st.integers(0, 5)),
            ServingMachine._capture,
        ),
        "fire": (rule(slot=NUMBERS, trigger=st.sampled_from(lasting or triggers)), ServingMachine._fire),
        "invalidate": (rule(slot=slots), ServingMachine._invalidate),
        "release": (rule(slot=slots), ServingMachine._release),
        "reset": (rule(slot=slots), ServingMachine._reset),
        "wake": (rule(), ServingMachine._wake),
        "switch": (rule(), ServingMachine._switch),
        "serve": (rule(batches=several, variant=NUMBERS, garbage=NUMBERS), ServingMachine._serve),
        "serve_too": (rule(batches=several, variant=NUMBERS, garbage=NUMBERS), ServingMachine._serve),
        "eager": (rule(recipe=batch, variant=NUMBERS), ServingMachine._eager),
        "abandon": (rule(recipe=batch), ServingMachine._abandon),
        "refuse": (rule(recipe=batch, wrong=st.sampled_from(WRONG)), ServingMachine._refuse),
    }
    members: dict[str, Any] = {name: as_rule(name, decorator, method) for name, (decorator, method) in made.items()}
    members |= {
        "make_runtime": staticmethod(make_runtime),
        "values": {name: v if isinstance(v, Values) else Values(*v) for name, v in (values or {}).items()},
        "alike": alike,
        "__doc__": f"Runtimes of the spec {runtime.spec.name!r}.",
    }
    return type("Serving", (ServingMachine,), members)
