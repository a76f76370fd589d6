"""Which values of a program are nobody's to say: memory that a replay may have used for something else.

Graphs that share a pool use each other's free blocks. The rules, by which a look at a tensor is *open* (any value is
legal, on a GPU and under emulation):

1. The graph that made it was not replayed since its capture: nothing wrote the tensor.
2. A graph of the same pool that was captured earlier was replayed after it: the tensor may lie where that graph keeps
   what it needs for a while. Replaying its own graph sets it right.
3. It was computed from an open value, or written together with one.

A graph that was captured later spares the tensor: the tensor was alive, since the program still has a name for it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from tests.fidelity.program import Program


@attrs.define(eq=False)
class _Capture:
    pool: object
    order: int
    settled: bool = False  # replayed, and not overwritten since
    reads: set[str] = attrs.field(factory=set)
    writes: set[str] = attrs.field(factory=set)


def open_lines(program: Program, observed: Sequence[Mapping[str, Any]]) -> set[int]:
    """The lines of the looks whose values are open, given which lines failed when the program ran."""
    analysis = _Analysis(_skipped(observed))
    analysis.walk(ast.parse(program.source()).body)
    return analysis.open


def _skipped(observed: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Where each attempt that failed stopped, by the line of the attempt."""
    failed = [each for each in observed if each["is"] == "error" and each.get("first") is not None]
    return {each["line"]: each["at"] or each["line"] for each in failed}


class _Analysis:
    def __init__(self, skipped: dict[int, int]) -> None:
        self.open: set[int] = set()
        self._skipped = skipped
        self._captures: dict[str, _Capture] = {}  # by the name of the graph, the last
        self._all: list[_Capture] = []
        self._makers: dict[str, _Capture] = {}  # by the name of the tensor
        self._tainted: set[str] = set()

    def walk(self, body: Sequence[ast.stmt], within: _Capture | None = None, stop: float = float("inf")) -> None:
        """Follow the statements in order, up to the line where they stopped."""
        for statement in body:
            if statement.lineno >= stop:
                return
            if isinstance(statement, ast.With):
                limit = min(stop, self._skipped.get(statement.lineno, stop))
                made = _capture_of(statement)
                if made is not None:
                    self.walk(statement.body, self._begin(*made), stop)  # what failed at the end, ran
                else:
                    self.walk(statement.body, within, limit)
            elif isinstance(statement, ast.Try | ast.For):
                self.walk(statement.body, within, stop)
            else:
                self._follow(statement, within)

    def _begin(self, graph: str, pool: str | None) -> _Capture:
        owner = self._captures.get(pool.removesuffix(".pool()")) if pool and pool.endswith(".pool()") else None
        capture = _Capture(owner.pool if owner else pool or object(), len(self._all))
        self._captures[graph] = capture
        self._all.append(capture)
        return capture

    def _follow(self, statement: ast.stmt, within: _Capture | None) -> None:
        if isinstance(statement, ast.Delete):
            return
        told = _told_by(statement)
        if told is not None:
            if any(map(self._is_open, told)):
                self.open.add(statement.lineno)
            return
        replayed = _replay_of(statement)
        if replayed is not None:
            if replayed in self._captures and within is None:
                self._replay(self._captures[replayed])
            return
        self._compute(statement, within)

    def _compute(self, statement: ast.stmt, within: _Capture | None) -> None:
        bound, read = set(_names(statement, ast.Store)), set(_names(statement, ast.Load))
        if within is not None:
            within.reads |= read - {name for name in read if self._makers.get(name) is within}
            if not bound:
                within.writes |= {name for name in read if self._makers.get(name) is not within}
            self._makers.update(dict.fromkeys(bound, within))
            self._tainted -= bound
            return
        touched = any(map(self._is_open, read))
        for name in bound or (read if touched else ()):
            self._makers.pop(name, None)
            (self._tainted.add if touched else self._tainted.discard)(name)

    def _replay(self, capture: _Capture) -> None:
        for other in self._all:
            if other.pool == capture.pool and other.order > capture.order:
                other.settled = False
        capture.settled = not any(map(self._is_open, capture.reads))
        if not capture.settled:
            self._tainted |= capture.writes

    def _is_open(self, name: str) -> bool:
        maker = self._makers.get(name)
        return name in self._tainted or (maker is not None and not maker.settled)


def _names(statement: ast.stmt, context: type[ast.expr_context]) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, context):
            yield node.id


def _capture_of(statement: ast.With) -> tuple[str, str | None] | None:
    call = statement.items[0].context_expr
    if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "torch.cuda.graph"):
        return None
    pools = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "pool"]
    return ast.unparse(call.args[0]), pools[0] if pools else None


def _replay_of(statement: ast.stmt) -> str | None:
    text = ast.unparse(statement)
    return text.removesuffix(".replay()") if text.endswith(".replay()") and "\n" not in text else None


def _told_by(statement: ast.stmt) -> set[str] | None:
    """The names that the program's `see` looks at; none for its other words, which change nothing."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    first = call.args[0] if call.func.id == "see" else None
    return {str(first.value)} if isinstance(first, ast.Constant) else set()
