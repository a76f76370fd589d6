"""How the emulation says that it cannot do something."""

from __future__ import annotations

import types
from typing import Any, NoReturn

from tsgraph.errors import NotEmulated


def not_emulated(name: str, why: str, hint: str = "test this part on a GPU") -> NotEmulated:
    """The error to raise where `name` is used."""
    return NotEmulated(f"{name} is not emulated: {why}", hint=hint, api=name)


def refusing(name: str, why: str, kind: type = types.FunctionType) -> Any:
    """What to put in the place of `name`: a function, or a class if it is one, that refuses to be called."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise not_emulated(name, why)

    refuse.__doc__ = f"Raises: NotEmulated: {why}."
    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    if kind is types.FunctionType:
        return refuse
    return type(refuse.__name__, (), {"__new__": refuse, "__doc__": refuse.__doc__})
