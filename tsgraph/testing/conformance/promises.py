"""What a protocol promises, as a list of small named checks, and the error that tells every promise that is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import attrs

from tsgraph.errors import ContractViolation, TsgraphError


class Subject(Protocol):
    """What is tried: one implementation, `part`, and whatever its checks need besides."""

    @property
    def part(self) -> Any:
        """The implementation."""


S = TypeVar("S", bound=Subject)
Check = Callable[[S], str | None]
"""Tries one promise on a fresh subject. Returns what was got instead, or None where the promise is kept."""


class Nonconformance(ContractViolation):
    """An implementation breaks promises of its protocol: `violations` are all of them, and the message lists them.

    `protocol`, `member`, `expected` and `got` are those of the first.
    """

    def __init__(self, violations: Sequence[ContractViolation]) -> None:
        first = violations[0]
        super().__init__(first.protocol, first.member, first.expected, first.got)
        self.violations = tuple(violations)
        count = f"{len(violations)} promise{'s' if len(violations) != 1 else ''}"
        lines = "".join(f"\n  {violation.what}" for violation in violations)
        TsgraphError.__init__(self, f"{first.protocol}: {count} broken{lines}", **first.context)


@attrs.frozen
class Promise(Generic[S]):
    """One promise: the `member` that makes it, what is `expected` of it, and the check of that `name`."""

    name: str
    member: str
    expected: str
    check: Check[S]

    def broken(self, protocol: str, subject: S) -> ContractViolation | None:
        """How `subject` breaks it. What the implementation raises counts as its answer."""
        try:
            got, cause = self.check(subject), None
        except Exception as error:  # noqa: BLE001 - whatever it raises, the other promises are checked too
            got, cause = f"{type(error).__name__}: {error}", error
        if got is None:
            return None
        violation = ContractViolation(protocol, self.member, self.expected, got)
        violation.__cause__ = cause
        return violation


@attrs.frozen
class Promises(Generic[S]):
    """All promises of one protocol. Iterating gives them in the order in which they are checked."""

    protocol: type
    listed: list[Promise[S]] = attrs.field(factory=list)

    def promise(self, member: str, expected: str) -> Callable[[Check[S]], Check[S]]:
        """Add the decorated check: `member` is expected to give, or do, `expected`."""

        def add(check: Check[S]) -> Check[S]:
            self.listed.append(Promise(check.__name__, member, expected, check))
            return check

        return add

    def check(self, make: Callable[[], S]) -> None:
        """Try every promise, each on a fresh subject of `make`. Raises Nonconformance that lists all broken ones."""
        protocol = self.protocol.__name__
        violations = self._missing(make().part)
        if not violations:
            violations = [found for each in self if (found := each.broken(protocol, make())) is not None]
        if violations:
            raise Nonconformance(violations)

    def _missing(self, part: Any) -> list[ContractViolation]:
        members = sorted(member for member in vars(self.protocol) if not member.startswith("_"))
        got = f"none on {type(part).__name__}"
        absent = [member for member in members if not hasattr(part, member)]
        return [ContractViolation(self.protocol.__name__, member, "a member", got) for member in absent]

    def __iter__(self) -> Iterator[Promise[S]]:
        return iter(self.listed)
