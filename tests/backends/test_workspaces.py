"""Workspaces of cuBLAS around a recording: forgotten before it and after it, on every exit."""

from pathlib import Path

import pytest
import torch

from tsgraph.backends import workspaces


@pytest.fixture
def forgotten(monkeypatch):
    """The streams whose workspaces were forgotten, by a torch that can."""
    streams: list[int] = []
    monkeypatch.setattr(workspaces, "_forget", lambda: streams.append)
    return streams


def test_a_recording_has_workspaces_of_its_own(forgotten):
    """What warm-ups left is forgotten first, and what the recording took afterwards (fault E4)."""
    with workspaces.own_workspaces(7):
        inside = list(forgotten)
    assert ([7], [7, 7]) == (inside, forgotten)


def test_one_that_fails_gives_its_own_back(forgotten):
    """Else they would pin the memory of its pool (fault L3)."""
    with pytest.raises(ValueError, match="planted"), workspaces.own_workspaces(7):
        raise ValueError("planted")
    assert [7, 7] == forgotten


def test_without_the_call_nothing_is_done(monkeypatch):
    """A torch that forgets no workspaces frees none, so there is nothing to do."""
    monkeypatch.setattr(workspaces, "_forget", lambda: None)
    with workspaces.own_workspaces(7):
        pass


@pytest.mark.parametrize("library", ["nowhere.so", "libtorch_cpu.so"])
def test_a_library_without_the_call_has_none(library):
    """A build without CUDA, or an older one, is no error."""
    assert None is workspaces.find(Path(torch.__file__).parent / "lib" / library)
