"""What a proof says: the verdict, the trace, and every kind of finding."""

from __future__ import annotations

import attrs
import pytest

from tests.proving.conftest import STEPS, findings, moves, promise, rule
from tsgraph.proving import prove, refute
from tsgraph.spec import load_spec, shipped
from tsgraph.spec.model import After, AtLeast, ModeIs, Step, Switch

NEEDED = rule("make", AtLeast("A", 1))
KEPT = promise("ready", AtLeast("A", 1))


def test_a_sound_spec_is_proved_and_nothing_is_found(tiny):
    """One rule, one property that needs it: no violation and no finding."""
    proof = prove(tiny(rules=(NEEDED,), properties=(KEPT,)))
    assert (True, ("P",), (), ()) == (proof.ok, proof.properties, proof.violations, proof.findings)
    assert proof.configurations == sum(one.configurations for one in proof.combinations) > 0
    assert refute(tiny(rules=(NEEDED,), properties=(KEPT,))) is None


def test_a_counterexample_is_told(tiny):
    """One line for each thing; what was skipped, what is false, and what makes it false."""
    proof = prove(tiny(properties=(promise("ready", After("B", "A")),)))
    assert (
        "P is broken with no collaborator: it holds\n"
        "    1  the slot begins: fresh\n"
        "    2  `make` begins in fresh\n"
        "    3  `make` → ready, without b\n"
        "  false: just after ready, the newest B is later than the newest A\n"
        "    the newest B: never\n"
        "    the newest A: never"
    ) == str(proof.violations[0])
    assert not proof.ok
    assert proof.violations[0] == refute(tiny(properties=(promise("ready", After("B", "A")),)))


def test_facts_name_the_lines_at_which_things_happened(tiny):
    """A count says how many, a mode says since when, an event says where."""
    on = Step(name="c", event=("C",), mode={"m": True})
    spec = tiny(("a", "b", "c"), modes={"m": Switch(name="m", scope="slot")}, steps={**STEPS, "c": on}, properties=(
        promise("ready", ModeIs("m", False), name="mode"), promise("B", After("B", "A"), name="event", before=True),
    ))  # fmt: skip
    facts = {violation.property: violation.facts for violation in prove(spec).violations}
    assert ("mode m: switched at line 3",) == facts["mode"]
    assert ("the newest B: never", "the newest A: never") == facts["event"]


def test_combinations_are_those_that_entries_need(tiny):
    """With and without each collaborator; those that leave the same law are explored once."""
    sampler = attrs.evolve(NEEDED, needs="sampler")
    idle = attrs.evolve(STEPS["c"], needs="comm")
    spec = tiny(steps={**STEPS, "c": idle}, rules=(sampler,), properties=(attrs.evolve(KEPT, needs="sampler"),))
    proof = prove(spec)
    assert [((), 2), (("sampler",), 2)] == [(one.present, one.stands_for) for one in proof.combinations]


def test_a_property_broken_in_one_combination_is_broken(tiny):
    """It is not proved, and the trace says with what."""
    spec = tiny(rules=(attrs.evolve(NEEDED, needs="sampler"),), properties=(KEPT,))
    proof = prove(spec)
    assert ((), [()]) == (proof.properties, [violation.present for violation in proof.violations])
    assert proof.violations[0] == refute(spec)


def test_policies_are_combinations_too(tiny):
    """A policy is on in some and off in others, whatever the spec says."""
    spec = tiny(rules=(attrs.evolve(NEEDED, needs="freeze_gc"),), properties=(KEPT,))
    assert [(), ("freeze_gc",)] == [one.present for one in prove(spec).combinations]


# -- findings ----------------------------------------------------------------------------------------------------------


def test_declared_steps_that_are_refused_are_an_error(tiny):
    """The steps in their order meet a rule that refuses: nothing would ever serve."""
    proof = prove(tiny(rules=(rule("a", AtLeast("B", 1)),), properties=(promise("A", AtLeast("B", 1)),)))
    assert ("error", "route", "transitions") in findings(proof)
    assert any("at a, rule R demands that B has happened" in found.says for found in proof.findings)
    assert not proof.ok


def test_a_state_that_nothing_leads_to_is_an_error(tiny):
    """A rule that can never hold keeps the slot out of a state."""
    proof = prove(tiny(rules=(rule("expire", AtLeast("C", 1)),), properties=(promise("stale", AtLeast("C", 1)),)))
    assert {("error", "unreachable", "stale"), ("error", "moment", "P")} <= set(findings(proof))


def test_a_trap_is_an_error(tiny):
    """A slot that can neither serve nor end is told with the way there."""
    changes = {"end": {"source": ("ready",)}, "drop": {"source": ("ready",)}, "reset": {"source": ("dropped",)}}
    changes["fail"] = {"source": ("fresh", "ready")}
    spec = tiny(
        ("a",), {**changes, "leave": {"source": ("failed",), "to": "gone"}}, rules=(rule("leave", AtLeast("A", 1)),)
    )
    proof = prove(spec)
    assert ("error", "trap", "failed") in findings(proof)
    assert any("after: 1  the slot begins: fresh; 2  `fail` → failed" in found.says for found in proof.findings)


def test_a_moment_that_comes_in_some_combination_only_is_a_note(tiny):
    """The step that appends the event is absent without its collaborator."""
    spec = tiny(("a", "b"), steps={**STEPS, "b": attrs.evolve(STEPS["b"], needs="sampler")},
                properties=(promise("B", AtLeast("A", 0)),))  # fmt: skip
    assert ("note", "moment", "P") in findings(prove(spec))


def test_a_clause_that_nothing_could_break_is_an_error(tiny):
    """Just after A, A has happened: that says nothing."""
    assert [("error", "tautology", "P")] == findings(prove(tiny(properties=(promise("A", AtLeast("A", 1)),))))


def test_a_clause_that_cleanup_keeps_is_a_note(tiny):
    """No rule is needed for it, but it could be broken if cleanup were not there."""
    spec = tiny(("a",), {"make": {"cleanup": ("c",)}}, properties=(promise("ready", AtLeast("C", 1)),))
    assert [("note", "kept", "P")] == findings(prove(spec))


def test_a_rule_that_the_others_imply_is_a_note_with_their_names(tiny):
    """b is after a, and make wants b: then make wants a as well, without saying so."""
    rules = (rule("b", AtLeast("A", 1), name="order"), rule("make", AtLeast("B", 1), name="end"), NEEDED)
    others = (promise("ready", AtLeast("B", 1), name="Q"), promise("B", AtLeast("A", 1), name="S"))
    proof = prove(tiny(rules=rules, properties=(KEPT, *others)))
    assert proof.ok
    assert [("note", "implied", "R")] == findings(proof)
    assert "order and end imply it" in proof.findings[0].says


def test_a_rule_that_no_property_needs_is_a_note(tiny):
    """It refuses something, but nothing that is promised depends on it."""
    proof = prove(tiny(rules=(NEEDED, rule("b", AtLeast("A", 1), name="extra")), properties=(KEPT,)))
    assert (True, [("note", "unneeded", "extra")]) == (proof.ok, findings(proof))


def test_a_rule_that_refuses_nothing_by_itself_is_an_error(tiny):
    """No number of events is below none: the rule is a comment."""
    proof = prove(tiny(rules=(NEEDED, rule("b", AtLeast("A", 0), name="comment")), properties=(KEPT,)))
    assert (False, [("error", "idle", "comment")]) == (proof.ok, findings(proof))


def test_thorough_tells_where_a_rule_is_not_needed(tiny):
    """With the sampler's rule there, another implies it; without, it carries the load."""
    order = attrs.evolve(rule("b", AtLeast("A", 1), name="order"), needs="sampler")
    ordered = attrs.evolve(promise("B", AtLeast("A", 1), name="S"), needs="sampler")
    rules = (order, rule("make", AtLeast("B", 1), name="end"), NEEDED)
    spec = tiny(rules=rules, properties=(KEPT, promise("ready", AtLeast("B", 1), name="Q"), ordered))
    assert [] == findings(prove(spec))
    assert [("note", "implied", "R")] == findings(prove(spec, thorough=True))


def test_rules_are_not_weighed_where_a_property_is_broken(tiny):
    """What nothing depends on can be asked only of a law that keeps its promises."""
    spec = tiny(rules=(rule("b", AtLeast("A", 1)),), properties=(promise("ready", AtLeast("C", 1)),))
    assert "unneeded" not in {kind for _, kind, _ in findings(prove(spec))}


# -- shipped specs -----------------------------------------------------------------------------------------------------


@pytest.mark.no_cover
def test_shipped_specs_are_proved():
    """Every property holds in every combination, and each rule of decode's law is needed in one; others share it."""
    specs = [load_spec(name) for name in shipped()]
    laws = {(spec.rules, spec.properties, spec.lifecycle, repr(spec.steps)): spec for spec in reversed(specs)}
    proofs = {spec.name: prove(spec) for spec in laws.values()}
    assert {"decode": ((), True), "tokenspeed": ((), True)} == {
        name: (proof.violations, proof.ok) for name, proof in proofs.items()
    }
    assert {"kept"} >= {finding.kind for finding in proofs["decode"].findings}


@pytest.mark.no_cover
@pytest.mark.parametrize("rule_id", [rule.id for rule in load_spec("decode").rules])
def test_without_any_one_rule_a_property_of_decode_is_broken(rule_id):
    """The fullest combination that needs the rule shows it, with a trace."""
    spec = load_spec("decode")
    broken = refute(attrs.evolve(spec, rules=tuple(rule for rule in spec.rules if rule.id != rule_id)))
    assert broken is not None
    assert len(broken.trace) >= broken.moves > 0


def test_moves_are_the_length_of_the_way(tiny):
    """Begin, make begins, make ends."""
    assert {"P": 3} == moves(prove(tiny(properties=(KEPT,))))
