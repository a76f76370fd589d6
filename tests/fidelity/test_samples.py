"""Calls from torch's database of operators: found by name, and only those whose tensors can be compared."""

from __future__ import annotations

from tests.fidelity import samples
from tests.fidelity.grounds import Emulated


def test_a_call_is_found_that_a_smaller_choice_would_leave_out() -> None:
    """A recording holds the names that were chosen when it was made; another choice now does not lose them."""
    found = samples._calls("add", "float32")
    assert len(found) > samples.PER_OPERATOR
    ground = Emulated()
    for name in list(found)[:3]:
        with ground.clean():
            observed = samples.observe(name, ground)
        assert observed[0]["value"] == samples._digest(found[name])
        assert all(each["first"] is None for each in observed if each["is"] == "error")


def test_sparse_calls_are_left_out() -> None:
    """Their layout has no strides, and no digest: asking for one is answered, not an error."""
    assert samples._calls("sparse_sampled_addmm", "float32") == {}
    ground = Emulated()
    with ground.clean():
        observed = samples.observe("sparse_sampled_addmm float32 0", ground)
    assert [each["value"] for each in observed] == ["no such call in this version of torch, or none to compare"]
