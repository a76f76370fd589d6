from __future__ import annotations

import pytest

PLANTED = [
    (("steps.build.count", {"hold": 1}), ["steps.build.count: unknown counter 'hold'; did you mean 'held'?"]),
    (("steps.tidy.set", {"hold": 0}), ["steps.tidy.set: unknown counter 'hold'; did you mean 'held'?"]),
    (("steps.tidy.set", {"held": -1}), ["steps.tidy.set.held: -1 is below the floor 0 of counter 'held'"]),
    (("steps.tidy.mode", {"bsy": False}), ["steps.tidy.mode: unknown mode 'bsy'; did you mean 'busy'?"]),
    (("steps.tidy.event", []), ["steps.tidy.event: appends no event, so that no rule can tell that it was taken"]),
    (("steps.build.event", ["built", "built"]), ["steps.build.event: 'built' is declared 2 times"]),
    (
        ("steps.measure.needs", "samplr"),
        [
            "steps.measure.needs: unknown collaborator or policy 'samplr'; did you mean 'sampler'?",
            'rules[A].event: event \'measured\' is absent without "samplr"; add needs = "samplr"',
        ],
    ),
    (("steps.spare", {"event": "spared"}), ["steps.spare: no transition, session or serving takes this step"]),
    (("session.enter", ["sreve"]), ["session.enter: unknown step 'sreve'; did you mean 'serve'?"]),
    (("serving.eager", ["sreve"]), ["serving.eager: unknown step 'sreve'; did you mean 'serve'?"]),
    (("rules.0.guards", []), ["rules[A].guards: guards nothing"]),
    (("rules.0.guards", ["bild"]), ["rules[A].guards: unknown step or trigger 'bild'; did you mean 'build'?"]),
    (
        ("rules.0.guards", ["tidy"]),
        ["rules[A].guards: step 'tidy' is in no transition that can be refused, so nothing asks this rule"],
    ),
    (
        ("rules.0.guards", ["serve"]),
        ["rules[A].guards: step 'serve' is in no transition that can be refused, so nothing asks this rule"],
    ),
    (
        ("rules.0.guards", ["fail"]),
        ["rules[A].guards: 'fail' cannot be refused; a failure, and what only cleans up, must always be possible"],
    ),
    (
        ("transitions.3.finally", ["tidy"], "rules.0.guards", ["drop"]),
        [
            "rules[A].guards: 'drop' cannot be refused; a failure, and what only cleans up, must always be possible",
        ],
    ),
    (
        ("transitions.1.on", "build", "lifecycle.on_change", "build"),
        ["rules[A].guards: 'build' is both a step and a trigger; rename one"],
    ),
    (
        ("rules.1.guards", ["measure"]),
        ['rules[B].guards: step \'measure\' is absent without "sampler"; add needs = "sampler"'],
    ),
    (
        ("rules.0.needs", "grammar"),
        ['rules[A].event: event \'measured\' is absent without "sampler"; add needs = "sampler"'],
    ),
    (("rules.0.than", "measurd"), ["rules[A].than: no step appends 'measurd'; did you mean 'measured'?"]),
    (("rules.0.event", "mesured"), ["rules[A].event: no step appends 'mesured'; did you mean 'measured'?"]),
    (("rules.1.n", -1), ["rules[B].n: -1 is no number of times"]),
    (("rules.1.id", "A"), ["rules: 'A' is declared 2 times"]),
    (("rules.1.fix", " "), ["rules[B].fix: says nothing; a refusal without it helps nobody"]),
    (("rules.1.needs", "ranke"), ["rules[B].needs: unknown collaborator or policy 'ranke'; did you mean 'ranks'?"]),
    (
        (
            "rules.1",
            {
                "id": "B",
                "guards": ["make"],
                "kind": "counter",
                "counter": "hed",
                "equals": 0,
                "because": "b",
                "fix": "f",
            },
        ),
        [
            "rules[B].counter: unknown counter 'hed'; did you mean 'held'?",
        ],
    ),
    (
        (
            "rules.1",
            {
                "id": "B",
                "guards": ["make"],
                "kind": "counter",
                "counter": "held",
                "equals": 0,
                "because": "b",
                "fix": "f",
            },
        ),
        [
            'rules[B].counter: counter \'held\' is absent without "grammar"; add needs = "grammar"',
        ],
    ),
    (
        (
            "rules.1",
            {
                "id": "B",
                "needs": "grammar",
                "guards": ["make"],
                "kind": "counter",
                "counter": "held",
                "equals": -1,
                "because": "b",
                "fix": "f",
            },
        ),
        [
            "rules[B].equals: -1 is below the floor 0 of counter 'held'",
        ],
    ),
    (
        (
            "rules.1",
            {"id": "B", "guards": ["make"], "kind": "mode", "mode": "bsy", "is": True, "because": "b", "fix": "f"},
        ),
        [
            "rules[B].mode: unknown mode 'bsy'; did you mean 'busy'?",
        ],
    ),
    (
        (
            "properties.1",
            {"id": "P", "says": "s", "when": "ready", "holds": [{"mode": ["busy", True], "scope": "runtime"}]},
        ),
        ["properties: 'P' is declared 2 times"],
    ),
    (
        ("properties.0.holds.0", {"mode": ["busy", True]}),
        ["properties[P].holds[0].scope: 'busy' moves in scope 'runtime', and is judged in 'slot', where it never does"],
    ),
    (
        ("properties.0.holds.0", {"counter": ["held", 0], "scope": "variant", "needs": "grammar"}),
        ["properties[P].holds[0].scope: 'held' moves in scope 'slot', and is judged in 'variant', where it never does"],
    ),
    (("properties.0.when", []), ["properties[P].when: names no moment"]),
    (("properties.0.when", "redy"), ["properties[P].when: unknown event or state 'redy'; did you mean 'ready'?"]),
    (
        ("properties.0.when", "measured"),
        ['properties[P].when: event \'measured\' is absent without "sampler"; add needs = "sampler"'],
    ),
    (("steps.serve.event", "ready"), ["properties[P].when: 'ready' is both an event and a state; rename one"]),
    (("properties.0.holds", []), ["properties[P]: promises nothing; say what `holds`, or what holds `before`"]),
    (
        ("properties.0.needs", "rank"),
        ["properties[P].needs: unknown collaborator or policy 'rank'; did you mean 'ranks'?"],
    ),
    (("properties.0.says", ""), ["properties[P].says: says nothing"]),
    (
        ("properties.0.holds.0", {"after": ["measured", "built"]}),
        ['properties[P].holds[0].event: event \'measured\' is absent without "sampler"; add needs = "sampler"'],
    ),
    (
        ("properties.0.before", [{"after": ["built", "bilt"]}]),
        ["properties[P].before[0].than: no step appends 'bilt'; did you mean 'built'?"],
    ),
    (
        ("properties.0.holds.1", {"counter": ["held", 1]}),
        ['properties[P].holds[1].counter: counter \'held\' is absent without "grammar"; add needs = "grammar"'],
    ),
    (
        ("properties.0.holds.1.needs", "gramar"),
        [
            "properties[P].holds[1].needs: unknown collaborator or policy 'gramar'; did you mean 'grammar'?",
            'properties[P].holds[1].counter: counter \'held\' is absent without "grammar"; add needs = "grammar"',
        ],
    ),
    (
        ("counters.held.needs", "x"),
        [
            "counters.held.needs: unknown collaborator or policy 'x'",
            'properties[P].holds[1].counter: counter \'held\' is absent without "x"; add needs = "x"',
        ],
    ),
]

ALL = {"counts": "what all hold", "scope": "runtime", "sums": "held", "needs": "grammar"}
SUMS = [
    ({"sums": "hold"}, ["counters.all.sums: unknown counter 'hold'; did you mean 'held'?"]),
    ({"scope": "variant"}, ["counters.all.scope: a sum over all slots is of scope 'runtime', not 'variant'"]),
    ({"floor": 0}, ["counters.all.floor: a sum has none of its own; it falls with 'held'"]),
    ({"sums": "all"}, ["counters.all.sums: 'all' is no counter of scope 'slot' with floor 0"]),
    (
        {"needs": None},
        ['counters.all.sums: counter \'held\' is absent without "grammar"; add needs = "grammar"'],
    ),
]


@pytest.mark.parametrize(("words", "expected"), SUMS)
def test_each_flaw_of_a_sum_is_told(planted, words, expected):
    """A sum over all slots is the runtime's, of a slots' counter that never falls below 0, and is there when it is."""
    counter = {key: value for key, value in (ALL | words).items() if value is not None}
    assert set(expected) == planted("counters.all", counter)


MOVES = [
    (
        ("steps.build.count", {"held": 1, "all": 1}),
        "steps.build.count.all: a sum is moved by whatever moves 'held', and never by itself",
    ),
    (
        ("steps.serve.count", {"held": 1}),
        "counters.all.sums: 'serve' moves 'held' in serving.replay, where there is no slot",
    ),
    (
        ("properties.0.holds.0", {"counter": ["all", 2], "scope": "runtime", "needs": "grammar"}),
        "properties[P].holds[0].equals: a sum over all slots can only be asked to be 0, not 2",
    ),
]


@pytest.mark.parametrize(("changes", "expected"), MOVES)
def test_a_sum_moves_with_the_slots_counter_only(planted, changes, expected):
    """No step moves it by itself, no step without a slot moves what it sums, and it is asked only whether it is 0."""
    assert {expected} == planted("counters.all", ALL, *changes)


@pytest.mark.parametrize(("changes", "expected"), PLANTED)
def test_each_flaw_of_the_law_is_told(planted, changes, expected):
    """One thing wrong in sound steps, rules or properties: exactly its problems, with what to do."""
    assert set(expected) == planted(*changes)


def test_a_rule_of_the_runtime_may_guard_serving(small, problems):
    """Steps outside of transitions have no slot, but rules of the runtime's ledger are asked there too."""
    small["rules"][1] = small["rules"][1] | {"guards": ["serve"], "scope": "runtime"}
    assert () == problems(small)
