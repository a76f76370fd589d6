"""Reading what an engine observed: a histogram, a log of its steps, or a runtime's snapshot.

    {"rows": {"1": 120, "7": 31}, "tokens_per_request": 4}                     a histogram
    {"rows": {"default": {"1": 120}, "penalties": {"2": 5}}}                   one by variants
    rows,steps                                                                 CSV: a header, then lines
    {"rows": 7, "variant": "penalties", "event": "step", …}                    a log: one JSON object a line
    {"rows": {"default": {"7": 31}}, "slots": […], …}                          a runtime's snapshot
    {"event": "stats", "snapshot": {"rows": …, "slots": …}, …}                 one in a line of a log

Lines of a log or of CSV have `rows`, or `tokens`; of each rank, if a list: the widest decides (R27). They may have
`variant`, `mode` (only decode steps have slots, R26) and `steps`, how many such steps there were. The runtime's own
events tell changes, not steps; they and lines without rows are left out. A snapshot tells all steps that its runtime
has served: of those in a log the last one counts, of each runtime.
"""

from __future__ import annotations

import csv
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tsgraph import events
from tsgraph.dispatch.histogram import Histogram
from tsgraph.dispatch.snapshot import Steps, served_in_all, snapshot_in
from tsgraph.errors import CallerError
from tsgraph.keys import DEFAULT_VARIANT, Mode

HINT = "give a histogram, a log with the rows of each step, or a snapshot"
HINT_OF_LOGS = "log the rows of each step; what the runtime logs itself are changes, not steps"
_DIGITS = 20
_COLUMNS = ("rows", "tokens", "variant", "mode", "steps")
_OWN_EVENTS = frozenset(each for name, each in vars(events).items() if name.isupper() and isinstance(each, str))


def read_observations(path: str | os.PathLike[str], *, tokens_per_request: int | None = None) -> Histogram:
    """The histogram of what is in a file. `tokens_per_request` takes the place of the file's (None there: 1).

    Raises: CallerError where the file cannot be read, has none of these forms, or has no decode step with a row.
    """
    return parse_observations(read_text(path), source=str(path), tokens_per_request=tokens_per_request)


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a UTF-8 file. Raises: CallerError where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CallerError(f"{path} cannot be read: {error}", hint=HINT, path=str(path)) from error


def parse_observations(text: str, *, source: str = "<text>", tokens_per_request: int | None = None) -> Histogram:
    """As `read_observations`, of a text."""
    try:
        return _parsed(text.strip(), tokens_per_request)
    except CallerError as error:
        raise CallerError(f"{source}: {error.what}", hint=error.hint or HINT, path=source) from error


def _parsed(text: str, tokens_per_request: int | None) -> Histogram:
    document = _document(text)
    if isinstance(document, list):
        return _of_records([(f"record {place}", each) for place, each in enumerate(document, 1)], tokens_per_request)
    if snapshot_in(document) is not None:
        return _of_records([("the snapshot", document)], tokens_per_request)
    if isinstance(document, dict) and isinstance(document.get("rows"), dict):
        return _of_table(document, tokens_per_request)
    if isinstance(document, dict) and "pad_rows" in document and "rows" not in document:
        raise CallerError("counters are totals: they do not tell which batches there were", hint=HINT)
    records = _of_log(text) if text.startswith("{") else _of_csv(text)
    return _of_records(list(records), tokens_per_request)


def _document(text: str) -> Any:
    """The one JSON document that the text is, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# -- histograms and snapshots ------------------------------------------------------------------------------------------


def _of_table(document: Mapping[str, Any], tokens_per_request: int | None) -> Histogram:
    if unknown := document.keys() - {"rows", "tokens_per_request"}:
        raise CallerError(f"a histogram has rows and tokens_per_request, but this one has {', '.join(sorted(unknown))}")
    own = document.get("tokens_per_request", 1)
    return Histogram(steps=_steps("", document["rows"]), tokens_per_request=tokens_per_request or own)


def _of_snapshots(
    told: Sequence[tuple[str, Mapping[str, Any]]], beside: int, tokens_per_request: int | None
) -> Histogram:
    """What the last one tells, and the last of each runtime before. `beside`: records that are none."""
    steps, runtimes = served_in_all([_steps(f"{where}: ", each.get("rows")) for where, each in told])
    _, last = told[-1]
    ranks = last.get("ranks", 1)
    notes = {
        f"snapshots of {runtimes} runtimes: where a count is less than before, another began": runtimes > 1,
        f"left out: records beside snapshots, which tell all steps: {beside}": beside,
        f"of one rank of {ranks}: the widest picks the size, so log at each step the rows of all": ranks != 1,
    }
    return Histogram(
        steps=steps,
        tokens_per_request=tokens_per_request or last.get("tokens_per_request", 1),
        notes=tuple(note for note, holds in notes.items() if holds),
        slots=tuple(last["slots"]),
    )


def _steps(where: str, rows: Any) -> Steps:
    """Steps by rows, or by variants and rows."""
    if not isinstance(rows, dict):
        raise CallerError(f"{where}expected rows with their steps, not {rows!r}")
    by_variant = rows if any(isinstance(each, dict) for each in rows.values()) else {DEFAULT_VARIANT: rows}
    return {variant: _table(f"{where}rows of variant {variant!r}", table) for variant, table in by_variant.items()}


def _table(where: str, table: Any) -> dict[int, int]:
    if not isinstance(table, dict):
        raise CallerError(f"{where}: expected steps by rows, not {table!r}")
    return {_number(where, rows): _number(where, steps) for rows, steps in table.items()}


# -- records -----------------------------------------------------------------------------------------------------------


def _of_records(records: Sequence[tuple[str, Any]], tokens_per_request: int | None) -> Histogram:
    snapshots = [(where, found) for where, record in records if (found := snapshot_in(record))]
    if snapshots:
        return _of_snapshots(snapshots, len(records) - len(snapshots), tokens_per_request)
    steps: dict[str, Counter[int]] = defaultdict(Counter)
    left_out, width = 0, tokens_per_request or 1
    for where, record in records:
        if _is_step(where, record):
            steps[_variant(where, record)][_rows(where, record, width)] += _number(where, record.get("steps", 1))
        else:
            left_out += 1
    if not steps:
        raise CallerError(f"there is no decode step with its rows (records: {left_out})", hint=HINT_OF_LOGS)
    what = f"{left_out} records that are no decode step" if left_out > 1 else "1 record that is no decode step"
    return Histogram(steps=steps, tokens_per_request=width, notes=(f"left out: {what}",) if left_out else ())


def _is_step(where: str, record: Any) -> bool:
    if not isinstance(record, dict):
        raise CallerError(f"{where} is no JSON object: {record!r}")
    event = record.get("event")
    own = isinstance(event, str) and (event in _OWN_EVENTS or event.startswith("slot."))
    decodes = (record.get("mode") or Mode.DECODE.value) == Mode.DECODE.value
    return decodes and not own and (record.get("rows") is not None or record.get("tokens") is not None)


def _variant(where: str, record: Mapping[str, Any]) -> str:
    variant = record.get("variant") or DEFAULT_VARIANT
    if not isinstance(variant, str):
        raise CallerError(f"{where}: {variant!r} is no name of a variant")
    return variant


def _rows(where: str, record: Mapping[str, Any], tokens_per_request: int) -> int:
    """The rows that pick the size: of the widest rank, and a row that is not full counts (R27)."""
    rows = record.get("rows")
    if rows is not None:
        return _widest(where, rows)
    return -(-_widest(where, record["tokens"]) // tokens_per_request)


def _widest(where: str, numbers: Any) -> int:
    if isinstance(numbers, list):
        return max((_number(where, each) for each in numbers), default=0)
    return _number(where, numbers)


def _number(where: str, value: Any) -> int:
    """A count. JSON's keys and CSV's cells are text."""
    if isinstance(value, str) and value.isascii() and value.strip().isdecimal() and len(value) < _DIGITS:
        return int(value)
    if type(value) is int and value >= 0:
        return value
    what = f"{where}: {repr(value)[:60]} is no count"
    raise CallerError(what, hint="rows, tokens and steps are whole numbers, 0 or more")


def _of_log(text: str) -> Iterator[tuple[str, Any]]:
    for place, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield f"line {place}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise CallerError(
                    f"line {place} is no JSON: {error}", hint="a log has one JSON object a line"
                ) from error


def _of_csv(text: str) -> Iterator[tuple[str, Any]]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    header = [name.strip() for name in reader.fieldnames or ()]
    if unknown := [name for name in header if name not in _COLUMNS]:
        what = f"neither JSON nor CSV with known columns: {', '.join(unknown)[:60]}"
        raise CallerError(what, hint=f"columns are {', '.join(_COLUMNS)}")
    reader.fieldnames = header
    for record in reader:
        if None in record:
            raise CallerError(f"line {reader.line_num} has more cells than the header")
        yield f"line {reader.line_num}", record
