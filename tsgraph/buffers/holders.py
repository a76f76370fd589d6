"""Tensors that objects hold, each with a dotted path, and with a way to look there again.

The walk is breadth first, so that the shortest path names a tensor; it knows cycles, and ends at bounds.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

import attrs
import numpy as np
import torch

MOST_OBJECTS = 4096
"""How many objects a walk opens."""

MOST_ELEMENTS = 512
"""How many elements of a list or dict it looks at."""

DEEPEST = 8
"""How many objects may lie one in the other."""

Find = Callable[[], torch.Tensor | None]
Step = tuple[bool, Any]
"""One step of a path: whether it is an item (else an attribute), and its key."""

_CLOSED = (str, bytes, int, float, complex, type, types.ModuleType, np.ndarray, torch.dtype, torch.device)
_CALLABLE = (types.FunctionType, types.MethodType, functools.partial)
_FOREIGN = (
    "torch", "numpy", "threading", "queue", "logging", "tsgraph.backends", "tsgraph.runtime", "tsgraph.assembly",
    "tsgraph.replay", "tsgraph.capture", "tsgraph.slots", "tsgraph.lifecycle", "tsgraph.spec",
    "tsgraph.adapters.tokenspeed",
)  # fmt: skip
"""Packages whose objects hold nothing of the user's, or what is declared anyway."""


@attrs.frozen
class Held:
    """A tensor where it is held: what kind of holder, its dotted `name` there, and `find`, which looks there again.

    `find` costs well below a microsecond for a short path; it gives None where no tensor is any more.
    """

    kind: str
    name: str
    tensor: torch.Tensor = attrs.field(repr=False)
    find: Find = attrs.field(repr=False)


# -- modules ----------------------------------------------------------------------------------------------------------


def held_by_modules(modules: Sequence[torch.nn.Module]) -> Iterator[Held]:
    """Parameters, buffers and plain tensor attributes, by dotted path; with several modules, after `modules[i]`.

    They are looked up in the submodule that holds them now: one that is replaced as a whole is not noticed.
    """
    for index, module in enumerate(modules):
        prefix = f"modules[{index}]." if len(modules) > 1 else ""
        for path, part in module.named_modules():
            inner = f"{prefix}{path}." if path else prefix
            for kind, holder in _holders(part):
                for name, value in holder.items():
                    if isinstance(value, torch.Tensor):
                        yield Held(kind, inner + name, value, functools.partial(holder.get, name))


def _holders(module: torch.nn.Module) -> tuple[tuple[str, dict[str, Any]], ...]:
    own: tuple[Any, Any] = (module._parameters, module._buffers)  # noqa: SLF001 - where torch itself looks them up
    return ("parameter", own[0]), ("module buffer", own[1]), ("attribute", vars(module))


# -- any object -------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Place:
    """Where the walk is: the value, how it is called, and the steps that lead to it."""

    kind: str
    name: str
    value: Any
    steps: tuple[Step, ...]
    depth: int

    def inner(self, name: str, value: Any, *steps: Step, kind: str = "") -> _Place:
        return _Place(kind or self.kind, name, value, (*self.steps, *steps), self.depth + 1)


def held_by(root: Any, kind: str, name: str, *, functions: bool = False) -> Iterator[Held]:
    """The tensors in `root`: in its attributes, in dicts, lists and tuples, in modules and in other objects, in depth.

    `functions`: also in what functions close over, are bound to, or read as globals, which is a kind of its own.
    """
    seen, todo = {id(root)}, deque([_Place(kind, name, root, (), 0)])
    while todo and len(seen) < MOST_OBJECTS:
        place = todo.popleft()
        if isinstance(place.value, torch.Tensor):
            yield Held(place.kind, place.name, place.value, finder(root, place.steps))
        elif place.depth < DEEPEST:
            new = [part for part in _parts(place) if _opens(part.value, functions) and id(part.value) not in seen]
            seen.update(id(part.value) for part in new)
            todo += new


def _opens(value: Any, functions: bool) -> bool:
    if value is None or isinstance(value, _CLOSED):
        return False
    if isinstance(value, torch.Tensor | torch.nn.Module | Mapping | list | tuple | deque):
        return True
    if isinstance(value, _CALLABLE):
        return functions
    return not type(value).__module__.startswith(_FOREIGN)


def _parts(place: _Place) -> Iterator[_Place]:
    value = place.value
    if isinstance(value, _CALLABLE):
        return _of_callable(place)
    if isinstance(value, torch.nn.Module):
        return _of_module(place)
    if isinstance(value, Mapping):
        return (place.inner(f"{place.name}[{k!r}]", value[k], (True, k)) for k in islice(value, MOST_ELEMENTS))
    if isinstance(value, list | tuple | deque) and not hasattr(value, "_fields"):
        elements = enumerate(islice(value, MOST_ELEMENTS))
        return (place.inner(f"{place.name}[{at}]", each, (True, at)) for at, each in elements)
    return _of_object(place)


def _of_object(place: _Place) -> Iterator[_Place]:
    for name in _attributes(place.value):
        yield place.inner(f"{place.name}.{name}", _given(place.value, name), (False, name))


def _of_module(place: _Place) -> Iterator[_Place]:
    own = vars(place.value)
    for holder in ("_parameters", "_buffers", "_modules"):
        for name, value in own.get(holder, {}).items():
            yield place.inner(f"{place.name}.{name}", value, (False, holder), (True, name))
    for name, value in own.items():
        if not name.startswith("_"):
            yield place.inner(f"{place.name}.{name}", value, (False, name))


def _attributes(value: Any) -> Iterator[str]:
    """Names of attributes that hold something, without running code: no properties."""
    fields: Iterable[str] | None = getattr(value, "_fields", None)
    yield from tuple(getattr(value, "__dict__", ()) if fields is None else fields)
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        yield from (slot for slot in ((slots,) if isinstance(slots, str) else slots) if not slot.startswith("__"))


def _given(value: Any, name: str) -> Any:
    """The attribute, or None: cells may be empty, slots too, and anything may refuse."""
    try:
        return getattr(value, name)
    except (AttributeError, ValueError, RuntimeError):
        return None


def _of_callable(place: _Place) -> Iterator[_Place]:
    value = place.value
    if isinstance(value, types.MethodType):
        yield place.inner("self", value.__self__, (False, "__self__"), kind="step self")
        yield place.inner(place.name, value.__func__, (False, "__func__"))
    elif isinstance(value, functools.partial):
        yield place.inner("argument", value.args, (False, "args"), kind="step")
        yield place.inner("argument", value.keywords, (False, "keywords"), kind="step")
        yield place.inner(place.name, value.func, (False, "func"))
    else:
        yield from _of_function(place, value)


def _of_function(place: _Place, function: types.FunctionType) -> Iterator[_Place]:
    for at, (name, cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)):
        steps: tuple[Step, ...] = ((False, "__closure__"), (True, at), (False, "cell_contents"))
        yield place.inner(name, _given(cell, "cell_contents"), *steps, kind="step closure")
    for name in function.__code__.co_names:
        if name in function.__globals__:
            read = function.__globals__[name]
            yield place.inner(name, read, (False, "__globals__"), (True, name), kind="step global")
    for at, each in enumerate(function.__defaults__ or ()):
        yield place.inner(f"[{at}]", each, (False, "__defaults__"), (True, at), kind="step default")
    for name, each in (function.__kwdefaults__ or {}).items():
        yield place.inner(name, each, (False, "__kwdefaults__"), (True, name), kind="step default")


# -- looking again ----------------------------------------------------------------------------------------------------


def finder(root: Any, steps: Sequence[Step]) -> Find:
    """What walks `steps` from `root` again: so that whatever was replaced on the way is noticed."""
    if len(steps) == 1 and not steps[0][0] and steps[0][1] in getattr(root, "__dict__", ()):
        return functools.partial(vars(root).get, steps[0][1])
    if steps and not any(item for item, _ in steps) and all("." not in name for _, name in steps):
        return functools.partial(_find_attribute, attrgetter(".".join(name for _, name in steps)), root)
    return functools.partial(_find_by_steps, root, tuple(steps))


def _find_attribute(get: Callable[[Any], Any], root: Any) -> torch.Tensor | None:
    try:
        found = get(root)
    except (AttributeError, ValueError):
        return None
    return found if isinstance(found, torch.Tensor) else None


def _find_by_steps(root: Any, steps: tuple[Step, ...]) -> torch.Tensor | None:
    found = root
    try:
        for item, key in steps:
            found = found[key] if item else getattr(found, key)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    return found if isinstance(found, torch.Tensor) else None


def unguarded(find: Find) -> Find:
    """`find` for those who look often: faster, and it raises where it would have given None."""
    if isinstance(find, functools.partial) and find.func is _find_attribute:
        get, root = find.args
        return functools.partial(get, root)
    return find


def one_look_up(find: Find) -> tuple[dict[str, Any], str] | None:
    """The dict in which `find` looks, and the key, where that is all it does: faster still."""
    holder = getattr(find.func, "__self__", None) if isinstance(find, functools.partial) else None
    return (holder, find.args[0]) if isinstance(holder, dict) else None  # type: ignore[attr-defined]
