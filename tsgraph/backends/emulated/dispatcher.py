"""The parts of torch's dispatcher that have no public name, gathered here so that nothing else reaches below torch.

Valid for torch 2.11 to 2.13. An operator is what a dispatch mode is handed: one overload, such as `aten.add.Tensor`.
"""

# ruff: noqa: SLF001 - the one place that may use torch's private names

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeGuard

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tsgraph.backends.emulated import operators

Operator = torch._ops.OpOverload
_AUTOCASTS = (torch._C.DispatchKey.AutocastCPU, torch._C.DispatchKey.AutocastCUDA)
_GIVEN_BY_OUT = {"dtype", "layout", "device", "pin_memory"}


def is_operator(func: object) -> TypeGuard[Operator]:
    """Whether a dispatch mode was handed an operator, and not a higher-order one such as `cond`."""
    return isinstance(func, Operator)


def is_plain(kind: type) -> bool:
    """Whether tensors of this class are what they seem: no subclass that runs operators in its own way."""
    return getattr(kind, "__torch_dispatch__", None) is torch.Tensor.__torch_dispatch__


def handle(operator: Operator) -> Callable[..., Any]:
    """The operator without its Python wrapper: the cheapest call."""
    call: Callable[..., Any] = operator._op
    return call


def schema(operator: Operator) -> torch.FunctionSchema:
    """Arguments and returns with their alias annotations."""
    return operator._schema


def named(operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each argument that was given, with its name in the schema."""
    yield from zip(_argument_names(operator), args, strict=False)
    yield from kwargs.items()


@functools.cache
def _argument_names(operator: Operator) -> tuple[str, ...]:
    return tuple(argument.name for argument in schema(operator).arguments)


@functools.cache
def written_names(operator: Operator) -> frozenset[str]:
    """The arguments that the operator writes into."""
    return frozenset(a.name for a in schema(operator).arguments if a.alias_info is not None and a.alias_info.is_write)


@functools.cache
def is_composite(operator: Operator) -> bool:
    """Whether the CPU runs it as a composition of other operators (it arrives whole under inference mode)."""
    return _has_kernel(operator, "CompositeImplicitAutograd") and not _has_kernel(operator, "CPU")


@functools.cache
def casts_itself(operator: Operator) -> bool:
    """Whether autocast has a rule for it: then its arguments are cast already, and autocast is off inside it."""
    return len(_autocast_layers(operator)) > 0


@functools.cache
def _autocast_layers(operator: Operator) -> tuple[torch._C.DispatchKey, ...]:
    return tuple(key for key in _AUTOCASTS if _has_kernel(operator, key.name))


@functools.cache
def tracks_views_itself(operator: Operator) -> bool:
    """Whether the layer that keeps track of views knows it whole: then its operators must not be tracked again."""
    return _has_kernel(operator, "ADInplaceOrView")


def _has_kernel(operator: Operator, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key))


@functools.cache
def makes_tensor(operator: Operator) -> bool:
    """Whether it is a factory: of its tensor arguments, if any, it uses the shape, dtype and layout alone."""
    names = {argument.name for argument in schema(operator).arguments}
    reads = operator.overloadpacket in operators.COPY_OUT or operator in operators.BOUNDED_BY_TENSORS
    return names >= {"dtype", "layout", "device"} and not reads


@functools.cache
def reads_values(operator: Operator, name: str) -> bool:
    """Whether the operator reads what is in the tensors of this argument: not of one that it only fills or is like."""
    overwritten = operator.overloadpacket in operators.OVERWRITE and name == schema(operator).arguments[0].name
    return not (overwritten or makes_tensor(operator) or name in out_names(operator))


@functools.cache
def is_view(operator: Operator) -> bool:
    """Whether it touches no data: it returns other views of the same memory, or changes the view in place."""
    changes_itself = torch.Tag.inplace_view in operator.tags
    return operator.is_view or changes_itself or operator.overloadpacket in operators.UNMARKED_VIEWS


@functools.cache
def is_pointwise(operator: Operator) -> bool:
    """Whether it computes each element of what it returns from one of each operand."""
    return torch.Tag.pointwise in operator.tags


@functools.cache
def returns_facts(operator: Operator) -> bool:
    """Whether it returns what the host knows without asking the device: nothing but shapes, flags and handles."""
    returns = schema(operator).returns
    known = operator.namespace in ("aten", "prim") and torch.Tag.data_dependent_output not in operator.tags
    return known and len(returns) > 0 and not any("Tensor" in str(each.type) for each in returns)


@functools.cache
def written_returns(operator: Operator) -> tuple[str | None, ...]:
    """For each return, the argument that it is, written into; None for a tensor of its own."""
    aliases = {name: a.name for a in schema(operator).arguments if a.alias_info for name in a.alias_info.before_set}
    sets = (each.alias_info.before_set if each.alias_info else () for each in schema(operator).returns)
    return tuple(next((aliases[name] for name in names), None) for names in sets)


@functools.cache
def out_variant(operator: Operator) -> Operator | None:
    """The overload that computes the same into given tensors, or None."""
    returns = schema(operator).returns
    if schema(operator).is_mutable or not returns or any(str(each.type) != "Tensor" for each in returns):
        return None
    packet = operator.overloadpacket
    if packet in operators.FILL_NOTHING:
        return None
    overloads = (getattr(packet, name) for name in packet.overloads())
    return next((each for each in overloads if _is_out_variant(each, operator)), None)


@functools.cache
def functional_variant(operator: Operator) -> Operator | None:
    """The overload that computes the same into tensors of its own, of one that fills given tensors; or None."""
    overloads = (getattr(operator.overloadpacket, name) for name in operator.overloadpacket.overloads())
    return next((each for each in overloads if each is not operator and _is_out_variant(operator, each)), None)


def _is_out_variant(candidate: Operator, operator: Operator) -> bool:
    outs = out_names(candidate)
    given = _GIVEN_BY_OUT if makes_tensor(operator) else set()
    rest = [(a.name, str(a.type)) for a in schema(candidate).arguments if a.name not in outs]
    wanted = [(a.name, str(a.type)) for a in schema(operator).arguments]
    return len(outs) == len(schema(operator).returns) and rest in (wanted, [a for a in wanted if a[0] not in given])


@functools.cache
def out_names(operator: Operator) -> tuple[str, ...]:
    """The names of the arguments that take the outputs, in order."""
    return tuple(argument.name for argument in schema(operator).arguments if argument.is_out)


def taken(operator: Operator, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `kwargs` that the operator takes."""
    names = {argument.name for argument in schema(operator).arguments}
    return {name: value for name, value in kwargs.items() if name in names}


Keys = tuple[torch._C.DispatchKeySet, torch._C.DispatchKeySet]


def dispatch_keys() -> Keys:
    """Which of torch's layers (autocast, views, …) this thread includes and excludes now."""
    return torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()


def without_autocast(keys: Keys, operator: Operator) -> Keys:
    """The same without the autocast that has a rule for the operator."""
    return keys[0], functools.reduce(torch._C.DispatchKeySet.add, _autocast_layers(operator), keys[1])


def with_keys(keys: Keys) -> AbstractContextManager[None]:
    """Run the block with these layers, whichever a dispatch mode has excluded."""
    return torch._C._ForceDispatchKeyGuard(*keys)


def decompose(operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run the composition of a composite operator: the one that the CPU runs, not a rewriting for compilers."""
    return operator._op_dk(torch.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def unseen_by_functions() -> AbstractContextManager[None]:
    """Run the block without any torch function mode."""
    return torch._C.DisableTorchFunction()


def seen_by_functions() -> AbstractContextManager[None]:
    """Let torch function modes see the block, also inside one without any."""
    return torch._C._EnableTorchFunction()


def unseen_by_operators() -> AbstractContextManager[object]:
    """Run the block without any torch dispatch mode."""
    return nullcontext() if torch._C._len_torch_dispatch_stack() == 0 else _disable_current_modes()


def inference_mode(enabled: bool) -> AbstractContextManager[None]:
    """`torch.inference_mode`, cheaper."""
    return torch._C._InferenceMode(enabled)


def storage_key(storage: torch.UntypedStorage) -> int:
    """The identity of a storage: no other has it while a weak reference to this one is kept."""
    return int(storage._cdata)


# How many own the storage of a key. The object that stands for it in Python is one of them.
owners_of: Callable[[int], int] = torch._C._storage_Use_Count


def parse_to(*args: Any, **kwargs: Any) -> tuple[torch.dtype | None, bool]:
    """The dtype and `non_blocking` of a call of `Tensor.to`, whichever of its forms was used."""
    kwargs.pop("copy", None)  # torch's own parser does not know it; nor does it matter between two places
    args = args[: 2 if args and isinstance(args[0], torch.Tensor) else 3]
    _, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
    return dtype, non_blocking
