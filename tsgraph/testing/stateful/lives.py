"""A state machine over the lives of any spec's slots, generated from the spec, with the oracle beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tsgraph.lifecycle.ledger import BOUND
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import Spec
from tsgraph.testing.books import Job, Verdict
from tsgraph.testing.oracle import DONE, Oracle
from tsgraph.testing.stateful.machine import ProgramMachine, as_rule
from tsgraph.testing.stateful.program import Program
from tsgraph.testing.stateful.work import How, Work
from tsgraph.testing.strategies.specs import Variation, broken_variations, variations

IMPORTS = (
    "from tsgraph.lifecycle import Cause, Lifecycle",
    "from tsgraph.testing.stateful import Work, explained, facts, outcome",
    "from tsgraph.testing.strategies import LeftOut, Moved, Variation",
)
VARIANTS = ("default", "other")
NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")
HOWS: tuple[How, ...] = ("error", "interrupt")
WORK = st.runner().flatmap(lambda machine: machine.works)
UPTO = st.integers(0, 2)  # how many triggers of the route to leave off: mostly few
CAUSES = st.sampled_from(("", "", "asked"))
KINDS = st.sampled_from(("push", "push", "replay", "eager", "abandon"))


# -- one runtime's slots, and what the oracle says of them -------------------------------------------------------------


@attrs.define(eq=False)
class Lives:
    """Slots of one lifecycle, called `name` in `program`, each attempt held against `oracle`."""

    program: Program
    oracle: Oracle
    name: str

    @classmethod
    def begin(
        cls, program: Program, whole: Spec | str, variation: Variation, name: str, slots: Mapping[str, str]
    ) -> Lives:
        """Begin `slots`, variants by name, under a variation of `whole`."""
        lives = cls(program, Oracle(variation.of(whole), frozenset(variation.present)), name)
        program.run(f"spec = {variation!r}.of({'whole' if isinstance(whole, Spec) else repr(whole)})")
        program.run(f"{name} = Lifecycle(spec.restricted_to(frozenset({variation.present!r})))")
        program.check(lives.oracle.route(), f"{name}.route")
        lives.attempt(lives.oracle.set_up(job_of(Work())), f"{name}.set_up", "work", Work())
        for slot, variant in slots.items():
            program.run(f"{slot} = {name}.begin({f'{variant}/{slot}'!r}, {variant!r})")
            lives.oracle.begin(slot, variant)
        lives.agree()
        return lives

    def fire(self, slot: str, trigger: str, work: Work, cause: str = "") -> None:
        """Fire `trigger`: what was explained comes true, and whatever happens is what the oracle says."""
        foreseen = self.oracle.foresee(slot, trigger)
        told = (foreseen.label, foreseen.at, foreseen.performed)
        self.program.check(told, f"explained({slot}, {trigger!r})")
        self.program.check(
            self.oracle.legal(slot), f"{slot}.explain({trigger!r}).refusal.legal", when=foreseen.label != DONE
        )
        verdict = self.oracle.fire(slot, trigger, job_of(work), cause)
        why = f", cause=Cause({cause!r}, 'why')" if cause else ""
        self.attempt(verdict, f"{slot}.fire", f"{trigger!r}, work{why}", work)

    def fit(self, trigger: str) -> list[str]:
        """The slots that `trigger` exists for."""
        return [name for name in self.oracle.slots if trigger in self.oracle.legal(name)]

    def attempt(self, verdict: Verdict, call: str, arguments: str, work: Work) -> None:
        """Make a call with `work`, and hold what comes of it against `verdict`."""
        self.program.run(f"work = {work!r}")
        if verdict.label == DONE:
            self.program.run(f"{call}({arguments})")
        else:
            self.program.check(verdict.label, f"outcome({call}, {arguments})", keep=True)
        self.program.check(list(verdict.performed), "work.performed")
        self.agree()

    def bring_up(self, slot: str, short: int, work: Work) -> None:
        """Take a slot from wherever it is to replayable, or `short` triggers less far; `work` does the last trigger."""
        route = [self.oracle.spec.lifecycle.on_reset, *self.oracle.route()[: len(self.oracle.route()) - short]]
        for trigger in route:
            if trigger in self.oracle.legal(slot):
                self.fire(slot, trigger, work if trigger == route[-1] else Work())

    def serve(self, kind: str) -> None:
        """Serve a forward, if the rules of the runtime admit it."""
        verdict = self.oracle.serve(kind)
        if verdict.label == DONE:
            self.program.run(f"{self.name}.admit({kind!r})")
            feed = f"{self.name}.runtime_scope.apply(effect)"
            self.program.run(f"for effect in {self.name}.serving.{kind}: {feed}")
        else:
            self.program.check(verdict.label, f"outcome({self.name}.admit, {kind!r})", keep=True)
        self.agree()

    def agree(self) -> None:
        """Everything that can be read is what the oracle says."""
        slots, variants = self.oracle.slots, tuple(self.oracle.variants)
        lives = "".join(f", {name}={name}" for name in slots)
        expected, expression = self.oracle.facts(), f"facts({self.name}, {variants!r}{lives})"
        for slot in expected["slots"].values():
            slot["history"] = slot["history"][-BOUND:]
        self.program.check_parts(expected, expression)


def job_of(work: Work) -> Job:
    """The same work, for the oracle."""
    return Job(work.fails, work.says, work.working)


def works(spec: Spec, failing: frozenset[str]) -> st.SearchStrategy[Work]:
    """Work of which, now and then, steps fail, those in `failing` only, and steps with several outcomes have any.

    Steps that must all run (cleanups, what leaves a session) fail about as often as all others.
    """
    law = spec.lifecycle
    musts = {
        *spec.session.leave,
        *law.transition(law.on_failure).steps,
        *(n for t in law.transitions for n in t.cleanup),
    }
    first, must = _failing(failing), _failing(failing & musts)
    both = st.builds(lambda one, other: {**one, **other}, first, must)
    leaving = _failing(failing.intersection(spec.session.leave))
    fails = st.one_of(st.just({}), st.just({}), first, must, both, leaving)
    says = st.fixed_dictionaries({s.name: st.sampled_from(s.event) for s in spec.steps.values() if len(s.event) > 1})
    return st.builds(Work, fails, says, st.sampled_from((0, 0, 1)))


def _failing(names: frozenset[str]) -> st.SearchStrategy[dict[str, How]]:
    if not names:
        return st.just({})
    return st.dictionaries(st.sampled_from(sorted(names)), st.sampled_from(HOWS), min_size=1, max_size=2)


def _slots_for(trigger: str) -> st.SearchStrategy[str]:
    """A slot that `trigger` exists for."""
    return st.runner().flatmap(lambda machine: st.sampled_from(machine.lives.fit(trigger)))


def _slots_alive(machine: LivesMachine) -> st.SearchStrategy[str]:
    """A slot that is not at its end, if there is one."""
    slots = machine.lives.oracle.slots
    alive = [name for name, slot in slots.items() if slot.state not in machine.lives.oracle.spec.lifecycle.final]
    return st.sampled_from(alive or list(slots))


# -- the machine -------------------------------------------------------------------------------------------------------


class LivesMachine(ProgramMachine):
    """Slots of one runtime. `machine_for` makes rules of the methods below, and one more of each transition."""

    whole: Spec | str
    lives: Lives
    works: st.SearchStrategy[Work]

    def __init__(self) -> None:
        super().__init__(**({"whole": self.whole} if isinstance(self.whole, Spec) else {}))
        for line in IMPORTS:
            self.program.run(line)

    def possible(self, drawn: dict[str, Any]) -> bool:
        """Whether the slot is there."""
        return "slot" not in drawn or drawn["slot"] in self.lives.oracle.slots

    def _configure(self, variation: Variation, variants: list[str], failing: frozenset[str] | None) -> None:
        """Begin the slots of a drawn variation; only steps in `failing` (None: all) may fail in this run."""
        slots = dict(zip(NAMES, variants, strict=False))
        self.lives = Lives.begin(self.program, self.whole, variation, "lifecycle", slots)
        spec = self.lives.oracle.spec
        self.works = works(spec, frozenset(spec.steps) if failing is None else failing)

    def _bring_up(self, slot: str, short: int, work: Work) -> None:
        """Take a slot along the route."""
        self.lives.bring_up(slot, short, work)

    def _fire_any(self, slot: str, trigger: str, work: Work) -> None:
        """Fire a trigger that the slot need not know in its state."""
        self.lives.fire(slot, trigger, work)

    def _try_another(self, variation: Variation) -> None:
        """Take a slot of another lifecycle along the route, and begin with a second: a cheap way to many variations."""
        other = Lives.begin(self.program, self.whole, variation, "other", dict.fromkeys("op", VARIANTS[0]))
        other.bring_up("o", 0, Work())
        other.bring_up("p", len(other.oracle.route()) - 1, Work())

    def _switch_session(self, work: Work, wrong: bool) -> None:
        """Open a session of captures, or close the one that is open; or, wrongly, the other way round."""
        oracle, job = self.lives.oracle, job_of(work)
        opens = oracle.session_open if wrong else not oracle.session_open
        verdict = oracle.open_session(job) if opens else oracle.close_session(job)
        self.lives.attempt(verdict, f"lifecycle.{'open' if opens else 'close'}_session", "work", work)

    def _serve(self, kind: str) -> None:
        """Serve a forward."""
        self.lives.serve(kind)


def machine_for(spec: Spec | str, *, slots: int = 3, broken: bool = True) -> type[LivesMachine]:
    """A state machine over the slots of `spec`: whole, as loaded, or the name or path of one.

    It has a rule for each transition (`fire_<trigger>`), one that brings a slot up, sessions and served forwards. Each
    run draws which rules it uses, up to `slots` slots, the collaborators that are there, the numbers of warm-ups (of
    specs by name) and which steps may fail. `broken`: orders of steps are drawn too in which rules have to refuse.
    Everything that happens is held against an `Oracle`. Run it with `find` or `check`.
    """
    whole = spec if isinstance(spec, Spec) else load_spec(spec)
    members: dict[str, Any] = {"whole": spec, "__doc__": f"Slots of the spec {whole.name!r}."}
    for transition in whole.lifecycle.transitions:
        members[f"fire_{transition.on}"] = _firing(transition.on)
    members |= _common(spec, whole, slots, broken=broken)
    return type(f"{whole.name.title()}Lives", (LivesMachine,), members)


def _firing(trigger: str) -> Any:
    def fire(self: LivesMachine, slot: str, work: Work, cause: str) -> None:
        self.lives.fire(slot, trigger, work, cause)

    drawn = rule(slot=_slots_for(trigger), work=WORK, cause=CAUSES)
    somebody = precondition(lambda machine: bool(machine.lives.fit(trigger)))
    return as_rule(f"fire_{trigger}", lambda function: somebody(drawn(function)), fire)


def _common(spec: Spec | str, whole: Spec, slots: int, *, broken: bool) -> dict[str, Any]:
    """The rules that every spec has."""
    sound, orders = variations(spec), broken_variations(spec)
    configuring = initialize(
        variation=st.one_of(sound, orders) if broken else sound,
        variants=st.lists(st.sampled_from(VARIANTS), min_size=1, max_size=slots),
        failing=st.one_of(st.none(), st.frozensets(st.sampled_from(sorted(whole.steps)))),
    )
    alive, triggers = st.runner().flatmap(_slots_alive), [transition.on for transition in whole.lifecycle.transitions]
    made: dict[str, tuple[Any, Callable[..., Any]]] = {
        "configure": (configuring, LivesMachine._configure),
        "bring_up": (rule(slot=alive, short=UPTO, work=WORK), LivesMachine._bring_up),
        "bring_up_too": (rule(slot=alive, short=UPTO, work=WORK), LivesMachine._bring_up),
        "switch_session": (
            rule(work=WORK, wrong=st.sampled_from((False,) * 5 + (True,))),
            LivesMachine._switch_session,
        ),
        "fire_any": (rule(slot=alive, trigger=st.sampled_from(triggers), work=WORK), LivesMachine._fire_any),
        "serve": (rule(kind=KINDS), LivesMachine._serve),
    }
    if broken:
        made["try_another"] = (rule(variation=orders), LivesMachine._try_another)
        made["try_another_too"] = (rule(variation=orders), LivesMachine._try_another)
    return {name: as_rule(name, decorator, function) for name, (decorator, function) in made.items()}
