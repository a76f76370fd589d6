"""The package as a whole: what it exports, what importing it costs, and what is shipped, pinned and run by the gate."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tsgraph
from tsgraph import errors

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PURE = ("errors", "groups", "keys", "events", "spec", "lifecycle", "protocols", "dispatch", "observe")
FROM_TORCHS_BUILD = ("nvidia-", "cuda-", "triton")
"""What a CUDA build of torch requires besides: it pins them itself."""

IMPORT_PACKAGE = """
import sys
before = set(sys.modules)
import tsgraph
dependencies = {"attr", "attrs", "cattrs", "numpy", "rich", "structlog", "torch", "transitions"}
print([name for name in set(sys.modules) - before if name.startswith("tsgraph.") or name.split(".")[0] in dependencies])
"""
IMPORT_PURE = f"""
import importlib, pkgutil, sys
for package in {PURE!r}:
    module = importlib.import_module(f"tsgraph.{{package}}")
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"{{module.__name__}}."):
        importlib.import_module(found.name)
print(sorted(set(sys.modules) & {{"torch"}}))
"""
IMPORT_ALL = """
import importlib, pathlib, sys, tsgraph
root = pathlib.Path(tsgraph.__file__).parent
for file in root.rglob("*.py"):
    name = ".".join(("tsgraph", *file.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
    if not name.startswith("tsgraph.testing") and not name.endswith("__main__"):
        importlib.import_module(name)
print(sorted(set(sys.modules) & {"hypothesis"}))
"""


def _python(code: str) -> str:
    """What a fresh interpreter prints."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def _names_for_checkers() -> dict[str, str]:
    """The names that type checkers see, with their modules."""
    tree = ast.parse(inspect.getsource(tsgraph))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = (node for node in block.body if isinstance(node, ast.ImportFrom))
    return {alias.name: node.module or "" for node in imports for alias in node.names}


# -- what it exports --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tsgraph.__all__)
def test_public_name_is_there(name):
    """Every public name resolves, and the second access finds a plain attribute."""
    value = getattr(tsgraph, name)

    assert value is vars(tsgraph)[name]


def test_type_checkers_see_what_there_is():
    """The imports under TYPE_CHECKING are the lazy names, each from the module that it comes from."""
    assert _names_for_checkers() == tsgraph._HOME


def test_every_error_is_public():
    """Whoever catches an error of tsgraph finds its class on the package."""
    classes = {name for name, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)}

    assert classes == {name for name, module in tsgraph._HOME.items() if module == "tsgraph.errors"}


def test_dir_lists_what_is_public():
    """Completion in a shell offers the public names before any was used."""
    assert sorted(tsgraph.__all__) == dir(tsgraph)


def test_unknown_name_is_an_attribute_error():
    """A typo is answered as by any module."""
    with pytest.raises(AttributeError, match="module 'tsgraph' has no attribute 'GraphRuntimes'"):
        tsgraph.GraphRuntimes  # noqa: B018


def test_version_is_the_distributions():
    """There is one version, that of the installed distribution."""
    assert (PROJECT["version"], metadata.version("tsgraph")) == (tsgraph.__version__, tsgraph.__version__)


def test_a_checkout_that_was_not_installed_has_a_version(monkeypatch, tmp_path):
    """That which its pyproject.toml declares; without one nobody knows."""

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert PROJECT["version"] == tsgraph._version()
    assert "unknown" == tsgraph._version_of_checkout(tmp_path / "pyproject.toml")


# -- what importing it costs ------------------------------------------------------------------------------------------


def test_import_loads_nothing_else():
    """`import tsgraph` imports no module of its own and no dependency: names are imported when they are used."""
    assert "[]" == _python(IMPORT_PACKAGE)


def test_pure_part_needs_no_torch():
    """Specs, rules, errors, decisions and observers work where torch is not installed."""
    assert "[]" == _python(IMPORT_PURE)


def test_loading_a_spec_needs_no_torch():
    """`load_spec` from the package itself stays pure, too."""
    assert "decode False" == _python(
        "import sys, tsgraph; print(tsgraph.load_spec('decode').name, 'torch' in sys.modules)"
    )


def test_only_testing_needs_hypothesis():
    """Everything else works without the `testing` extra."""
    assert "[]" == _python(IMPORT_ALL)


# -- what is shipped and pinned ---------------------------------------------------------------------------------------


def test_types_are_shipped():
    """Type checkers use the annotations of the installed package."""
    assert resources.files("tsgraph").joinpath("py.typed").is_file()


def test_command_is_declared():
    """Installing the package installs the command `tsgraph`."""
    (command,) = metadata.entry_points(group="console_scripts", name="tsgraph")

    assert callable(command.load())


def _required() -> set[str]:
    """The names of all distributions that development installs, directly or not; `grammar` is not among its extras."""
    extras = PROJECT["optional-dependencies"]
    declared = [PROJECT["dependencies"], *(extras[name] for name in extras if name != "grammar")]
    todo, seen = [Requirement(each) for each in chain(*declared)], {("tsgraph", "")}
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), ("", *requirement.extras)
        new = [extra for extra in extras if (name, extra) not in seen and not name.startswith(FROM_TORCHS_BUILD)]
        seen.update((name, extra) for extra in new)
        todo += [each for extra in new for each in _applying(name, extra)]
    return {name for name, _ in seen} - {"tsgraph"}


def _applying(name: str, extra: str) -> list[Requirement]:
    every = map(Requirement, metadata.requires(name) or [])
    return [each for each in every if each.marker is None or each.marker.evaluate({"extra": extra})]


def test_everything_required_is_pinned():
    """constraints.txt names a version for each requirement, direct or not, so that the tested set can be had again."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if line and not line.startswith("#")}

    assert set() == _required() - pinned


def test_pins_are_exact_and_portable():
    """Each line is one exact version without a local part: `+cpu` exists on one index only."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]

    assert [] == [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[a-z0-9.]+", pin)]
    assert sorted(pins, key=lambda pin: pin.split("==")) == pins


# -- what the gate runs -----------------------------------------------------------------------------------------------


def test_gate_runs_every_script():
    """What a developer can run by hand, save what needs a GPU or hours, the gate runs too, and it does nothing else."""
    stages = re.findall(r"^stage (scripts/\w+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(f"scripts/{script.name}" for script in (ROOT / "scripts").iterdir()) == sorted(
        [*stages, "scripts/gpu", "scripts/fidelity", "scripts/soak", "scripts/speed"]
    )


def test_gate_runs_the_readmes_commands():
    """The two commands that the README promises are what the gate's scripts run, to the letter."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    demo, test = re.findall(r"^pip install -c constraints\.txt -e .*$", readme, re.MULTILINE)

    assert "pip install -c constraints.txt -e . && tsgraph demo" == demo
    assert "pip install -c constraints.txt -e '.[dev]' && pytest" == test
    assert demo in (ROOT / "scripts" / "demo").read_text(encoding="utf-8").splitlines()
    assert f'{test} "$@"' in (ROOT / "scripts" / "test").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("script", [".ci/run", *(f"scripts/{p.name}" for p in sorted((ROOT / "scripts").iterdir()))])
def test_script_stops_at_the_first_failure(script):
    """Every script can be executed, and none goes on after a command has failed."""
    assert os.access(ROOT / script, os.X_OK)
    assert "set -euo pipefail" in (ROOT / script).read_text(encoding="utf-8").splitlines()
