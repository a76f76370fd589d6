"""Tables made while the docs are built: a shipped spec's transitions and rules, and the keys that a spec may have.

`spec-keys` takes a class of `tsgraph.spec.model` and a line `key: meaning` for each of its keys. Type and default come
from the class; a key without a line, or a line without a key, is an error, so that the reference cannot rot.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import attrs
from sphinx.util.docutils import SphinxDirective

from tsgraph.spec import model
from tsgraph.spec.load import load_spec
from tsgraph.spec.structure import RENAMED
from tsgraph.testing.rules import rule_rows

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", model.Pad: "value or sink"}
APART = {"name", "transitions", "condition"}
"""Fields that are no key of their table: a table's own key, `[[transitions]]`, and a rule's flat condition."""


class _Table(SphinxDirective):
    """A Markdown table, parsed like the page around it."""

    required_arguments = 1
    header: Sequence[str]

    def run(self) -> list[nodes.Node]:
        """Returns the table."""
        lines = [self.header, ["---"] * len(self.header), *self.rows()]
        return self.parse_text_to_nodes("\n".join(f"| {' | '.join(line)} |" for line in lines))

    def rows(self) -> Iterable[Sequence[str]]:
        """The cells, row by row, as Markdown."""
        raise NotImplementedError


class Transitions(_Table):
    """The transitions of a shipped spec."""

    header = ("trigger", "from", "to", "steps", "because")

    def rows(self) -> Iterable[Sequence[str]]:
        for transition in load_spec(self.arguments[0]).lifecycle.transitions:
            repeat = f" ({transition.repeat} times)" if transition.repeat > 1 else ""
            cleanup = f"; finally {_codes(transition.cleanup)}" if transition.cleanup else ""
            yield (
                _codes([transition.on]),
                _codes(transition.source),
                _codes([transition.to]),
                f"{_codes(transition.steps)}{repeat}{cleanup}".removeprefix("; "),
                transition.because,
            )


class Rules(_Table):
    """The rules of a shipped spec."""

    header = ("rule", "guards", "demands that", "because", "fix")

    def rows(self) -> Iterable[Sequence[str]]:
        for rule in load_spec(self.arguments[0]).rules:
            needs = f" (with a {rule.needs})" if rule.needs in model.COLLABORATORS else ""
            yield rule.id, _codes(rule.guards), f"{rule.condition}{needs}", rule.because, rule.fix


class Keys(_Table):
    """The keys of one table of a spec: type and default from the model, the meaning from the page."""

    header = ("key", "type", "default", "meaning")
    has_content = True

    def rows(self) -> Iterable[Sequence[str]]:
        cl = getattr(model, self.arguments[0])
        meanings = dict(line.split(": ", 1) for line in self.content)
        fields = {_key(cl, field): field for field in attrs.fields(cl) if _is_key(cl, field)}
        if fields.keys() != meanings.keys():
            raise self.error(f"{cl.__name__} has the keys {', '.join(fields)}; explained are {', '.join(meanings)}")
        hints = get_type_hints(cl)
        for key, meaning in meanings.items():
            yield f"`{key}`", _type(hints[fields[key].name]), _default(fields[key]), meaning


_rows_of = functools.cache(rule_rows)
"""Each row takes a proof; a page asks twice."""


class LawRules(_Table):
    """The rules of a shipped spec that the contract numbers; with the argument `own` after its name, the others."""

    header = ("rule", "demands", "because otherwise", "declared as", "its removal shows in")
    optional_arguments = 1

    def rows(self) -> Iterable[Sequence[str]]:
        own = self.arguments[1:] == ["own"]
        return (attrs.astuple(row) for row in _rows_of(self.arguments[0]) if (row.number is None) is own)


class LawProperties(_Table):
    """The properties of a shipped spec."""

    header = ("property", "says", "at", "needs")

    def rows(self) -> Iterable[Sequence[str]]:
        for prop in load_spec(self.arguments[0]).properties:
            yield prop.id, prop.says, _codes(prop.when), prop.needs or ""


def _is_key(cl: type, field: attrs.Attribute[Any]) -> bool:
    return field.name not in (("source",) if cl is model.Spec else APART)


def _key(cl: type, field: attrs.Attribute[Any]) -> str:
    return RENAMED.get(cl, {}).get(field.name, field.name)


def _type(hint: Any) -> str:
    if hint in WORDS:
        return WORDS[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(f'`"{word}"`' for word in inner)
    if origin is tuple:
        return f"list of {_type(inner[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"table of {_type(inner[1])}"
    if inner:
        return " or ".join(dict.fromkeys(_type(part) for part in inner if part is not NoneType))
    return f"table ({hint.__name__})"


def _default(field: attrs.Attribute[Any]) -> str:
    if field.default is attrs.NOTHING:
        return "required"
    if field.default is None or isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]
        return "none"
    if attrs.has(type(field.default)):
        return "empty"
    return f"`{json.dumps(field.default)}`"


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    of_spec = {"spec-transitions": Transitions, "spec-rules": Rules, "spec-keys": Keys}
    for name, directive in {**of_spec, "law-rules": LawRules, "law-properties": LawProperties}.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True}
