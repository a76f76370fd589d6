"""What can happen at one instant: a step with an outcome, a state entered, a step raising; compiled to bits.

An act belongs to somebody. The slot's own steps are asked all rules and feed all scopes. Steps of setups, sessions and
served forwards belong to no slot: only rules of the runtime's ledger are asked, and only that ledger is fed. Of another
slot's steps only what they feed to shared ledgers is seen, and only rules that read nothing else can be asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import product
from typing import Literal

import attrs

from tsgraph.lifecycle.law import is_void
from tsgraph.lifecycle.monitors import reach
from tsgraph.proving.bits import ALWAYS, NOTHING, SCOPES, Bits, Change, Given, Test, both
from tsgraph.spec.model import Clause, Property, Rule, Scope, Spec, Step, Transition

Whose = Literal["own", "setup", "session", "serving", "sibling", "other"]
FEEDS: dict[Whose, tuple[Scope, ...]] = {
    "own": SCOPES,
    "setup": ("runtime",),
    "session": ("runtime",),
    "serving": ("runtime",),
    "sibling": ("variant", "runtime"),
    "other": ("runtime",),
}
OTHERS: tuple[Whose, ...] = ("sibling", "other")
RULE = ""
"""What a claim about a watched rule has for a property."""
Kind = Literal["step", "state", "raise", "refuse", "overflow", "forget"]


@attrs.frozen(eq=False)
class Claim:
    """One clause of a property at one of its moments. `index`: its number among the property's clauses."""

    property: str
    index: int
    clause: Clause
    moment: str
    before: bool
    test: Test


@attrs.frozen(eq=False)
class Act:
    """One thing that happens, if `test` holds (or, where `wanted` is false, does not).

    `kind` and `name`: a step, a state that is entered, a step that raises, a trigger that rules refuse, a step that had
    to run but would take a counter below its floor, or another slot that begins again and forgets what it had. `event`:
    what the step appends. `claims` are judged around it. `tries`: whether the transition under way counts the step as
    tried. `given`: what another slot had of what is summed over all.
    """

    kind: Kind
    name: str
    event: str = ""
    whose: Whose = "own"
    test: Test = ALWAYS
    wanted: bool = True
    change: Change = NOTHING
    claims: tuple[Claim, ...] = ()
    tries: bool = False
    given: Given = ()

    @property
    def idle(self) -> bool:
        """Whether nothing depends on it."""
        return self.kind == "step" and self.change.nothing and self.test == ALWAYS and not self.claims

    def claimed(self, *, before: bool) -> int:
        """The bits that its claims ask just before, or just after."""
        mask = 0
        for claim in self.claims:
            mask |= claim.test.mask if claim.before is before else 0
        return mask

    def happens(self, bits: int) -> bool:
        """Whether it may happen now."""
        return self.test.holds(bits) is self.wanted


Run = tuple[Act, ...]
Runs = tuple[Run, ...]
NONE: Runs = ((),)
"""The one way to do nothing."""


def chained(*parts: Runs) -> Runs:
    """Every way to take one run of each part, one part after the other."""
    return tuple(dict.fromkeys(sum(runs, ()) for runs in product(*parts)))


@attrs.frozen
class Acts:
    """Makes the acts of one spec, already restricted to what is present.

    `lifted`: rules that are not in force. `watched`: the one of them about which a claim says whether it would refuse.
    """

    spec: Spec
    bits: Bits
    lifted: frozenset[str] = frozenset()
    watched: str = ""
    _claims: dict[str, tuple[Claim, ...]] = attrs.field(factory=dict)
    _steps: dict[tuple[str, Whose, bool], Runs] = attrs.field(factory=dict)

    def without(self, rules: frozenset[str], watched: str) -> Acts:
        """The same with `rules` lifted, and one of them `watched`."""
        return Acts(self.spec, self.bits, rules, watched, self._claims)

    def lifted_from(self, names: Iterable[str]) -> bool:
        """Whether a rule is lifted that guards any of these steps and triggers."""
        return not self._unguarded.isdisjoint(names)

    @cached_property
    def _unguarded(self) -> frozenset[str]:
        return frozenset(at for rule in self.spec.rules if rule.id in self.lifted for at in rule.guards)

    # -- what is asked --

    def asked(self, at: str, whose: Whose = "own") -> Test:
        """The rules that are asked before the step, or of the trigger, `at`."""
        return both(tuple(self.test(rule) for rule in self.in_force(at, whose)))

    def in_force(self, at: str, whose: Whose = "own") -> Iterator[Rule]:
        """Those rules."""
        return (rule for rule in self._rules(at, whose) if rule.id not in self.lifted)

    @property
    def all_in_force(self) -> Iterator[Rule]:
        """The rules that are not lifted."""
        return (rule for rule in self.spec.rules if rule.id not in self.lifted)

    def test(self, asker: Rule | Clause) -> Test:
        """What a rule or a clause asks."""
        void = is_void(asker.condition, self.spec)
        return ALWAYS if void else self.bits.test(asker.condition, self._reach(asker))

    def _reach(self, asker: Rule | Clause) -> Scope:
        return reach(asker.condition, asker.scope, self.spec)

    def _rules(self, at: str, whose: Whose) -> Iterator[Rule]:
        for rule in self.spec.rules:
            if at in rule.guards and not is_void(rule.condition, self.spec) and self._reach(rule) in FEEDS[whose]:
                yield rule

    def _watches(self, at: str, whose: Whose = "own") -> tuple[Claim, ...]:
        """That the watched rule would not refuse the step or trigger `at`."""
        rules = (rule for rule in self._rules(at, whose) if rule.id == self.watched)
        return tuple(
            Claim(RULE, 0, Clause(condition=r.condition, scope=r.scope), at, True, self.test(r)) for r in rules
        )

    def claims(self, moment: str) -> tuple[Claim, ...]:
        """What properties promise around `moment`, an event or a state."""
        if moment not in self._claims:
            props = (prop for prop in self.spec.properties if moment in prop.when)
            self._claims[moment] = tuple(claim for prop in props for claim in self._of(prop, moment))
        return self._claims[moment]

    def _of(self, prop: Property, moment: str) -> Iterator[Claim]:
        for index, clause in enumerate((*prop.before, *prop.holds)):
            yield Claim(prop.id, index, clause, moment, index < len(prop.before), self.test(clause))

    # -- acts --

    def step(self, name: str, whose: Whose = "own", *, asked: bool = True) -> Runs:
        """The step done, once for each outcome; `asked` before or not."""
        key = name, whose, asked
        if key not in self._steps:
            self._steps[key] = tuple(self._outcomes(self.spec.steps[name], whose, asked=asked))
        return self._steps[key]

    def _outcomes(self, step: Step, whose: Whose, *, asked: bool) -> Iterator[Run]:
        test = both(self.bits.floors(step, FEEDS[whose]))
        test = test & self.asked(step.name, whose) if asked else test
        watches = self._watches(step.name, whose) if asked else ()
        for event in step.event:
            for given in self.bits.givens(step, FEEDS[whose]):
                done = self._done(step, event, whose, test, watches)
                change = self.bits.change(step, event, FEEDS[whose], given)
                yield (attrs.evolve(done, test=test & self.bits.given(given), change=change, given=given),)

    def _done(self, step: Step, event: str, whose: Whose, test: Test, watches: tuple[Claim, ...]) -> Act:
        claims = watches if whose in OTHERS else (*watches, *self.claims(event))
        return Act("step", step.name, event, whose, test, claims=claims)

    def first(self, names: Iterable[str], whose: Whose = "own", *, asked: bool = True) -> Run:
        """These steps in order, each with the first of its outcomes."""
        return tuple(self.step(name, whose, asked=asked)[0][0] for name in names)

    def forced(self, name: str, whose: Whose = "own") -> Runs:
        """The step done without being asked; where a floor forbids it, it changes nothing: it raises, others go on."""
        return (*self.step(name, whose, asked=False), *self.overflowing(name, whose))

    def overflowing(self, name: str, whose: Whose = "own") -> Runs:
        """The step stopped by a counter's floor, if it can be."""
        floors = both(self.bits.floors(self.spec.steps[name], FEEDS[whose]))
        return () if floors == ALWAYS else ((Act("overflow", name, whose=whose, test=floors, wanted=False),),)

    def tried(self, runs: Runs) -> Runs:
        """`runs` of one act each, of which the transition under way keeps that it tried the step."""
        return tuple((self._tried(act),) for (act,) in runs)

    def _tried(self, act: Act) -> Act:
        return attrs.evolve(act, change=also(act.change, self.bits.tried.get(act.name, 0)), tries=True)

    def raised(self, name: str) -> Run:
        """The step raising."""
        return (self._tried(Act("raise", name)),)

    def refused(self, trigger: str) -> Runs:
        """The trigger refused by its rules after its steps, if it can be."""
        test = self.asked(trigger)
        return () if test == ALWAYS else ((Act("refuse", trigger, test=test, wanted=False),),)

    def entered(self, transition: Transition, *, asked: bool = False) -> Runs:
        """The state entered that `transition` leads to, if `asked` by its rules' leave. A reset forgets its ledger."""
        slot = self.bits.scopes["slot"] if transition.on == self.spec.lifecycle.on_reset else 0
        change = Change(clear=slot, put=self.bits.fresh & slot)
        test = self.asked(transition.on) if asked else ALWAYS
        claims = (*(self._watches(transition.on) if asked else ()), *self.claims(transition.to))
        return ((Act("state", transition.to, transition.on, test=test, change=change, claims=claims),),)

    def forgetting(self, trigger: str) -> Runs:
        """Another slot beginning again by `trigger`: sums lose what it had, if there are any."""
        sums = [(name, gauge) for name, gauge in self.bits.gauges.items() if self.spec.counters[name].sums]
        each = ((((name, n),) for n in range(1, gauge.high + 1)) for name, gauge in sums)
        return tuple((self._forgotten(trigger, given),) for givens in each for given in givens)

    def _forgotten(self, trigger: str, given: Given) -> Act:
        test, change = self.bits.given(given), self.bits.forgotten(given)
        return Act("forget", trigger, whose="other", test=test, change=change, given=given)

    # -- runs of acts --

    def all_forced(self, names: Iterable[str], whose: Whose = "own") -> Runs:
        """All of these steps, in order, forced."""
        return chained(*(lively(self.forced(name, whose)) for name in names))

    def untried(self, names: Iterable[str], maybe_tried: Iterable[str]) -> Runs:
        """Any of these steps, in order, each done with any outcome or raising, save those that were tried already."""
        return chained(*(self._untried(name, name in set(maybe_tried)) for name in names))

    def _untried(self, name: str, maybe_tried: bool) -> Runs:
        fresh = Test(self.bits.tried[name], 0) if maybe_tried else ALWAYS
        done = ((attrs.evolve(act, test=act.test & fresh),) for (act,) in self.step(name, asked=False))
        return (*NONE, *done)


def lively(runs: Runs) -> Runs:
    """`runs` without acts on which nothing depends."""
    return tuple(dict.fromkeys(tuple(act for act in run if not act.idle) for run in runs))


def also(change: Change, put: int) -> Change:
    """`change`, with further bits put on."""
    return attrs.evolve(change, clear=change.clear | put, put=change.put | put)
