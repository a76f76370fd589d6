"""Every error tsgraph raises, as one tree.

    TsgraphError
    ├── SpecError (ValueError)                   a spec file is wrong; `.problems` lists all of it
    ├── CallerError                              the caller asked for something it may not have
    │   ├── IllegalTransition (RuntimeError)     this trigger does not exist in this state
    │   ├── RuleViolation (RuntimeError)         a declared rule refuses; `.rule` says which
    │   ├── StaleSlot (RuntimeError)             something a slot recorded has changed since
    │   ├── LeaseExpired (RuntimeError)          outputs were used after the replay that overwrites them
    │   ├── WrongThread (RuntimeError)           a runtime belongs to one thread at a time
    │   ├── UnknownSlot (KeyError)               no slot has this key
    │   ├── BadGeometry (ValueError)             numbers of an engine that cannot be
    │   ├── BadGrammar (ValueError)              a grammar that cannot be read, or that its tokens cannot keep
    │   └── BadBatch (ValueError)                rows, shapes, dtypes or devices do not fit the spec
    ├── CollaboratorError
    │   └── ContractViolation (TypeError)        a collaborator does not keep its protocol
    ├── DeviceError
    │   ├── CaptureFailed (RuntimeError)         a slot could not be captured; the cause is chained
    │   ├── CaptureUnsupported (RuntimeError)    an operation that no recording may contain
    │   ├── ReplayFailed (RuntimeError)          a recorded graph failed to run
    │   ├── ReplayDiffers (AssertionError)       replays are not what eager steps are; raised by reports alone
    │   ├── HostFunctionFailed (RuntimeError)    Python that the device ran in a step raised
    │   ├── OutOfBudget (MemoryError)            the plan does not fit the memory granted to it
    │   ├── RankDisagreement (RuntimeError)      ranks did not settle on one outcome
    │   └── NotEmulated (NotImplementedError)    a part of torch.cuda that the emulation does not have
    └── InternalError (RuntimeError)             a fault of tsgraph itself

Each message says what happened and in which state, then what to do; `hint` holds the second part alone and `context`
holds the facts as plain data, so that a log line or a test needs no parsing.
"""

from __future__ import annotations

import copyreg
from typing import Any, ClassVar


class TsgraphError(Exception):
    """What every error of tsgraph has: a stable `code`, a `hint` on what to do, and the facts in `context`."""

    code: ClassVar[str] = "tsgraph"

    def __init__(self, what: str, *, hint: str = "", **context: Any) -> None:
        self.what = what
        self.hint = hint
        self.context = context
        super().__init__(f"{what}\n  fix: {hint}" if hint else what)

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError, a base of UnknownSlot, would show its repr

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle message and facts, so that an error crosses from a worker: constructors differ between classes."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class SpecError(TsgraphError, ValueError):
    """A spec is wrong. `problems` holds every problem found, each as `key.path: what is wrong`."""

    code = "spec"

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        self.problems = problems
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        lines = [f"{source}: {count}", *(f"  {problem}" for problem in problems)]
        super().__init__("\n".join(lines), source=source, problems=list(problems))


class CallerError(TsgraphError):
    """The caller asked for something it may not have.

    Nothing was changed, save where a rule refuses what a step brought about (ranks that vote against): the slot has
    failed then, and the error says so.
    """

    code = "caller"


class IllegalTransition(CallerError, RuntimeError):
    """The trigger does not exist in the slot's state. Raised before any effect."""

    code = "illegal_transition"


class RuleViolation(CallerError, RuntimeError):
    """A declared rule refuses a step or a trigger. `rule` is its id in the spec."""

    code = "rule"

    def __init__(self, what: str, *, rule: str, hint: str = "", **context: Any) -> None:
        self.rule = rule
        super().__init__(what, hint=hint, rule=rule, **context)


class StaleSlot(CallerError, RuntimeError):
    """Something that a slot recorded has changed since; a replay would read the old."""

    code = "stale_slot"


class LeaseExpired(CallerError, RuntimeError):
    """Outputs were used after the replay that overwrites them."""

    code = "lease_expired"


class WrongThread(CallerError, RuntimeError):
    """A runtime was used from two threads at once, or re-entered."""

    code = "wrong_thread"


class UnknownSlot(CallerError, KeyError):
    """No slot has this key; the hint lists those that exist."""

    code = "unknown_slot"


class BadGeometry(CallerError, ValueError):
    """Numbers of an engine that cannot be: extents, sizes of pages, windows. Names the one at fault."""

    code = "bad_geometry"


class BadBatch(CallerError, ValueError):
    """Rows, shapes, dtypes, devices or names of a call do not fit the spec. Names the buffer where one is at fault."""

    code = "bad_batch"


class BadGrammar(CallerError, ValueError):
    """A grammar that cannot be read, or that the given tokens cannot keep. Names the part at fault."""

    code = "bad_grammar"


class CollaboratorError(TsgraphError):
    """A collaborator is at fault."""

    code = "collaborator"


class ContractViolation(CollaboratorError, TypeError):
    """A collaborator does not keep its protocol: names protocol and member, what was expected and what was got."""

    code = "contract"

    def __init__(self, protocol: str, member: str, expected: str, got: str, *, hint: str = "") -> None:
        self.protocol, self.member, self.expected, self.got = protocol, member, expected, got
        what = f"{protocol}.{member}: expected {expected}, got {got}"
        super().__init__(what, hint=hint, protocol=protocol, member=member, expected=expected, got=got)


class DeviceError(TsgraphError):
    """The device, a recording or another rank failed."""

    code = "device"


class CaptureFailed(DeviceError, RuntimeError):
    """A slot could not be captured. The slot is failed, every other slot and all global state are as before."""

    code = "capture_failed"


class CaptureUnsupported(DeviceError, RuntimeError):
    """An operation that no recording may contain. Names the operation and the line of the step that made it."""

    code = "capture_unsupported"


class ReplayFailed(DeviceError, RuntimeError):
    """A recorded graph failed to run."""

    code = "replay_failed"


class ReplayDiffers(DeviceError, AssertionError):
    """Replays are not what eager steps are, or write where they may not. `context` has the `findings` as plain data."""

    code = "replay_differs"


class HostFunctionFailed(DeviceError, RuntimeError):
    """Python that the device ran, in a replay or outside one, raised; what came after it ran all the same.

    `context` has the `function`, the `line` that put it on its stream, and its `traceback` as text; the error itself is
    chained. Errors of other functions are in the notes.
    """

    code = "host_function_failed"


class OutOfBudget(DeviceError, MemoryError):
    """The plan does not fit the memory granted to it."""

    code = "out_of_budget"


class RankDisagreement(DeviceError, RuntimeError):
    """Ranks did not settle on one outcome."""

    code = "rank_disagreement"


class NotEmulated(DeviceError, NotImplementedError):
    """A part of `torch.cuda` that `tsgraph.testing.emulate` does not have. Names it and says why."""

    code = "not_emulated"


class InternalError(TsgraphError, RuntimeError):
    """A fault of tsgraph itself; please report it with the message."""

    code = "internal"
