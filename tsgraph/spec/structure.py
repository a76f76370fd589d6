"""From TOML data to a `Spec`: strict about every type and key, and telling every problem at once with its address.

TOML and the model differ in a few shapes, each in one function here: entries of named tables know their name, a rule's
condition lies flat beside its other keys, a property's clause is `{ after = ["recorded", "forward"] }`, a pad is a bare
value or `{ sink = "name" }`, one event needs no list, and `[[transitions]]` stand beside `[lifecycle]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, get_origin

import attrs
from cattrs import (
    BaseValidationError,
    ClassValidationError,
    Converter,
    ForbiddenExtraKeysError,
    IterableValidationError,
)
from cattrs.gen import make_dict_structure_fn, override

from tsgraph.spec.model import (
    After,
    AtLeast,
    Buffer,
    Clause,
    Condition,
    CounterIs,
    Lifecycle,
    ModeIs,
    Pad,
    Policy,
    Property,
    Rule,
    Sizes,
    Spec,
    Step,
    Transition,
)
from tsgraph.spec.problems import Address, Problem, listed, shown, suggestion
from tsgraph.spec.references import expand
from tsgraph.spec.strict import Wrong, each, is_leaf, leaf, listing, mapping_factory, table, tuple_factory

T = TypeVar("T")
Reshape = Callable[[Mapping[str, Any]], Mapping[str, Any]]

CONDITIONS: dict[str, Any] = {"after": After, "at_least": AtLeast, "counter": CounterIs, "mode": ModeIs}
RENAMED: dict[Any, dict[str, str]] = {Transition: {"source": "from", "cleanup": "finally"}, ModeIs: {"value": "is"}}
NO_PAD = "missing; rows beyond the live ones would keep what an earlier step left there (B1)"


def structure(data: Mapping[str, Any]) -> tuple[Spec | None, list[Problem]]:
    """The spec that `data` says, or None and everything that is wrong with its keys and types."""
    return _structured(data, Spec)


def structure_policy(data: Mapping[str, Any]) -> tuple[Policy | None, list[Problem]]:
    """The policy that `data` says, or None and everything that is wrong with its words."""
    return _structured(data, Policy)


def _structured(data: Mapping[str, Any], cl: type[T]) -> tuple[T | None, list[Problem]]:
    try:
        return _CONVERTER.structure(data, cl), []
    except (BaseValidationError, Wrong) as error:
        return None, list(_problems(error, ()))


# -- from an exception to problems -------------------------------------------------------------------------------------


def _problems(error: BaseException, at: Address) -> Iterator[Problem]:
    """Every problem inside `error`, which structuring the value at `at` raised."""
    if isinstance(error, Wrong):
        yield from (attrs.evolve(problem, address=at + problem.address) for problem in error.problems)
    elif isinstance(error, ForbiddenExtraKeysError):
        yield from (_extra(error.cl, key, at) for key in sorted(error.extra_fields, key=str))
    elif isinstance(error, ClassValidationError):
        yield from _class_problems(error, at)
    elif isinstance(error, IterableValidationError):
        for inner, element in error.group_exceptions()[0]:
            yield from _problems(inner, (*at, element.index))
    else:
        raise error


def _class_problems(error: ClassValidationError, at: Address) -> Iterator[Problem]:
    attributes, others = error.group_exceptions()
    for inner, attribute in attributes:
        inside = _inside(error.cl, attribute.name, at)
        if isinstance(inner, KeyError):
            yield Problem(inside, NO_PAD if (error.cl, attribute.name) == (Buffer, "pad") else "missing")
        else:
            yield from _problems(inner, inside)
    for inner in others:
        yield from _problems(inner, at)


def _inside(cl: Any, attribute: str, at: Address) -> Address:
    """The address of a model's attribute in the TOML data."""
    if cl is Lifecycle and attribute == "transitions":
        return ("transitions",)
    flat = cl in (Rule, Clause) and attribute == "condition"
    return at if flat else (*at, RENAMED.get(cl, {}).get(attribute, attribute))


def _extra(cl: Any, key: str, at: Address) -> Problem:
    return Problem((*at, key), f"unknown key{suggestion(str(key), _keys(cl))}", extra=True)


def _keys(cl: Any) -> list[str]:
    """The keys that the table of a model class may have in TOML."""
    if cl is Spec:
        return ["name", "transitions", "extends", *(key for key in _own(cl) if key != "source")]
    return [*_own(cl), *_own(Rule), "kind"] if cl in CONDITIONS.values() else _own(cl)


def _own(cl: Any) -> list[str]:
    names = (field.name for field in attrs.fields(cl))
    return [RENAMED.get(cl, {}).get(name, name) for name in names if name not in ("condition", "name")]


# -- the shapes that differ --------------------------------------------------------------------------------------------


def _rule(value: Mapping[str, Any]) -> dict[str, Any]:
    own = {key: value[key] for key in value if key in _own(Rule)}
    return {**own, "condition": {key: value[key] for key in value if key not in own}}


def _clause(value: Mapping[str, Any]) -> dict[str, Any]:
    own = {key: value[key] for key in value if key in ("needs", "scope")}
    return {**own, "condition": {key: value[key] for key in value if key not in own}}


def _spec(value: Mapping[str, Any]) -> dict[str, Any]:
    """`[[transitions]]` belong to the lifecycle; `extends` has done its work."""
    rest = {key: value[key] for key in value if key not in ("transitions", "extends")}
    lifecycle = value.get("lifecycle")
    if not isinstance(lifecycle, Mapping):
        return rest
    if "transitions" in lifecycle:
        raise Wrong(Problem(("lifecycle", "transitions"), "unknown key; write [[transitions]] instead", extra=True))
    moved = {key: value[key] for key in value if key == "transitions"}
    return {**rest, "lifecycle": {**lifecycle, **moved}}


def _in_list(key: str) -> Reshape:
    return lambda value: {**value, key: [value[key]]} if isinstance(value.get(key), str) else value


RESHAPED: dict[Any, Reshape] = {
    Rule: _rule,
    Clause: _clause,
    Spec: _spec,
    Step: _in_list("event"),
    Property: _in_list("when"),
}


def _class_factory(cl: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    inner = _strictly(cl, converter)
    reshape: Reshape = RESHAPED.get(cl, dict)

    def structure_class(value: Any, _: Any) -> Any:
        return inner(reshape(table(value)), cl)

    return structure_class


def _strictly(cl: Any, converter: Converter) -> Any:
    return make_dict_structure_fn(cl, converter, _cattrs_forbid_extra_keys=True, **_overrides(cl))


def _overrides(cl: Any) -> dict[str, Any]:
    special: dict[Any, dict[str, Any]] = {
        Spec: {"source": override(omit=True)},
        Clause: {"condition": override(struct_hook=_clause_condition)},
        Sizes: {name: override(struct_hook=_sizes) for name in ("default", "default_without_padding")},
    }
    return {name: override(rename=key) for name, key in RENAMED.get(cl, {}).items()} | special.get(cl, {})


def _rule_condition(value: Any, _: Any) -> Any:
    """A rule's condition: `kind` says which keys it has."""
    rest = dict(value)
    kind = rest.pop("kind", None)
    if not isinstance(kind, str) or kind not in CONDITIONS:
        got = "missing" if kind is None else f"got {shown(kind)}"
        near = suggestion(str(kind), CONDITIONS)
        raise Wrong(Problem(("kind",), f"expected one of {listed(CONDITIONS)}, {got}{near}"))
    return _CONVERTER.structure(rest, CONDITIONS[kind])


def _clause_condition(value: Any, _: Any) -> Any:
    """A clause's condition: the kind, and its words in order."""
    kinds = list(value)
    if len(kinds) != 1 or kinds[0] not in CONDITIONS:
        raise Wrong(Problem((), f"expected exactly one of {listed(CONDITIONS)}, got {listed(kinds, none='nothing')}"))
    (kind,) = kinds
    names = _own(CONDITIONS[kind])
    words = value[kind]
    if not isinstance(words, list) or len(words) != len(names):
        raise Wrong(Problem((kind,), f"expected a list of {listed(names)}, got {shown(words)}"))
    return _ordered(kind, dict(zip(names, words, strict=True)))


def _ordered(kind: str, words: dict[str, Any]) -> Any:
    try:
        return _CONVERTER.structure(words, CONDITIONS[kind])
    except BaseValidationError as error:
        places = {name: index for index, name in enumerate(words)}
        problems = [(places[str(problem.address[0])], problem.what) for problem in _problems(error, ())]
        raise Wrong(*(Problem((kind, place), what) for place, what in problems)) from None


def _pad(value: Any, _: Any) -> Pad:
    if not isinstance(value, Mapping):
        return Pad(value=leaf(value, int | float | bool))
    if set(value) != {"sink"}:
        raise Wrong(Problem((), f'expected a value or {{ sink = "name" }}, got a table of {listed(value)}'))
    try:
        return Pad(sink=leaf(value["sink"], str))
    except Wrong as error:
        raise Wrong(attrs.evolve(error.problems[0], address=("sink",))) from None


def _sizes(value: Any, _: Any) -> tuple[int, ...]:
    def sizes(item: Any) -> range:
        found = expand(item)
        if isinstance(found, str):
            raise Wrong(Problem((), found))
        return found

    return tuple(size for _, span in each(enumerate(listing(value)), sizes, int) for size in span)


def _converter() -> Converter:
    converter = Converter(detailed_validation=True)
    factories: tuple[tuple[Any, Any], ...] = (
        (attrs.has, _class_factory),
        (_has_origin(tuple), tuple_factory),
        (_has_origin(Mapping), mapping_factory),
    )
    for predicate, factory in factories:
        converter.register_structure_hook_factory(predicate, factory)
    converter.register_structure_hook_func(is_leaf, leaf)
    for primitive in (str, int, float, bool):
        converter.register_structure_hook(primitive, leaf)
    converter.register_structure_hook_func(lambda t: t == Condition, _rule_condition)
    converter.register_structure_hook(Pad, _pad)
    return converter


def _has_origin(origin: Any) -> Callable[[Any], bool]:
    return lambda type_: get_origin(type_) == origin


_CONVERTER = _converter()
