"""The emulated machine: its one GPU, of which the stand-ins for `torch.cuda` ask everything."""

from __future__ import annotations

from typing import Any

import attrs

from tsgraph.errors import NotEmulated
from tsgraph.testing.cuda.functions import Switch
from tsgraph.testing.cuda.generators import Generator
from tsgraph.testing.cuda.memory import Meter, MeteredResidence
from tsgraph.testing.cuda.places import DEVICE
from tsgraph.testing.cuda.pools import Pools
from tsgraph.testing.cuda.threads import Layers


def _seeded() -> Generator:
    generator = Generator(DEVICE)
    generator.seed()
    return generator


@attrs.define(eq=False)
class Machine:
    """What lives on the device, its random numbers and its pools.

    `checked`: faults of the kind that a GPU answers with wrong numbers are errors.
    """

    checked: bool = True
    residence: MeteredResidence = attrs.field(factory=MeteredResidence)
    generator: Generator = attrs.field(factory=_seeded)
    switch: Switch = attrs.field(factory=Switch)
    pools: Pools = attrs.field(init=False)
    meter: Meter = attrs.field(init=False)
    layers: Layers = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.pools = Pools(checked=self.checked)
        self.meter = Meter(self.residence, self.pools)
        self.layers = Layers(self.residence, self.generator, self.switch)

    def abort(self) -> None:
        """End the captures that this thread has left open, if any."""
        while self.layers.functions.graph is not None:
            self.layers.functions.graph.abort()


_MACHINES: list[Machine] = []


def switch_on(machine: Machine) -> None:
    """`machine` is the one that stand-ins ask."""
    _MACHINES.append(machine)


def switch_off(machine: Machine) -> None:
    """`machine` is gone; threads that still have its layers are not seen any more."""
    machine.switch.on = False
    _MACHINES.remove(machine)


def is_on() -> bool:
    """Whether there is one."""
    return bool(_MACHINES)


def machine_now() -> Machine:
    """The machine that is on. Raises: NotEmulated outside of `emulate()`."""
    if not _MACHINES:
        raise NotEmulated("nothing is emulated now", hint="use what was made inside emulate() there", api="emulate")
    return _MACHINES[-1]


def layers_here() -> Any:
    """The layers of this thread, put on it if it has none yet: a thread may be older than the emulation."""
    layers = machine_now().layers
    layers.put()
    return layers
