from __future__ import annotations

import gc
import weakref

import pytest

from tsgraph.lifecycle.trouble import Trouble

STEPS = ("switch_off", "put_back", "vote")


def test_every_step_is_tried_and_the_first_error_is_raised_with_the_others_as_notes(tiny, recorder):
    """A step that raises stops none after it; without an original, the first error is the one that is raised."""
    perform = recorder(raises={"switch_off": ValueError("a"), "vote": KeyError("b")})
    trouble = Trouble()
    trouble.attempt([tiny.steps[name] for name in STEPS], perform)
    assert list(STEPS) == perform.steps
    with pytest.raises(ValueError, match="a") as caught:
        trouble.settle()
    assert "KeyError: 'b'" in "\n".join(caught.value.__notes__)


def test_an_original_is_left_to_its_handler(tiny, recorder):
    """Where an error is being handled, later ones become notes on it, and `settle` raises nothing."""
    original = RuntimeError("original")
    trouble = Trouble(original)
    trouble.attempt([tiny.steps["vote"]], recorder(raises={"vote": ValueError("later")}))
    trouble.settle()
    assert ["step vote, which had to run, raised ValueError: later"] == original.__notes__


def test_an_interrupt_is_graver_than_an_error(tiny, recorder):
    """A Ctrl-C while cleaning up after an error is not swallowed into a note: it is what goes on."""
    trouble = Trouble(RuntimeError("original"))
    trouble.attempt([tiny.steps["vote"]], recorder(raises={"vote": KeyboardInterrupt()}))
    with pytest.raises(KeyboardInterrupt) as caught:
        trouble.settle()
    assert "raised while handling RuntimeError: original" in caught.value.__notes__


def test_an_interrupt_that_is_handled_stays_the_gravest(tiny, recorder):
    """An error while cleaning up after a Ctrl-C becomes a note on it."""
    original = KeyboardInterrupt()
    trouble = Trouble(original)
    trouble.attempt([tiny.steps["vote"]], recorder(raises={"vote": ValueError("later")}))
    trouble.settle()
    assert ["step vote, which had to run, raised ValueError: later"] == original.__notes__


class _Tensor:
    """Stands for what a frame holds."""


def _handle(tiny) -> weakref.ref[_Tensor]:
    references: list[weakref.ref[_Tensor]] = []

    def work(step):
        tensor = _Tensor()
        references.append(weakref.ref(tensor))
        raise ValueError(step.name)

    trouble = Trouble()
    trouble.attempt([tiny.steps["vote"]], work)
    with pytest.raises(ValueError, match="vote"):
        trouble.settle()
    return references[0]


def test_an_error_that_was_raised_is_freed_without_a_collection(tiny):
    """No frame of the error's traceback holds the error: what its frames held goes as soon as it is handled."""
    gc.disable()
    try:
        assert _handle(tiny)() is None
    finally:
        gc.enable()
