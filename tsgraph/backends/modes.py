"""Dispatch modes that see every operator beside compiled code, at the least cost of each."""

from __future__ import annotations

import types

from torch.utils._python_dispatch import TorchDispatchMode


class OperatorMode(TorchDispatchMode):
    """A dispatch mode that leaves compiled code on, sees higher-order operators, and is never compiled itself.

    torch keeps Dynamo out of a mode by a wrapper around `__torch_dispatch__`, whose calls cost a third of a dispatch.
    The same is said here of its code, once and for all.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: else a step under torch.compile runs eagerly below the mode, and stays eager afterwards."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch has to wrap it, which it asks when the class is made."""
        own = vars(cls).get("__torch_dispatch__")
        return not (isinstance(own, types.FunctionType) and keep_from_dynamo(own.__code__))


def keep_from_dynamo(code: types.CodeType) -> bool:
    """Have `code`, and all that it calls, run as it is where Dynamo looks at frames.

    False where torch has no such word; 2.11 to 2.13 have.
    """
    try:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP  # noqa: SLF001 - the public way is the wrapper
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))  # noqa: SLF001 - likewise
    except (AttributeError, ImportError):
        return False
    return True
