"""A receipt as a value: what one recording read, wrote and baked in, as far as it can be seen. Pure: no torch.

Tensors are named by their owners. Addresses are those of the recording; no two processes have the same.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import attrs
from cattrs import BaseValidationError, Converter, transform_error
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from tsgraph.errors import CallerError

VERSION = 1
"""Counts the changes of what a receipt's JSON means."""

Place = Literal["device", "host"]


@attrs.frozen(kw_only=True)
class External:
    """Memory from outside of a recording that operators of it read or wrote; replays find it at this address.

    `kind` and `name`: its owner. Where not `declared`, no replay refreshes it and nobody promised to keep it: the
    name then says how the step holds it ("step closure"), or that it is of another recording ("recording"), was made
    while this one was recorded ("temporary"), or nothing ("unknown"). `origin`: the recording that made it, if one did.

    `shape`, `stride` and `dtype` are those of its owner's tensor; of an undeclared one, of the tensor that was used
    first. `operators` touched it, the first one at `line`. `writable`: it is declared as memory that steps write.
    """

    kind: str
    name: str
    declared: bool
    place: Place
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    address: int
    bytes: int
    read: bool
    written: bool
    writable: bool
    operators: tuple[str, ...]
    line: str
    origin: str = ""

    @property
    def path(self) -> str:
        """The owner as text: what `Owners.resolve` takes."""
        return f"{self.kind} {self.name}"

    @property
    def label(self) -> str:
        """What to call it, whatever its address."""
        return self.path if self.name else f"{self.kind} {self.form}, first in {self.operators[0]} at {self.line}"

    @property
    def form(self) -> str:
        """Dtype and shape."""
        return form_of(self.dtype, self.shape)

    @property
    def access(self) -> str:
        """Whether it is read, written or both."""
        return " ".join(word for word, is_so in (("read", self.read), ("written", self.written)) if is_so)


@attrs.frozen(kw_only=True)
class Output:
    """A tensor that the step returned. `alias`: whose memory it is, where that is not the recording's own."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    address: int
    bytes: int
    alias: str = ""

    @property
    def form(self) -> str:
        """Dtype and shape."""
        return form_of(self.dtype, self.shape)


@attrs.frozen(kw_only=True)
class Baked:
    """Python values that an operator was given for one argument at one line of the step: replays use them for ever.

    `values`: as Python writes them, in order, each with how often it came in a row. A zero-dimensional host tensor is
    baked, too, and counts by its value.
    """

    operator: str
    argument: str
    line: str
    values: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return ", ".join(value if times == 1 else f"{value} (×{times})" for value, times in self.values)


@attrs.frozen(kw_only=True)
class Once:
    """Work on host tensors that was done `times` times while recording: no replay does it again."""

    operator: str
    line: str
    times: int


@attrs.frozen(kw_only=True)
class Draw:
    """Random numbers that operators drew. `generator`: "default" or "given"."""

    operator: str
    line: str
    generator: str
    times: int


@attrs.frozen(kw_only=True)
class HostFunction:
    """Python that replays run, and the line that put it there."""

    name: str
    line: str


@attrs.frozen(kw_only=True)
class Opaque:
    """A part that nobody looked into: what it reads besides what it was handed, and what it writes, is not known."""

    kind: str
    name: str
    line: str
    times: int


@attrs.frozen(kw_only=True)
class Escape:
    """Memory of the recording that somebody still holds though it is no output: the next replay writes over it.

    `holder`: how it is held, where that was found.
    """

    operator: str
    line: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    holder: str = ""

    @property
    def form(self) -> str:
        """Dtype and shape."""
        return form_of(self.dtype, self.shape)


@attrs.frozen(kw_only=True)
class Kernel:
    """A kernel of the graph, as the device names it. `grid` where it tells; `times` it is launched."""

    name: str
    grid: tuple[int, int, int] | None
    times: int


@attrs.frozen(kw_only=True)
class CaptureReceipt:
    """What one recording read, wrote and baked in.

    `unread`: static buffers that are declared for graphs and that no operator touched. `nodes`: how many the graph has
    of each kind; None where the device does not tell. `pool_bytes`: by how much it grew the pool. `seconds`: host time
    of the recording. `kept`: the external memory itself, held as long as the receipt; it is in no file.

    `model`: the slot from whose receipt this one has all but slot, outputs, functions, nodes and costs, since its own
    recording was not watched (the policy `receipts = "warmed"`). Empty where it was.
    """

    slot: str
    spec: str
    backend: str
    device: str
    externals: tuple[External, ...] = ()
    outputs: tuple[Output, ...] = ()
    baked: tuple[Baked, ...] = ()
    once: tuple[Once, ...] = ()
    draws: tuple[Draw, ...] = ()
    functions: tuple[HostFunction, ...] = ()
    opaque: tuple[Opaque, ...] = ()
    escapes: tuple[Escape, ...] = ()
    unread: tuple[str, ...] = ()
    nodes: Mapping[str, int] | None = None
    kernels: tuple[Kernel, ...] = ()
    pool_bytes: int = 0
    seconds: float = 0.0
    model: str = ""
    kept: tuple[Any, ...] = attrs.field(default=(), eq=False, repr=False)

    def undeclared(self) -> Iterator[External]:
        """The external memory that nobody declared."""
        return (external for external in self.externals if not external.declared)

    def summary(self) -> dict[str, Any]:
        """A few numbers, as plain JSON data. `nodes` is None where the device does not tell."""
        return {
            "read": sum(external.read for external in self.externals),
            "written": sum(external.written for external in self.externals),
            "undeclared": sum(1 for _ in self.undeclared()),
            "baked": len(self.baked),
            "opaque": len(self.opaque),
            "escaped": len(self.escapes),
            "nodes": None if self.nodes is None else sum(self.nodes.values()),
        }

    def table(self, width: int = 120) -> str:
        """All of it for people, as text of `width` columns."""
        from tsgraph.receipts.tables import receipt_table

        return receipt_table(self, width)

    def to_json(self) -> str:
        """All of it but `kept`: `from_json` gives an equal receipt."""
        data: dict[str, Any] = _converter().unstructure(self)
        return json.dumps({"receipt": VERSION, **data}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> CaptureReceipt:
        """The receipt of which this is the JSON. Raises: CallerError for what is none, or one of another version."""
        return _structured(_parsed(text))


def form_of(dtype: str, shape: tuple[int, ...]) -> str:
    """A dtype and a shape as text, such as `float32 (4, 2)`."""
    return f"{dtype} ({', '.join(map(str, shape))})"


# -- JSON -------------------------------------------------------------------------------------------------------------


def _parsed(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise _no_receipt(f"it is not JSON: {error}") from error
    if not isinstance(data, dict) or "receipt" not in data:
        raise _no_receipt("it has no key `receipt`")
    version = data.pop("receipt")
    if version != VERSION:
        raise _no_receipt(f"it is of version {version!r}, and this tsgraph reads version {VERSION}")
    return data


def _structured(data: dict[str, Any]) -> CaptureReceipt:
    try:
        return _converter().structure(data, CaptureReceipt)
    except BaseValidationError as error:
        raise _no_receipt("; ".join(transform_error(error, path="receipt"))) from error


def _no_receipt(why: str) -> CallerError:
    return CallerError(f"this is no receipt: {why}", hint="write one with `receipt.to_json()`")


@functools.cache
def _converter() -> Converter:
    """Made when it is first asked for: receipts are taken more often than written."""
    converter, omit = Converter(forbid_extra_keys=True), override(omit=True)
    for primitive, admits in {str: str, int: int, bool: bool, float: (int, float)}.items():
        converter.register_structure_hook(primitive, functools.partial(_exactly, admits))
    unstructure = make_dict_unstructure_fn(CaptureReceipt, converter, kept=omit)
    structure = make_dict_structure_fn(CaptureReceipt, converter, _cattrs_forbid_extra_keys=True, kept=omit)
    converter.register_unstructure_hook(CaptureReceipt, unstructure)
    converter.register_structure_hook_func(lambda kind: kind is CaptureReceipt, structure)
    return converter


def _exactly(admits: Any, value: Any, kind: Any) -> Any:
    """No number is read as text, and no text as truth."""
    if not isinstance(value, admits) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value
