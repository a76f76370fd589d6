"""JSON schemas as regular expressions: what has no recursion is regular. For all else there is the xgrammar adapter.

The text is compact (no spaces), its properties stand in the order of the schema, and none but these appear. So it is
one of the texts that validate; a model need not be able to write every one of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

from tsgraph.errors import BadGrammar
from tsgraph.grammar.regex import literal, parse

Schema = Mapping[str, Any]

_NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly"}
_CHARACTER = r'(?:[^"\\\x00-\x1f\x7f]|\\["\\/bfnrt]|\\u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))'
_INTEGER = r"(?:0|[1-9][0-9]{0,14})"
_NUMBER = _INTEGER + r"(?:\.[0-9]{1,15})?(?:[eE][+\-]?[0-9]{1,2})?"
_MOST_LISTED = 2000
_ESCAPED = (*range(0x20), ord('"'), ord("\\"))
_TYPES: dict[Any, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


def expression_of(schema: Any) -> str:
    """The regular expression of the texts that a schema lets a model write.

    Raises: BadGrammar for what it cannot say, with the path in the schema.
    """
    return _value(schema, "schema")


def _refuse(path: str, what: str) -> NoReturn:
    raise BadGrammar(f"{path}: {what}", hint="leave it out, or use the xgrammar adapter (extra `grammar`)", path=path)


def _value(schema: Any, path: str) -> str:
    if not isinstance(schema, Mapping):
        _refuse(path, f"a schema is an object, not {schema!r}")
    if "anyOf" in schema:
        _only(schema, {"anyOf"}, path)
        return _any_of([_value(each, f"{path}.anyOf[{i}]") for i, each in enumerate(schema["anyOf"])], path)
    if "const" in schema or "enum" in schema:
        return _listed(schema, path)
    kind = schema.get("type")
    if isinstance(kind, list):
        return _any_of([_value(_as_one(schema, each), path) for each in kind], path)
    if kind not in _KINDS:
        _refuse(path, f"the type {kind!r} is not one of {', '.join(_KINDS)}")
    work, words = _KINDS[kind]
    _only(schema, {*words, "type"}, path)
    return work(schema, path)


def _as_one(schema: Schema, kind: Any) -> Schema:
    """A schema of several types as that of one: words about the others say nothing of it."""
    others = {word for _, words in _KINDS.values() for word in words} - set(_KINDS[kind][1] if kind in _KINDS else ())
    return {word: value for word, value in schema.items() if word not in others} | {"type": kind}


def _only(schema: Schema, words: Collection[str], path: str) -> None:
    """Refuse words that would narrow what is written here, as leaving them out would make invalid texts."""
    unknown = sorted(schema.keys() - set(words) - _NOTES)
    if unknown:
        _refuse(f"{path}.{unknown[0]}", "not understood by the built-in matcher")


def _any_of(ways: list[str], path: str) -> str:
    if not ways:
        _refuse(path, "there is nothing to choose from")
    return f"(?:{'|'.join(ways)})"


def _listed(schema: Schema, path: str) -> str:
    word = "const" if "const" in schema else "enum"
    _only(schema, {word, "type"}, path)
    values = [schema["const"]] if word == "const" else schema["enum"]
    kinds = schema.get("type", list(_TYPES))
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return _any_of([literal(_compact(value)) for value in values if any(_is(value, kind) for kind in kinds)], path)


def _is(value: Any, kind: Any) -> bool:
    """Whether `value` is of a type of JSON's; in Python a bool is an int, too."""
    return isinstance(value, _TYPES.get(kind, ())) and (kind == "boolean" or not isinstance(value, bool))


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _string(schema: Schema, path: str) -> str:
    if "pattern" in schema:
        _only(schema, {"pattern", "type"}, path)
        return f'"(?:{_inside(schema["pattern"], path)})"'
    return f'"{_CHARACTER}{_bounds(schema, "minLength", "maxLength", path)}"'


def _inside(pattern: str, path: str) -> str:
    """A pattern without its anchors: it needs both, and may match nothing that JSON has to escape."""
    if not (pattern.startswith("^") and pattern.endswith("$") and not pattern.endswith("\\$")):
        _refuse(f"{path}.pattern", "a pattern starts with `^` and ends with `$`")
    spans = parse(pattern[1:-1]).spans()
    if any(first <= bad <= last for first, last in spans for bad in _ESCAPED):
        _refuse(f"{path}.pattern", "a pattern may not match what JSON has to escape")
    return pattern[1:-1]


def _bounds(schema: Schema, least: str, most: str, path: str) -> str:
    low, high = schema.get(least, 0), schema.get(most)
    for word, value in ((least, low), (most, low if high is None else high)):
        if type(value) is not int or value < 0:
            _refuse(f"{path}.{word}", f"{value!r} is not a number of things")
    return f"{{{low},{'' if high is None else high}}}"


def _integer(schema: Schema, path: str) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and high is None:
        return f"-?{_INTEGER}"
    if low == 0 and high is None:
        return _INTEGER
    if type(low) is not int or type(high) is not int or high - low not in range(_MOST_LISTED):
        _refuse(path, f"bounds of an integer are both whole numbers, at most {_MOST_LISTED} apart, or a minimum of 0")
    return _any_of([literal(str(value)) for value in range(low, high + 1)], path)


def _number(schema: Schema, path: str) -> str:
    if schema.get("minimum", 0) != 0:
        _refuse(f"{path}.minimum", "a number has no bounds but a minimum of 0")
    return _NUMBER if "minimum" in schema else f"-?{_NUMBER}"


def _boolean(_schema: Schema, _path: str) -> str:
    return "(?:true|false)"


def _null(_schema: Schema, _path: str) -> str:
    return "null"


def _array(schema: Schema, path: str) -> str:
    item = _value(schema.get("items"), f"{path}.items")
    low, high = schema.get("minItems", 0), schema.get("maxItems")
    _bounds(schema, "minItems", "maxItems", path)
    if high == 0:
        return r"\[\]"
    more = {"minItems": max(low - 1, 0)} | ({} if high is None else {"maxItems": high - 1})
    filled = f"{item}(?:,{item}){_bounds(more, 'minItems', 'maxItems', path)}"
    return rf"\[{filled}\]" if low else rf"\[(?:{filled})?\]"


def _object(schema: Schema, path: str) -> str:
    properties = schema.get("properties", {})
    required = set(schema.get("required", ()))
    if missing := sorted(required - properties.keys()):
        _refuse(f"{path}.required", f"{missing[0]!r} is not among the properties")
    members = [
        (f"{literal(_compact(name))}:{_value(each, f'{path}.properties.{name}')}", name in required)
        for name, each in properties.items()
    ]
    return rf"\{{{_members(members)}\}}"


def _members(members: list[tuple[str, bool]]) -> str:
    """Members in their order, those that are not required each there or not, with commas between those that are."""
    after = ""
    first = ""
    for text, needed in reversed(members):
        first = f"{text}{after}" if needed else _one_of(f"{text}{after}", first)
        after = f",{text}{after}" if needed else f"(?:,{text})?{after}"
    return first


def _one_of(with_it: str, without: str) -> str:
    return f"(?:{with_it}|{without})"


_Work = Callable[[Schema, str], str]

_KINDS: dict[Any, tuple[_Work, tuple[str, ...]]] = {
    "string": (_string, ("minLength", "maxLength", "pattern")),
    "integer": (_integer, ("minimum", "maximum")),
    "number": (_number, ("minimum",)),
    "boolean": (_boolean, ()),
    "null": (_null, ()),
    "array": (_array, ("items", "minItems", "maxItems")),
    "object": (_object, ("properties", "required", "additionalProperties")),
}
"""For each type what writes it, and the words about it that are understood."""
