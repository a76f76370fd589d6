"""The main job on a CUDA device."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "flags", [(), ("--speculative",), ("--recurrent",), ("--speculative", "--recurrent")], ids=" ".join
)
def test_the_demo_holds_on_cuda(flags):
    """Every replayed step of the demo equals eager bit by bit on CUDA, and all texts agree."""
    command = [sys.executable, "-m", "tsgraph", "demo", "--backend", "cuda", "--requests", "8", "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    assert "cuda" == json.loads(done.stdout)["backend"]
