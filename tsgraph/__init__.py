"""A declarative state-machine runtime for CUDA graphs in PyTorch inference engines.

Everything public is here; a name's module is imported when the name is first used (PEP 562), so that `import tsgraph`
and the pure part (specs, rules, errors, decisions) need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tsgraph.buffers.contract import Fixed as Fixed
    from tsgraph.buffers.contract import Rows as Rows
    from tsgraph.buffers.contract import State as State
    from tsgraph.capture.mode import is_capturing as is_capturing
    from tsgraph.errors import BadBatch as BadBatch
    from tsgraph.errors import BadGeometry as BadGeometry
    from tsgraph.errors import BadGrammar as BadGrammar
    from tsgraph.errors import CallerError as CallerError
    from tsgraph.errors import CaptureFailed as CaptureFailed
    from tsgraph.errors import CaptureUnsupported as CaptureUnsupported
    from tsgraph.errors import CollaboratorError as CollaboratorError
    from tsgraph.errors import ContractViolation as ContractViolation
    from tsgraph.errors import DeviceError as DeviceError
    from tsgraph.errors import HostFunctionFailed as HostFunctionFailed
    from tsgraph.errors import IllegalTransition as IllegalTransition
    from tsgraph.errors import InternalError as InternalError
    from tsgraph.errors import LeaseExpired as LeaseExpired
    from tsgraph.errors import NotEmulated as NotEmulated
    from tsgraph.errors import OutOfBudget as OutOfBudget
    from tsgraph.errors import RankDisagreement as RankDisagreement
    from tsgraph.errors import ReplayDiffers as ReplayDiffers
    from tsgraph.errors import ReplayFailed as ReplayFailed
    from tsgraph.errors import RuleViolation as RuleViolation
    from tsgraph.errors import SpecError as SpecError
    from tsgraph.errors import StaleSlot as StaleSlot
    from tsgraph.errors import TsgraphError as TsgraphError
    from tsgraph.errors import UnknownSlot as UnknownSlot
    from tsgraph.errors import WrongThread as WrongThread
    from tsgraph.groups import CacheGroup as CacheGroup
    from tsgraph.keys import Batch as Batch
    from tsgraph.keys import Decision as Decision
    from tsgraph.keys import Geometry as Geometry
    from tsgraph.keys import Mode as Mode
    from tsgraph.keys import RankCounts as RankCounts
    from tsgraph.keys import Reason as Reason
    from tsgraph.keys import SlotKey as SlotKey
    from tsgraph.keys import Step as Step
    from tsgraph.runtime import GraphRuntime as GraphRuntime
    from tsgraph.spec.load import load_spec as load_spec

    __version__: str

_PUBLIC = {
    "tsgraph.runtime": ("GraphRuntime",),
    "tsgraph.spec.load": ("load_spec",),
    "tsgraph.buffers.contract": ("Fixed", "Rows", "State"),
    "tsgraph.capture.mode": ("is_capturing",),
    "tsgraph.groups": ("CacheGroup",),
    "tsgraph.keys": ("Batch", "Decision", "Geometry", "Mode", "RankCounts", "Reason", "SlotKey", "Step"),
    "tsgraph.errors": (
        "BadBatch", "BadGeometry", "BadGrammar", "CallerError", "CaptureFailed", "CaptureUnsupported",
        "CollaboratorError", "ContractViolation", "DeviceError", "HostFunctionFailed", "IllegalTransition",
        "InternalError", "LeaseExpired", "NotEmulated", "OutOfBudget", "RankDisagreement", "ReplayDiffers",
        "ReplayFailed", "RuleViolation", "SpecError", "StaleSlot", "TsgraphError", "UnknownSlot", "WrongThread",
    ),
}  # fmt: skip
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = [*_HOME, "__version__"]  # noqa: PLE0604 — made from the one table above


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _kept(name, _version())
    if name not in _HOME:
        raise AttributeError(f"module 'tsgraph' has no attribute {name!r}")
    return _kept(name, getattr(import_module(_HOME[name]), name))


def _version() -> str:
    """The version that is installed; of a checkout that is on the path and was not installed, the one it would be."""
    metadata = import_module("importlib.metadata")
    try:
        return str(metadata.version("tsgraph"))
    except metadata.PackageNotFoundError:
        return _version_of_checkout(import_module("pathlib").Path(__file__).parents[1] / "pyproject.toml")


def _version_of_checkout(project: Any) -> str:
    try:
        return str(import_module("tomllib").loads(project.read_text(encoding="utf-8"))["project"]["version"])
    except (OSError, KeyError):
        return "unknown"


def _kept(name: str, value: Any) -> Any:
    """`value`, and a plain attribute from now on."""
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
