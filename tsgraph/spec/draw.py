"""A spec's lifecycle as a Mermaid state diagram, drawn from the data so that it cannot differ from what runs."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from tsgraph.errors import CallerError
from tsgraph.spec.model import Lifecycle, Spec, Transition
from tsgraph.spec.problems import listed, suggestion

MOST_ARROWS = 3
"""A trigger that leaves more states than these is drawn as one arrow from a box that names them all."""

ROLES = {"on_failure": "on failure", "on_change": "on change", "on_release": "on release", "on_reset": "on reset"}
STYLES = {
    "replays": "fill:#d8f0d8,stroke:#2e7d32",
    "failure": "fill:#f8dcdc,stroke:#b03030",
    "many": "fill:none,stroke-dasharray:4",
    "current": "stroke-width:4px,font-weight:bold",
}
LEGEND = {
    "replays": "permits replays",
    "failure": "where a failure ends",
    "many": "from each of these",
    "current": "where the slot is",
}
"""What each style says; the picture's legend has those that it uses."""


def draw_spec(spec: Spec, current: str | None = None) -> str:
    """A Mermaid `stateDiagram-v2` of the lifecycle; `current` is a state to mark.

    Raises: CallerError if `current` is no state of the spec.
    """
    law = spec.lifecycle
    if current is not None and current not in law.states:
        what = f"spec {spec.name} has no state {current!r}{suggestion(current, law.states)}"
        raise CallerError(what, hint=f"its states are {listed(law.states)}", state=current)
    return "\n".join(["stateDiagram-v2", *(f"    {line}" for line in _Drawing(law, current).lines())])


@attrs.frozen
class _Drawing:
    law: Lifecycle
    current: str | None

    def lines(self) -> Iterator[str]:
        yield f"[*] --> {self.law.initial}"
        for transition in self.law.transitions:
            yield from self._arrows(transition)
        yield from (f"{state} --> [*]" for state in self.law.final)
        yield from (f"classDef {name} {style}" for name, style in STYLES.items())
        yield from self._classes()
        yield from self._legend()

    def _arrows(self, transition: Transition) -> Iterator[str]:
        label = self._label(transition)
        if self._is_grouped(transition):
            yield f'state "{self._sources(transition)}" as {_group(transition)}'
            yield f"{_group(transition)} --> {transition.to}: {label}"
        else:
            yield from (f"{state} --> {transition.to}: {label}" for state in transition.source)

    def _is_grouped(self, transition: Transition) -> bool:
        return len(transition.source) > MOST_ARROWS

    def _sources(self, transition: Transition) -> str:
        lasting = {state for state in self.law.states if state not in self.law.final}
        return "any state" if lasting <= set(transition.source) else listed(transition.source)

    def _label(self, transition: Transition) -> str:
        notes = [words for role, words in ROLES.items() if getattr(self.law, role) == transition.on]
        notes += [_counted(len(transition.steps), "step")] if transition.steps else []
        notes += [f"{transition.repeat} times"] if transition.repeat != 1 else []
        notes += ["cleans up"] if transition.cleanup else []
        return f"{transition.on} ({', '.join(notes)})" if notes else transition.on

    def _classes(self) -> Iterator[str]:
        yield from (f"class {state} replays" for state in self.law.replays_in)
        yield f"class {self.law.transition(self.law.on_failure).to} failure"
        yield from (f"class {_group(t)} many" for t in self.law.transitions if self._is_grouped(t))
        if self.current is not None:
            yield f"class {self.current} current"

    def _legend(self) -> Iterator[str]:
        used = {
            "replays": self.law.replays_in,
            "failure": True,
            "many": any(self._is_grouped(transition) for transition in self.law.transitions),
            "current": self.current,
        }
        styles = [style for style, where in used.items() if where]
        yield 'state "legend" as legend__'
        yield "state legend__ {"
        yield from (f'    state "{LEGEND[style]}" as legend__{style}' for style in styles)
        yield "}"
        yield from (f"class legend__{style} {style}" for style in styles)


def _group(transition: Transition) -> str:
    return f"from__{transition.on}"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
