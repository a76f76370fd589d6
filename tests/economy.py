"""What is slow and comes out alike each time is done once in a process: tests ask for it thousands of times."""

from __future__ import annotations

import functools
import gc
import os
import pickle
from collections.abc import Callable

from tsgraph import spec
from tsgraph.spec import Spec, load


def freeze() -> None:
    """Collect, then freeze what is alive, and have that counted once until somebody freezes or thaws again.

    Captures collect garbage before and after: they would walk all of torch each time, and take ten times as long. They
    ask, too, whether anything is frozen, and the interpreter then counts half a million objects, for 40 ms.
    """
    gc.collect()
    _count_once()
    gc.freeze()


@functools.cache
def _count_once() -> None:
    count = functools.cache(gc.get_freeze_count)

    def then_count_again(change: Callable[[], None]) -> Callable[[], None]:
        def changed() -> None:
            change()
            count.cache_clear()

        return changed

    vars(gc).update(get_freeze_count=count, freeze=then_count_again(gc.freeze), unfreeze=then_count_again(gc.unfreeze))


@functools.cache
def read_shipped_specs_once() -> None:
    """Have `load_spec` read a shipped spec at the first call; each gets a copy of its own, as if it were read again.

    To be called before anything else imports `load_spec`.
    """
    read, shipped = load.load_spec, frozenset(spec.shipped())
    kept = functools.cache(lambda name: pickle.dumps(read(name)))

    @functools.wraps(read)
    def load_spec(name_or_path: str | os.PathLike[str]) -> Spec:
        if isinstance(name_or_path, str) and name_or_path in shipped:
            return pickle.loads(kept(name_or_path))  # type: ignore[no-any-return]  # noqa: S301  it was just made
        return read(name_or_path)

    load.load_spec = spec.load_spec = load_spec
