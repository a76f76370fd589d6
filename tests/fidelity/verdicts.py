"""What an error says, in a small vocabulary that CUDA and the emulation share.

CUDA has few messages: whatever a stream under capture may not do is "not permitted". The emulation says why. So each
class belongs to a `coarse` one, and only those are compared. Where an error of the emulation names CUDA's own code, it
decides; else what it says, without the operation and the line that it names: those are not its reason.
"""

from __future__ import annotations

import re
import traceback

import attrs

PROGRAM = "<program>"

# The first that matches. Left: CUDA's and torch's messages; then the emulation's, which says the same in its own words.
_MESSAGES = {
    "invalidated": r"previous error during capture|is invalid since|invalidated",
    "no_fake_kernel": r"no fake kernel",
    "missing_wait": r"a wait is missing",
    "unjoined": r"unjoined|never waited for stream",
    "captured_event": r"last recorded in a (capturing stream|recording)",
    "generator": r"generator|[Oo]ffset increment|current_seed|numbers are being recorded",
    "default_stream": r"non-default stream|default stream",
    "not_captured": r"without a preceding successful capture",
    "captured_before": r"already owns a captured graph",
    "isolation": r"uncaptured work|dependency created on",
    "merge": r"merge of separate capture",
    "unmatched": r"not initiated in this (stream|thread)|same stream it began|in which it began|on which it began",
    "invalid_argument": r"CUDA error: invalid argument",
    "illegal_state": r"cannot be performed in the present state|illegal state",
    "pool": r"use_count|\b(mem)?pool",
    "pageable_copy": r"unless the CPU tensor is pinned|not pinned|pageable|hidden copy|copy that blocks",
    "data_dependent": r"known to the device alone|depends on values|returns a number to the host",
    "host_sync": r"host reads|waits? for the device|value on the host|synchroni[sz]",
    "forbidden": r"when stream is capturing|not inside a recording|inside another|another thread is recording|captur",
    "gradients": r"requires a gradient",
    "devices": r"same device|Expected all tensors|host tensor",
    "lifetime": r"freed|deallocated",
}

# CUDA's own codes, which errors of the emulation carry where CUDA itself would refuse.
_CODES = {
    "cudaErrorStreamCaptureInvalidated": "invalidated",
    "cudaErrorStreamCaptureIsolation": "isolation",
    "cudaErrorStreamCaptureMerge": "merge",
    "cudaErrorStreamCaptureUnsupported": "forbidden",
    "cudaErrorStreamCaptureUnjoined": "unjoined",
    "cudaErrorStreamCaptureWrongThread": "unmatched",
    "cudaErrorCapturedEvent": "captured_event",
    "cudaErrorIllegalState": "illegal_state",
    "cudaErrorInvalidValue": "invalid_argument",
}

# What CUDA does not tell apart.
_COARSE = dict.fromkeys(("forbidden", "host_sync", "pageable_copy", "data_dependent"), "forbidden")


@attrs.frozen
class Verdict:
    """What went wrong: the error that began it, the one that came out, the program's line, and the words."""

    first: str
    last: str
    line: int | None
    words: str


def judge(error: BaseException) -> Verdict:
    """What `error`, which came out of a program, says. Errors that a library caught within itself do not count."""
    chain = [each for each in _chain(error) if _line_of(each) is not None] or [error]
    words = str(chain[-1]).strip().partition("\n")[0][:160]
    return Verdict(classify(chain[-1]), classify(chain[0]), _line_of(chain[-1]), words)


def classify(error: BaseException) -> str:
    """The class of one error."""
    if type(error).__name__ == "Planted":
        return "user"
    if not isinstance(error, RuntimeError):
        return f"other {type(error).__name__}"
    code, words = _CODES.get(getattr(error, "context", {}).get("cuda", ""), "other"), classify_words(_reason(error))
    return words if code in ("forbidden", "other") and words != "other" else code


def classify_words(said: str) -> str:
    """The class of what an error says: `other` where no class has such words."""
    return next((name for name, pattern in _MESSAGES.items() if re.search(pattern, said)), "other")


def _reason(error: BaseException) -> str:
    """What an error says; one of the emulation without operation, line and hint, whose words are other people's."""
    context = getattr(error, "context", {})
    place = f"{context.get('operation')} at {context.get('line')}: "
    return str(getattr(error, "what", error)).removeprefix(place)


def coarse(name: str) -> str:
    """The class that is compared."""
    return _COARSE.get(name, name)


def _chain(error: BaseException | None) -> list[BaseException]:
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__context__  # what came out when this was raised; a cause may be one that the program caught
    return chain


def _line_of(error: BaseException) -> int | None:
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == PROGRAM]
    return lines[-1] if lines else None
