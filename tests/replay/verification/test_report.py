"""Findings and reports: whom to suspect, what is said, and what a CI job gets."""

from __future__ import annotations

import json

import attrs
import pytest

from tsgraph.errors import ReplayDiffers
from tsgraph.keys import SlotKey
from tsgraph.replay.verification.findings import Finding, Findings
from tsgraph.replay.verification.mismatch import Mismatch
from tsgraph.replay.verification.report import SAYS, VerifyReport
from tsgraph.replay.verification.suspicion import CAUSES, Check, Evidence, History, Place, suspects_of

SLOTS = (SlotKey("default", 4), SlotKey("default", 2))
MISMATCH = Mismatch(rows=(1,), count=1, elements=2, of=8, largest=0.5, example="first at [1, 0]: 1 expected, 2 got")
WORDS = {"moved": False, "metadata": False, "inside": False, "hidden": False, "escaped": False}


def found(*names: str, slots: tuple[SlotKey, ...] = SLOTS[:1]) -> tuple[Finding, ...]:
    """Findings about outputs of these names, in each of `slots`, at two places."""
    findings = Findings()
    for slot in slots:
        for name in names:
            for live in (3, 1):
                findings.add(slot, "equality", name, "is another one", Place(live, "clean"), MISMATCH)
    return findings.closed(lambda _: WORDS)


def report(*names: str, slots: tuple[SlotKey, ...] = SLOTS[:1], replays: int = 5) -> VerifyReport:
    """A report of them."""
    return VerifyReport(
        slots=("default/4",),
        findings=found(*names, slots=slots),
        checked={"replays": replays, "equality": 3},
        left_out=("slot default/8 [failed]: it cannot be replayed",),
        evidence=("rows that inputs= gave",),
        seconds=0.25,
    )


def test_places_are_gathered():
    """One finding for one thing, however often it was found; the numbers are those of the first place."""
    (finding,) = found("output")
    assert (Place(3, "clean"), Place(1, "clean")) == finding.places
    assert (
        "slot default/4: output is another one\n"
        "  at 3 live rows, buffers and outputs as they were, and 1 more\n"
        "  row 1: 2 of 8 elements, by up to 0.5, first at [1, 0]: 1 expected, 2 got\n"
        f"  likely: {CAUSES['baked'][0]}\n    fix: {CAUSES['baked'][1]}"
    ) == str(finding)


def test_a_report_tells_everything_and_raises():
    """In a table and in an error, by thing and not by slot; as JSON in full."""
    told = report("output", "state keys", slots=SLOTS)
    table = told.table(140)
    for word in ("and so in default/2", "state keys is another one", "rows that inputs= gave", "left out: slot"):
        assert word in table
    assert not told.ok
    assert "NOT right: 4 findings in 5 replays of 1 slot" == told.verdict
    with pytest.raises(ReplayDiffers, match="and so in default/2") as caught:
        told.raise_for_findings()
    assert isinstance(caught.value, AssertionError)
    assert caught.value.context["findings"] == json.loads(json.dumps(told.as_json()))["findings"]
    assert {"variant": "default", "size": 4} == caught.value.context["findings"][0]["slot"]


def test_an_error_tells_the_first_things():
    """And how many more there are."""
    with pytest.raises(ReplayDiffers, match="and 2 other things"):
        report(*"abcde").raise_for_findings()


def test_a_right_report_raises_nothing():
    """It says how much was run."""
    told = report()
    told.raise_for_findings()
    assert (True, "right: 5 replays of 1 slot, nothing found") == (told.ok, told.verdict)


def test_nothing_replayed_is_not_right():
    """A verification of no slot proves nothing, and says what was left out."""
    told = report(replays=0)
    assert (False, "not verified: no slot was replayed") == (told.ok, told.verdict)
    with pytest.raises(ReplayDiffers, match=r"capture first; left out: slot default/8 \[failed\]"):
        told.raise_for_findings()


def test_a_difference_that_is_no_number_is_none_in_json():
    """JSON has no NaN."""
    findings = Findings()
    mismatch = attrs.evolve(MISMATCH, largest=float("nan"))
    findings.add(SLOTS[0], "equality", "output", "is another one", Place(1, "clean"), mismatch)
    findings.add(SLOTS[0], "addresses", "parameter weight", "was rebound", None)
    first, second = (finding.as_json() for finding in findings.closed(lambda _: WORDS))
    assert (None, None, []) == (first["mismatch"]["largest"], second["mismatch"], second["places"])


def test_checks_are_counted():
    """Whether they found something or not."""
    findings = Findings()
    findings.made("staging")
    findings.made("staging")
    assert ({"staging": 2}, False) == (dict(findings.checked), findings.has(SLOTS[0], "staging"))


CASES: dict[str, tuple[Check, set[History], set[str], list[str]]] = {
    "another address": ("equality", {"clean"}, {"moved", "metadata"}, ["moved"]),
    "always": ("equality", {"clean", "dirty"}, set(), ["baked"]),
    "undeclared reads": ("equality", {"clean"}, {"hidden"}, ["baked", "stale"]),
    "metadata": ("equality", {"clean"}, {"metadata"}, ["refresh", "baked"]),
    "metadata, rows staged late": ("equality", {"clean"}, {"metadata", "inside"}, ["refresh", "early", "baked"]),
    "escaped memory": ("equality", {"clean"}, {"escaped"}, ["unwritten", "baked"]),
    "after an eager step": ("equality", {"shuffled"}, {"metadata"}, ["refresh", "unwritten", "undeclared"]),
    "over garbage alone": ("equality", {"dirty"}, set(), ["pad read", "unwritten", "undeclared"]),
    "after itself": ("equality", {"again"}, set(), ["undeclared", "unwritten"]),
    "after others": ("equality", {"others"}, {"escaped"}, ["unwritten", "undeclared"]),
    "pads": ("isolation", {"larger"}, set(), ["pad read", "rows"]),
    "sinks": ("sinks", {"idle"}, set(), ["pad write"]),
    "writes": ("writes", {"clean"}, set(), ["undeclared"]),
    "twice": ("repeatability", {"eager"}, set(), ["chance", "undeclared"]),
    "errors": ("errors", {"clean"}, set(), []),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_whom_to_suspect(case: tuple[Check, set[History], set[str], list[str]]):
    """By what was checked, after which histories it failed, and what is known of the slot."""
    check, histories, true, expected = case
    failed = frozenset(Place(1, history) for history in histories)
    evidence = Evidence(failed=failed, **dict.fromkeys(true, True))
    suspects = suspects_of(check, evidence)
    assert expected == [suspect.kind for suspect in suspects]
    assert all(suspect.why and suspect.do for suspect in suspects)


def test_every_check_is_explained():
    """Tables say what each check means, errors apart, which are none."""
    checks = {
        "equality",
        "structure",
        "staging",
        "isolation",
        "sinks",
        "writes",
        "addresses",
        "repeatability",
        "callers",
    }
    assert checks | {"replays", "eager steps"} == set(SAYS)
