"""Strict leaves and containers for cattrs: 3 is no text, true is no number, a text is no list; all errors together."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import attrs
from cattrs import BaseValidationError, Converter, IterableValidationError, IterableValidationNote

from tsgraph.spec.problems import Problem, shown, suggestion

WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", types.NoneType: ""}


class Wrong(Exception):
    """One value cannot be structured: its problems, with addresses from that value on."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__(*problems)


def is_leaf(type_: Any) -> bool:
    """Whether `type_` is a text, number or truth value, a literal, or a union of these."""
    return type_ in WORDS or get_origin(type_) is Literal or _is_union(type_)


def _is_union(type_: Any) -> bool:
    return get_origin(type_) in (Union, types.UnionType) and all(is_leaf(inner) for inner in get_args(type_))


def leaf(value: Any, type_: Any) -> Any:
    """`value` itself, if it is exactly of the type: 3 is not "3", and true is not 1. Raises Wrong."""
    allowed, words = _leaf_types(type_)
    if type(value) in allowed or (isinstance(value, str) and value in words):
        return value
    numbers = [inner for inner in allowed if not (inner is int and float in allowed)]
    expected = " or ".join(filter(None, [*(WORDS[inner] for inner in numbers), *(f"'{word}'" for word in words)]))
    near = suggestion(value, words) if isinstance(value, str) else ""
    raise Wrong(Problem((), f"expected {expected}, got {shown(value)}{near}"))


def _leaf_types(type_: Any) -> tuple[list[Any], list[str]]:
    """The types, and the words of literals, that a leaf may have."""
    if get_origin(type_) is Literal:
        return [], list(get_args(type_))
    if not _is_union(type_):
        return [type_], []
    inner = [_leaf_types(part) for part in get_args(type_)]
    return [t for types_, _ in inner for t in types_], [word for _, words in inner for word in words]


def table(value: Any) -> Mapping[Any, Any]:
    """`value`, if it is a table. Raises Wrong."""
    if not isinstance(value, Mapping):
        raise Wrong(Problem((), f"expected a table, got {shown(value)}"))
    return value


def listing(value: Any) -> list[Any]:
    """`value`, if it is a list. Raises Wrong."""
    if not isinstance(value, list):
        raise Wrong(Problem((), f"expected a list, got {shown(value)}"))
    return value


def each(items: Iterable[tuple[Any, Any]], structure: Callable[[Any], Any], type_: Any) -> Iterator[tuple[Any, Any]]:
    """Every item, structured, with its key. Raises IterableValidationError, at the end, with the errors of all."""
    errors = []
    for key, item in items:
        try:
            yield key, structure(item)
        except (BaseValidationError, Wrong) as error:
            error.__notes__ = [*getattr(error, "__notes__", ()), IterableValidationNote(str(key), key, type_)]
            errors.append(error)
    if errors:
        raise IterableValidationError("elements", errors, type_)


def tuple_factory(type_: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    """How to structure a `tuple[X, ...]`: from a list, never from a text."""
    (element, _) = get_args(type_)

    def structure_tuple(value: Any, _: Any) -> tuple[Any, ...]:
        items = each(enumerate(listing(value)), lambda item: converter.structure(item, element), element)
        return tuple(item for _, item in items)

    return structure_tuple


def mapping_factory(type_: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    """How to structure a `Mapping[str, X]`: from a table; where X has a `name`, its key is that name."""
    (_, element) = get_args(type_)
    named = attrs.has(element) and "name" in attrs.fields_dict(element)

    def structure_entry(entry: tuple[Any, Any]) -> Any:
        return converter.structure(_called(*entry) if named else entry[1], element)

    def structure_mapping(value: Any, _: Any) -> dict[str, Any]:
        return dict(each(((key, (key, item)) for key, item in table(value).items()), structure_entry, element))

    return structure_mapping


def _called(name: Any, value: Any) -> dict[str, Any]:
    """An entry of a named table knows its name from its key."""
    if "name" in table(value):
        raise Wrong(Problem(("name",), "unknown key; the table's own key is its name", extra=True))
    return {**value, "name": name}
