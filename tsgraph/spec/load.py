"""Reading a spec: the file, what it extends, the numbers it refers to, its types, and its structure, in that order.

Every problem of all these stages that can be told is told at once, in one `SpecError`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import attrs

from tsgraph.errors import SpecError
from tsgraph.spec.catalog import locate
from tsgraph.spec.check import check_spec
from tsgraph.spec.merge import merged
from tsgraph.spec.model import Spec
from tsgraph.spec.problems import Problem, shown, told
from tsgraph.spec.references import resolve
from tsgraph.spec.remainder import check_remainder, plain
from tsgraph.spec.structure import structure, structure_policy


def load_spec(name_or_path: str | os.PathLike[str]) -> Spec:
    """The spec of a shipped name ("decode") or of a TOML file.

    Raises: SpecError with every problem of the file, each as `key.path: what`.
    """
    file = locate(name_or_path)
    return _spec(_read(file), source=str(file), beside=_directory(file), within=(_resolved(file),))


def parse_spec(data: Mapping[str, Any], *, source: str = "<memory>") -> Spec:
    """The spec that `data` says, in the shape of the TOML file. `data` is left as it is.

    Raises: SpecError as `load_spec`.
    """
    return _spec(plain(data), source=source, beside=None, within=())


def with_policy(spec: Spec, words: Mapping[str, Any]) -> Spec:
    """`spec` with these words of its policy replaced.

    Raises: SpecError for a word that there is not, or a value that it does not take.
    """
    policy, wrong = structure_policy({**attrs.asdict(spec.policy), **words})
    if policy is None:
        raise SpecError("policy", tuple(told(wrong, dict(words))))
    return attrs.evolve(spec, policy=policy)


def _spec(data: dict[str, Any], *, source: str, beside: Path | None, within: tuple[str, ...]) -> Spec:
    try:
        whole, problems = _extended(data, beside, within)
    except SpecError as error:
        raise SpecError(source, tuple(f"extends: {problem}" for problem in error.problems)) from error
    spec, wrong = _structured(whole)
    problems += told(wrong, whole)
    problems += check_spec(spec) if spec else check_remainder(whole, wrong)
    if spec is None or problems:
        raise SpecError(source, tuple(dict.fromkeys(problems)))
    return attrs.evolve(spec, source=source)


def _structured(data: dict[str, Any]) -> tuple[Spec | None, list[Problem]]:
    """The spec, and what is wrong. A reference that leads nowhere, or to a wrong value, is told once."""
    resolved = plain(data)
    references, lost = resolve(resolved)
    spec, wrong = structure(resolved)
    lost_at = {problem.address for problem in lost}
    wrong_at = {problem.address for problem in wrong}
    own = [p for p in wrong if p.address not in lost_at and references.get(p.address) not in wrong_at]
    return (spec if not lost else None), lost + own


# -- files -------------------------------------------------------------------------------------------------------------


def _read(file: Traversable) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(str(file), (f"syntax: {error}",)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(file), (f"file: cannot be read: {error}",)) from error


def _resolved(file: Traversable) -> str:
    return str(file.resolve() if isinstance(file, Path) else file)


def _directory(file: Traversable) -> Path | None:
    return file.parent if isinstance(file, Path) else None


# -- extends -----------------------------------------------------------------------------------------------------------


def _extended(data: dict[str, Any], beside: Path | None, within: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """`data` over the spec that it extends; `within` are the files that are being extended already.

    Raises: SpecError where that spec cannot be read: without it nothing else can be judged.
    """
    base = data.get("extends")
    if base is None:
        return data, []
    if not isinstance(base, str):
        raise SpecError("extends", (f"expected a shipped name or a path, got {shown(base)}",))
    inherited, problems = _base(base, beside, within)
    result, wrong = merged(inherited, data)
    return plain(result), problems + told(wrong, data)


def _base(name: str, beside: Path | None, within: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    file = locate(name, beside=beside)
    seen = _resolved(file)
    if seen in within:
        raise SpecError(seen, (f"a cycle: {' extends '.join([*within, seen])}",))
    return _extended(_read(file), _directory(file), (*within, seen))
