"""The comparison finds what it has to find: each test plants one difference in a run that agrees with itself."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch

from tests.fidelity import samples
from tests.fidelity.comparison import Explanation, Outcome, compare, explanations
from tests.fidelity.grounds import Emulated
from tests.fidelity.interpreter import Interpreter
from tests.fidelity.op_samples import Sample
from tests.fidelity.program import Program
from tests.fidelity.verdicts import classify, classify_words, coarse
from tsgraph.backends.emulated.refusal import refuse

PROGRAM = Program("planted", 0, [
    'x = torch.arange(4.0, device="cuda")',
    "g0 = torch.cuda.CUDAGraph()",
    ['with attempt("g0") as at:', [["with torch.cuda.graph(g0):", ['at("body")', "y = x * 2", "z = y.view(2, 2)"]]]],
    "g0.replay()",
    'see("y", "float")',
    'see("z")',
    'fact("shares", lambda: z.untyped_storage().data_ptr() == y.untyped_storage().data_ptr())',
    "g1 = torch.cuda.CUDAGraph()",
    ['with attempt("g1") as at:', [["with torch.cuda.graph(g1):", ['at("body")', "x.sum().item()"]]]],
    ['with attempt("unjoined") as at:', ["g0.replay()"]],
    'see("y", "float")',
])  # fmt: skip
# Of the observations that the program makes:
Y, Z, SHARES, REFUSED, FINE, LAST = 1, 2, 3, 4, 5, 6


@pytest.fixture(scope="module")
def observed() -> list[dict[str, Any]]:
    """What the program does, here."""
    ground = Emulated()
    with ground.clean():
        return Interpreter(ground.recover).run(PROGRAM)


def _planted(observed: list[dict[str, Any]], number: int, **changes: Any) -> Outcome:
    other = copy.deepcopy(observed)
    other[number].update(changes)
    return compare("planted", PROGRAM, other, observed, explanations())


def _fields(outcome: Outcome) -> list[str]:
    return [each.field for each in outcome.unexplained]


def test_a_run_agrees_with_itself(observed: list[dict[str, Any]]) -> None:
    """Nothing differs, and all is compared."""
    outcome = compare("planted", PROGRAM, observed, observed, explanations())
    assert (len(observed), 0, [], []) == (outcome.equal, outcome.open, outcome.explained, outcome.unexplained)
    assert ["y", "z", "shares", "g1", "unjoined", "y"] == [each["of"] for each in observed[1:]]
    assert observed[REFUSED]["first"] == "host_sync"


def test_another_value_is_found(observed: list[dict[str, Any]]) -> None:
    """A float beyond the tolerance, or any other number where values are exact."""
    assert _fields(_planted(observed, Y, values=[0.0, 2.0, 4.0, 6.001])) == ["values"]
    assert _fields(_planted(observed, Z, values=[0.0, 2.0, 4.0, 6.000001])) == ["values"]
    assert _fields(_planted(observed, Z, values=[0.0, 2.0, 4.0, "nan"])) == ["values"]


def test_rounding_is_no_difference_where_a_tolerance_says_so(observed: list[dict[str, Any]]) -> None:
    """Within the tolerance of `float`, numbers agree."""
    assert _fields(_planted(observed, Y, values=[0.0, 2.0, 4.0, 6.00001])) == []


def test_another_dtype_or_shape_is_found(observed: list[dict[str, Any]]) -> None:
    """Although the numbers are the same."""
    assert _fields(_planted(observed, Y, dtype="float64")) == ["dtype"]
    assert _fields(_planted(observed, Z, shape=[4])) == ["shape"]


def test_lost_aliasing_is_found(observed: list[dict[str, Any]]) -> None:
    """Whether two tensors share memory is a fact as good as a number."""
    assert observed[SHARES]["value"] is True
    assert _fields(_planted(observed, SHARES, value=False)) == ["fact"]


@pytest.mark.parametrize("first", ["unjoined", "pool", "generator", "invalidated", "user", "other"])
def test_another_class_of_error_is_found(observed: list[dict[str, Any]], first: str) -> None:
    """An error for another reason is not the same error."""
    assert _fields(_planted(observed, REFUSED, first=first, says="RuntimeError: something else")) == ["first"]


def test_another_error_at_the_end_is_found(observed: list[dict[str, Any]]) -> None:
    """The error that leaves the outermost block is compared by itself: it tells whether the capture was invalidated."""
    assert observed[REFUSED]["last"] == "invalidated"
    assert _fields(_planted(observed, REFUSED, last="pageable_copy")) == ["last"]


@pytest.mark.parametrize("change", [{"stage": "end"}, {"at": 3}, {"on_default_stream": None}])
def test_an_error_elsewhere_is_found(observed: list[dict[str, Any]], change: dict[str, Any]) -> None:
    """The same error in another line or stage, or one that leaves another stream current."""
    assert _fields(_planted(observed, REFUSED, **change)) == list(change)


@pytest.mark.parametrize("first", ["host_sync", "forbidden", "unjoined", "other"])
def test_an_error_on_one_side_alone_is_found(observed: list[dict[str, Any]], first: str) -> None:
    """Whatever its class, and whichever side it is on; what follows is its consequence and is not compared."""
    error = {**observed[REFUSED], "first": first, "line": observed[FINE]["line"], "of": observed[FINE]["of"]}
    assert _fields(_planted(observed, FINE, **error)) == ["error"]
    assert _fields(_planted(observed, REFUSED, first=None)) == ["error"]


def test_a_missing_observation_is_found(observed: list[dict[str, Any]]) -> None:
    """On either side."""
    short = observed[:LAST]
    assert _fields(compare("planted", PROGRAM, observed, short, explanations())) == ["observation"]
    assert _fields(compare("planted", PROGRAM, short, observed, explanations())) == ["observation"]


def test_a_sample_that_is_random_on_one_side_alone_is_not_compared_further() -> None:
    """That it is, is the difference: on the other side no values are noted."""
    fact = {"line": 6, "of": "random", "is": "fact", "value": False}
    look = {"line": 17, "of": "r0", "is": "value", "dtype": "float32", "shape": [1], "values": [1.0]}
    unbound = {"line": 17, "of": "r0", "is": "value", "values": "unbound"}
    outcome = compare("sample", None, [fact, look], [{**fact, "value": True}, unbound], [])
    assert ["random"] == _fields(outcome)


def _ties(values: list[int], indices: list[int], shape: list[int]) -> list[dict[str, Any]]:
    look = {"is": "value", "dtype": "int64", "tolerance": "float", "shape": shape}
    return [
        {**look, "line": 17, "of": "r0", "values": values},
        {**look, "line": 18, "of": "r1", "values": indices},
    ]


@pytest.mark.parametrize(("operator", "shape"), [("topk", [2, 1]), ("kthvalue", [2])])
def test_an_index_may_name_any_of_equal_elements(
    monkeypatch: pytest.MonkeyPatch, operator: str, shape: list[int]
) -> None:
    """Where torch leaves open which: another element of the same value, but no other one."""
    rows = torch.tensor([[5, 7, 5], [1, 9, 9]])
    drawn = Sample(operator, f"{operator} int64 0", getattr(torch, operator), (rows, 1), {})
    monkeypatch.setattr(samples, "find", {drawn.name: drawn}.get)

    def outcome(indices: list[int], task: str = f"sample {drawn.name}") -> Outcome:
        cuda, emulated = (_ties([5, 9], each, shape) for each in (indices, [0, 1]))
        return compare("sample", None, cuda, emulated, [], task)

    assert ([], 1) == (_fields(outcome([2, 2])), outcome([2, 2]).open)
    assert ["values"] == _fields(outcome([1, 1]))
    assert ["values"] == _fields(outcome([3, 1]))
    assert ["values"] == _fields(outcome([2, 1], "sample sort int64 0"))


def test_errors_without_a_class_are_told_apart_by_type() -> None:
    """Two errors that no class describes are equal only where their types are."""
    error = {"line": 1, "of": "a", "is": "error", "first": "other", "last": "other", "stage": "body", "at": 1}
    torchs = {**error, "says": "RuntimeError: mat1 and mat2 shapes", "on_default_stream": True}
    ours = {**torchs, "says": "ReplayFailed: it returned another shape"}
    assert _fields(compare("planted", None, [torchs], [ours], [])) == ["first", "last"]
    assert _fields(compare("planted", None, [torchs], [torchs], [])) == []


def test_an_explanation_covers_what_it_matches_and_no_more(observed: list[dict[str, Any]]) -> None:
    """All its patterns have to match, each the whole field."""
    table = explanations()
    assert all(len(each.reason) > 20 and isinstance(each, Explanation) and each.patterns for each in table)
    found = _planted(observed, Y, values=[1.0] * 4).unexplained
    assert found
    assert not any(each.covers(difference) for each in table for difference in found)


def test_an_explanation_may_depend_on_the_whole_program(observed: list[dict[str, Any]]) -> None:
    """A pattern for `source` matches the program that a difference is found in."""
    found = _planted(observed, Y, values=[1.0] * 4).unexplained[0]
    program = re.compile(r".*x\.sum\(\)\.item.*", re.DOTALL)
    assert Explanation("a", "b", {"source": program}).covers(found)
    assert not Explanation("a", "b", {"source": program, "field": re.compile("dtype")}).covers(found)


def test_an_explanation_may_be_of_some_tasks(observed: list[dict[str, Any]]) -> None:
    """A pattern for `task` matches the title of what was run."""
    outcome = compare("planted", PROGRAM, observed[:LAST], observed, [], "sample add float32 0")
    explanation = Explanation("a", "b", {"task": re.compile("sample add .*")})
    assert explanation.covers(outcome.unexplained[0])
    assert not Explanation("a", "b", {"task": re.compile("sample mul .*")}).covers(outcome.unexplained[0])


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("CUDA error: operation not permitted when stream is capturing", "forbidden"),
        ("CUDA error: operation failed due to a previous error during capture", "invalidated"),
        ("Cannot copy between CPU and CUDA tensors during capture unless the CPU tensor is pinned.", "forbidden"),
        ("CUDA error: capturing stream has unjoined work", "unjoined"),
        ("Called CUDAGraph::replay without a preceding successful capture.", "not_captured"),
        ("this recording is invalid since torch.cuda.synchronize was refused", "invalidated"),
        ("not inside a recording", "forbidden"),
        ("shape '[5, 5]' is invalid for input of size 24", "other"),
        ("beginAllocateToPool: already recording to mempool_id", "pool"),
        ("\"avg_pool2d_out_cuda_frame\" not implemented for 'Long'", "other"),
    ],
)
def test_words_have_a_class(said: str, name: str) -> None:
    """CUDA's words and the emulation's."""
    assert name == coarse(classify_words(said))


def test_the_operation_that_was_refused_is_not_the_reason() -> None:
    """Its name, its place and the hint may hold any words: only the reason counts, or CUDA's own code."""
    assert classify(refuse("aten.max_pool2d.default", "not inside a recording", "use the generator")) == "forbidden"
    assert classify(refuse("Event.query", "not so", "", cuda="cudaErrorCapturedEvent")) == "captured_event"
