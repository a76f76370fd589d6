"""What a step returns, and how it is cut to the live rows.

A step returns any pytree. Marks say for each leaf whether it is per request, per token or whole: one word for all of
it, or the same nesting with words at the leaves. A leaf without a mark whose leading size could be rows is refused:
guessing would hand pad rows to the caller (rule R40, fault O4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import torch
from torch.utils import _pytree as pytree

from tsgraph.errors import ContractViolation

PER = ("request", "token", "whole")
Marks = Any
"""A word of `PER`, or a mapping or sequence nested like the outputs with words at its leaves. None: nothing is said."""


@attrs.define(eq=False)
class Outputs:
    """The static outputs of one recording. The next replay of any graph of the pool overwrites them (R5, R40)."""

    leaves: tuple[torch.Tensor | None, ...]
    rows_per_live: tuple[int | None, ...]
    structure: pytree.TreeSpec
    _cut: dict[int, Any] = attrs.field(factory=dict, init=False)
    _copy: Callable[[Any], Any] | None = attrs.field(default=None, init=False)

    def cut(self, live: int) -> Any:
        """The outputs of `live` rows: views of static memory, in the structure that the step returned.

        The same views at each call, in containers that are the caller's own.
        """
        cut = self._cut.get(live)
        if cut is None:
            cut = self._cut[live] = self._narrow(live)
            self._copy = copy_of(cut)
        return cut if self._copy is None else self._copy(cut)

    def _narrow(self, live: int) -> Any:
        pairs = zip(self.leaves, self.rows_per_live, strict=True)
        with torch.inference_mode():
            leaves = [leaf if leaf is None or per is None else leaf[: live * per] for leaf, per in pairs]
        return pytree.tree_unflatten(leaves, self.structure)


def copy_of(cut: Any) -> Callable[[Any], Any] | None:
    """What copies the containers of outputs like `cut`, the cheapest that does; None where nobody can change them."""
    if _is_leaf(cut) or (isinstance(cut, tuple) and all(map(_is_leaf, cut))):
        return None
    if type(cut) is list and all(map(_is_leaf, cut)):
        return list.copy
    if type(cut) is dict and all(map(_is_leaf, cut.values())):
        return dict.copy
    return lambda cut: pytree.tree_map(lambda leaf: leaf, cut)


def _is_leaf(part: Any) -> bool:
    return part is None or isinstance(part, torch.Tensor)


@attrs.frozen
class OutputMarks:
    """How the leaves of a step's return relate to rows. `optional` names top-level leaves that may be None."""

    marks: Marks
    optional: frozenset[str] = frozenset()

    def bind(self, returned: Any, *, rows: int, tokens: int) -> Outputs:
        """The outputs of a recording of `rows` rows and `tokens` tokens.

        Raises: ContractViolation for a leaf that is no tensor, unmarked where it could be rows, or not as marked.
        """
        paths, structure = pytree.tree_flatten_with_path(returned)
        self._check_complete(returned)
        per = tuple(_Leaf(path, leaf, self._mark(path)).rows_per_live(rows, tokens) for path, leaf in paths)
        return Outputs(tuple(leaf for _, leaf in paths), per, structure)

    def _mark(self, path: pytree.KeyPath) -> str | None:
        node = self.marks
        for key in path:
            if node is None or isinstance(node, str):
                break
            node = _child(node, key, path)
        return node if isinstance(node, str) else None

    def _check_complete(self, returned: Any) -> None:
        if not isinstance(self.marks, Mapping):
            return
        has = set(_names(returned))
        missing = [name for name in self.marks if name not in has and name not in self.optional]
        if missing:
            raise _violation("", f"outputs named {', '.join(self.marks)}", f"no {', '.join(missing)}")


@attrs.frozen
class _Leaf:
    """One leaf on its way to a checked mark."""

    path: pytree.KeyPath
    leaf: Any
    mark: str | None

    def rows_per_live(self, rows: int, tokens: int) -> int | None:
        """How many leading entries each live row has; None where the leaf is not cut."""
        if self.leaf is None:
            return None
        if not isinstance(self.leaf, torch.Tensor):
            raise _violation(self.where, "a tensor or None (a replay runs no Python)", repr(self.leaf)[:60])
        if self.mark is None:
            self._check_unambiguous(rows, tokens)
            return None
        return self._checked(rows, tokens)

    @property
    def where(self) -> str:
        return pytree.keystr(self.path)

    @property
    def leading(self) -> int | None:
        return self.leaf.shape[0] if self.leaf.dim() else None

    def _check_unambiguous(self, rows: int, tokens: int) -> None:
        if self.leading in (rows, tokens):
            raise _violation(
                self.where,
                "a mark",
                f"none, and its shape {tuple(self.leaf.shape)} could be rows or whole",
                hint="say outputs='request', 'token' or 'whole' for it",
            )

    def _checked(self, rows: int, tokens: int) -> int | None:
        if self.mark not in PER:
            raise _violation(self.where, f"a mark among {', '.join(PER)}", repr(self.mark))
        if self.mark == "whole":
            return None
        leading = rows if self.mark == "request" else tokens
        if self.leading != leading:
            expected = f"{leading} leading entries, one per {self.mark}"
            raise _violation(self.where, expected, f"shape {tuple(self.leaf.shape)}")
        return leading // rows


def _child(node: Any, key: Any, path: pytree.KeyPath) -> Any:
    name = getattr(key, "key", getattr(key, "name", getattr(key, "idx", None)))
    try:
        return node[name]
    except (KeyError, IndexError, TypeError):
        raise _violation(pytree.keystr(path), "a declared output", f"one that the marks {node!r} do not name") from None


def _names(returned: Any) -> Iterator[Any]:
    if isinstance(returned, Mapping):
        yield from returned
    else:
        yield from getattr(returned, "_fields", ())


def _violation(where: str, expected: str, got: str, hint: str = "") -> ContractViolation:
    return ContractViolation("step", f"output{where}", expected, got, hint=hint)
