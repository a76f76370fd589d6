"""Small specs drawn by hypothesis: few states and steps, with rules, scopes, counters, sessions and failures."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tsgraph.spec.model import (
    After,
    AtLeast,
    Clause,
    Counter,
    CounterIs,
    Lifecycle,
    ModeIs,
    Policy,
    Property,
    Rule,
    Scope,
    Serving,
    Session,
    Sizes,
    Spec,
    Step,
    Switch,
    Transition,
    Warmup,
)

SCOPES: st.SearchStrategy[Scope] = st.sampled_from(("slot", "slot", "slot", "variant", "runtime"))
STEPS = ("a", "b", "c", "d")
EVENTS = ("A", "B", "C", "D", "D2")
MOMENTS = ("A", "B", "D2", "ready", "ready", "stale", "failed", "failed", "fresh", "fresh")
TAKEN = st.lists(st.sampled_from(STEPS), max_size=3, unique=True).map(tuple)


def spec_of(transitions: tuple[Transition, ...], **words: Any) -> Spec:
    """A spec around `transitions`: states as they name them; the roles are `fail`, `expire`, `drop` and `reset`."""
    given: dict[str, Any] = {"counters": {}, "modes": {}, "rules": (), "properties": (), "steps": {}}
    given |= {"session": Session(), "serving": Serving(), **words}
    roles = {"on_failure": "fail", "on_change": "expire", "on_release": "drop", "on_reset": "reset"}
    states = tuple(dict.fromkeys(state for t in transitions for state in (*t.source, t.to)))
    return Spec(
        name="drawn",
        version=1,
        lifecycle=Lifecycle(
            initial="fresh", final=("gone",), replays_in=("ready",), states=states, transitions=transitions, **roles
        ),
        warmup=Warmup(forwards=1),
        sizes=Sizes(default=(1,), default_without_padding=(1,), cap=1),
        buffers={},
        outputs={},
        policy=Policy(freeze_gc=False),
        **given,
    )


def lifecycle(steps: tuple[str, ...], **words: Any) -> tuple[Transition, ...]:
    """fresh → (make) ready → (expire) stale; all fail, are dropped, begin again and end; `words` change them."""
    rows: dict[str, dict[str, Any]] = {
        "make": {"source": ("fresh",), "to": "ready", "steps": steps},
        "expire": {"source": ("ready",), "to": "stale"},
        "fail": {"source": ("fresh",), "to": "failed"},
        "drop": {"source": ("ready", "stale", "failed"), "to": "dropped"},
        "reset": {"source": ("stale", "failed", "dropped"), "to": "fresh"},
        "end": {"source": ("fresh", "ready", "stale", "failed", "dropped"), "to": "gone"},
    }
    for on, changes in words.items():
        rows[on] = {**rows.get(on, {}), **changes}
    return tuple(Transition(on=on, **row) for on, row in rows.items())


@st.composite
def conditions(draw: st.DrawFn) -> Any:
    """Any condition over the events, the counter `n` and the mode `m`."""
    kind = draw(st.sampled_from(["after", "after", "after", "least", "counter", "mode"]))
    if kind == "after":
        return After(*draw(st.lists(st.sampled_from(EVENTS), min_size=2, max_size=2)))
    if kind == "least":
        return AtLeast(draw(st.sampled_from(EVENTS)), draw(st.integers(0, 2)))
    if kind == "counter" and draw(st.integers(0, 2)) == 0:
        return CounterIs("all", 0)
    return CounterIs("n", draw(st.integers(-1, 2))) if kind == "counter" else ModeIs("m", draw(st.booleans()))


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Step]:
    """Four steps; the last has two outcomes. Some move the counter or the mode."""
    made = {}
    for name, events in zip(STEPS, [("A",), ("B",), ("C",), ("D", "D2")], strict=True):
        words: dict[str, Any] = {}
        effect = draw(st.sampled_from(["", "", "count", "set", "mode", "own"]))
        if effect == "own":
            words = draw(st.sampled_from([{"count": {"own": 1}}, {"count": {"own": -1}}, {"set": {"own": 0}}]))
        elif effect == "count":
            words["count"] = {"n": draw(st.sampled_from([-2, -1, 1, 1, 3]))}
        elif effect:
            words[effect] = {"n": draw(st.integers(0, 1))} if effect == "set" else {"m": draw(st.booleans())}
        made[name] = Step(name=name, event=events, **words)
    return made


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """Any small spec; it need not be a sensible one."""
    fail: dict[str, Any] = {"steps": draw(TAKEN)[:1], "cleanup": draw(TAKEN)[:2]}
    words: dict[str, dict[str, Any]] = {
        "fail": fail,
        "make": {"cleanup": draw(TAKEN)[:1], "repeat": draw(st.integers(0, 2))},
    }
    if draw(st.booleans()):
        words["make"]["to"] = "half"
        words["finish"] = {"source": ("half",), "to": "ready", "steps": draw(TAKEN)}
        fail["source"] = draw(st.sampled_from([("fresh", "half"), ("fresh",)]))
    words["end"] = {"source": ("fresh", "ready", "failed"), "cleanup": draw(TAKEN)[:1]}
    transitions = lifecycle(draw(TAKEN), **words)
    guarded = [t.on for t in transitions if t.on != "fail" and (t.steps or not t.cleanup)]
    floor, made = draw(st.sampled_from([None, 0])), draw(steps())

    def nobodys() -> tuple[str, ...]:
        """Steps outside of transitions: where there is no slot, nothing that is summed over slots is moved."""
        return tuple(name for name in draw(TAKEN) if "own" not in (*made[name].count, *made[name].set))

    return spec_of(
        transitions,
        steps=made,
        counters={
            "n": Counter(name="n", counts="drawn", scope=draw(SCOPES), floor=floor),
            "own": Counter(name="own", counts="drawn", floor=0),
            "all": Counter(name="all", counts="drawn", scope="runtime", sums="own"),
        },
        modes={"m": Switch(name="m", scope=draw(SCOPES))},
        session=Session(enter=nobodys()[:1], leave=nobodys()[:1]) if draw(st.booleans()) else Session(),
        serving=Serving(push=nobodys()[:1], replay=nobodys()[:2], eager=nobodys()[:1])
        if draw(st.booleans())
        else Serving(),
        rules=tuple(_rule(draw, f"R{n}", guarded) for n in range(draw(st.integers(0, 4)))),
        properties=tuple(_property(draw, f"P{n}") for n in range(10)),
    )


def _rule(draw: st.DrawFn, name: str, triggers: list[str]) -> Rule:
    guards = draw(
        st.lists(st.sampled_from([*STEPS, *STEPS, *triggers, *triggers]), min_size=1, max_size=2, unique=True)
    )
    condition, scope = draw(conditions()), draw(SCOPES)
    return Rule(id=name, guards=tuple(guards), condition=condition, scope=scope, because="drawn", fix="draw another")


def _property(draw: st.DrawFn, name: str) -> Property:
    when = (draw(st.sampled_from(MOMENTS)),)
    clauses = (Clause(condition=draw(conditions()), scope=draw(SCOPES)),)
    before = draw(st.booleans())
    return Property(id=name, says="drawn", when=when, before=clauses if before else (), holds=() if before else clauses)
