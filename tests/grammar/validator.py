"""Whether a value is valid under a JSON schema, by the letter of it: a judge that knows nothing of matchers."""

from __future__ import annotations

import re
from typing import Any

TYPES = {
    "string": str,
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


def valid(value: Any, schema: Any, root: Any = None) -> bool:
    """Whether `value` is valid under `schema`; `$ref` may only be `#`."""
    root = schema if root is None else root
    if schema.get("$ref") == "#":
        return valid(value, root, root)
    for word in ("anyOf", "oneOf"):
        if word in schema and not any(valid(value, each, root) for each in schema[word]):
            return False
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    return _typed(value, schema) and _bounded(value, schema) and _inside(value, schema, root)


def _typed(value: Any, schema: Any) -> bool:
    kinds = schema.get("type", [])
    return not kinds or any(_is(value, kind) for kind in (kinds if isinstance(kinds, list) else [kinds]))


def _is(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (kind == "number" or float(value).is_integer())
    return isinstance(value, TYPES[kind])


def _bounded(value: Any, schema: Any) -> bool:
    if isinstance(value, str):
        fits = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        return fits and re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, list):
        return bool(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return True


def _inside(value: Any, schema: Any, root: Any) -> bool:
    if isinstance(value, list):
        return all(valid(each, schema.get("items", {}), root) for each in value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        whole = value.keys() >= set(schema.get("required", ()))
        closed = schema.get("additionalProperties", True) is not False or value.keys() <= known.keys()
        return whole and closed and all(valid(each, known.get(name, {}), root) for name, each in value.items())
    return True
