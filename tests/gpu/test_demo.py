"""The main job on a CUDA device."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

SCHEMA = """{
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}
    },
    "required": ["name"]
}"""


@pytest.mark.parametrize(
    "flags", [(), ("--speculative",), ("--recurrent",), ("--speculative", "--recurrent")], ids=" ".join
)
def test_the_demo_holds_on_cuda(flags):
    """Every replayed step of the demo equals eager bit by bit on CUDA, and all texts agree."""
    command = [sys.executable, "-m", "tsgraph", "demo", "--backend", "cuda", "--requests", "8", "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    assert "cuda" == json.loads(done.stdout)["backend"]


@pytest.mark.parametrize("flags", [(), ("--speculative",)], ids=" ".join)
def test_constrained_texts_hold_on_cuda(flags, tmp_path):
    """Masks made by host functions in real graphs: every constrained text is valid JSON, and all equal eager."""
    path = tmp_path / "schema.json"
    path.write_text(SCHEMA, encoding="utf-8")
    command = [sys.executable, "-m", "tsgraph", "demo", "--backend", "cuda", "--requests", "12", "--json", *flags]
    done = subprocess.run([*command, "--json-schema", str(path)], capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    figures = json.loads(done.stdout)
    assert ("cuda", 6, []) == (figures["backend"], figures["grammar"]["constrained"], figures["grammar"]["invalid"])
