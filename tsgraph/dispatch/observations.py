"""Reading what an engine observed: a histogram, a log of its steps, or a runtime's snapshot.

    {"rows": {"1": 120, "7": 31}, "tokens_per_request": 4}                     a histogram
    {"rows": {"default": {"1": 120}, "penalties": {"2": 5}}}                   one by variants
    rows,steps                                                                 CSV: a header, then lines
    {"rows": 7, "variant": "penalties", "event": "step", …}                    a log: one JSON object a line
    {"slots": [{"size": 8, "replays": 90, "pad_rows": 31, …}, …], …}           a snapshot

Lines of a log or of CSV have `rows`, or `tokens`; of each rank, if a list: the widest decides (R27). They may have
`variant`, `mode` (only decode steps have slots, R26) and `steps`, how many such steps there were. The runtime's own
events tell changes, not steps; they and lines without rows are left out.
"""

from __future__ import annotations

import csv
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tsgraph import events
from tsgraph.dispatch.estimate import estimated_steps
from tsgraph.dispatch.histogram import Histogram
from tsgraph.errors import CallerError
from tsgraph.keys import DEFAULT_VARIANT, Mode

HINT = "give a histogram, a log with the rows of each step, or a snapshot"
HINT_OF_LOGS = "log the rows of each step; what the runtime logs itself are changes, not steps"
_COLUMNS = ("rows", "tokens", "variant", "mode", "steps")
_OWN_EVENTS = frozenset(each for name, each in vars(events).items() if name.isupper() and isinstance(each, str))
_ESTIMATED = "estimated: a snapshot has the mean of the rows that each slot served, not their histogram"


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
        steps, notes, own = _parsed(text, tokens_per_request or 1)
        return Histogram(steps=steps, tokens_per_request=tokens_per_request or own, notes=notes)
    except CallerError as error:
        raise CallerError(f"{source}: {error.what}", hint=error.hint or HINT, path=source) from error


_Parsed = tuple[Mapping[str, Mapping[int, int]], tuple[str, ...], int]
"""Steps, notes and tokens per request."""


def _parsed(text: str, tokens_per_request: int) -> _Parsed:
    document = _document(text)
    if isinstance(document, list):
        return _of_records(((f"record {place}", each) for place, each in enumerate(document, 1)), tokens_per_request)
    if isinstance(document, dict) and isinstance(document.get("rows"), dict):
        return _of_table(document)
    if isinstance(document, dict) and "slots" in document:
        return _of_snapshot(document)
    if isinstance(document, dict) and "pad_rows" in document and "rows" not in document:
        raise CallerError("counters are totals: they do not tell which batches there were", hint=HINT)
    records = _of_log(text) if text.lstrip().startswith("{") else _of_csv(text)
    return _of_records(records, tokens_per_request)


def _document(text: str) -> Any:
    """The one JSON document that the text is, or None."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


# -- documents ---------------------------------------------------------------------------------------------------------


def _of_table(document: Mapping[str, Any]) -> _Parsed:
    """A histogram; a snapshot may have one, beside much else."""
    unknown = document.keys() - {"rows", "tokens_per_request"}
    if unknown and "slots" not in document:
        raise CallerError(f"a histogram has rows and tokens_per_request, but this one has {', '.join(sorted(unknown))}")
    rows = document["rows"]
    by_variant = rows if any(isinstance(each, dict) for each in rows.values()) else {DEFAULT_VARIANT: rows}
    steps = {variant: _table(f"rows of variant {variant!r}", table) for variant, table in by_variant.items()}
    return steps, (), document.get("tokens_per_request", 1)


def _table(where: str, table: Any) -> dict[int, int]:
    if not isinstance(table, dict):
        raise CallerError(f"{where}: expected steps by rows, not {table!r}")
    return {_number(where, rows): _number(where, steps) for rows, steps in table.items()}


def _of_snapshot(document: Mapping[str, Any]) -> _Parsed:
    counters = document.get("counters")
    eager = counters.get("eager") if isinstance(counters, dict) else None
    beyond = eager.get("no_size_fits") if isinstance(eager, dict) else None
    lost = f"left out: {beyond} eager steps had more rows than the largest size; a snapshot does not tell how many"
    return estimated_steps(document["slots"]), (_ESTIMATED, lost) if beyond else (_ESTIMATED,), 1


# -- records -----------------------------------------------------------------------------------------------------------


def _of_records(records: Iterable[tuple[str, Any]], tokens_per_request: int) -> _Parsed:
    steps: dict[str, Counter[int]] = defaultdict(Counter)
    left_out = 0
    for where, record in records:
        if _is_step(where, record):
            variant, rows = _variant(where, record), _rows(where, record, tokens_per_request)
            steps[variant][rows] += _number(where, record.get("steps", 1))
        else:
            left_out += 1
    if not steps:
        raise CallerError(f"there is no decode step with its rows (records: {left_out})", hint=HINT_OF_LOGS)
    what = f"{left_out} records that are no decode step" if left_out > 1 else "1 record that is no decode step"
    return steps, (f"left out: {what}",) if left_out else (), 1


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
    if isinstance(value, str) and value.isascii() and value.strip().isdecimal():
        return int(value)
    if type(value) is int and value >= 0:
        return value
    raise CallerError(f"{where}: {value!r} is no count", hint="rows, tokens and steps are whole numbers, 0 or more")


def _of_log(text: str) -> Iterator[tuple[str, Any]]:
    for place, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield f"line {place}", json.loads(line)
            except json.JSONDecodeError as error:
                raise CallerError(
                    f"line {place} is no JSON: {error}", hint="a log has one JSON object a line"
                ) from error


def _of_csv(text: str) -> Iterator[tuple[str, Any]]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    header = [name.strip() for name in reader.fieldnames or ()]
    if unknown := [name for name in header if name not in _COLUMNS]:
        raise CallerError(
            f"neither JSON nor CSV with known columns: {', '.join(unknown)}", hint=f"columns are {', '.join(_COLUMNS)}"
        )
    reader.fieldnames = header
    for record in reader:
        if None in record:
            raise CallerError(f"line {reader.line_num} has more cells than the header")
        yield f"line {reader.line_num}", record
