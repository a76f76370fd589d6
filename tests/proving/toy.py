"""A small spec whose kill table is complete, as the text of its file: what tests of mutants break."""

from __future__ import annotations

TOY = """
name = "toy"
version = 1

[lifecycle]
initial = "fresh"
final = ["gone"]
states = ["fresh", "ready", "old", "broken", "gone"]
replays_in = ["ready"]
on_failure = "fail"
on_change = "expire"
on_release = "drop"
on_reset = "reset"

[[transitions]]
on = "make"
from = ["fresh"]
to = "ready"
steps = ["measure", "oil", "build", "tidy"]
free = [["measure", "oil"]]

[[transitions]]
on = "expire"
from = ["ready"]
to = "old"

[[transitions]]
on = "fail"
from = ["fresh"]
to = "broken"
finally = ["tidy", "empty"]
free = [["tidy", "empty"]]

[[transitions]]
on = "drop"
from = ["ready", "old", "broken"]
to = "gone"

[[transitions]]
on = "reset"
from = ["old", "broken"]
to = "fresh"

[counters]
held = { counts = "what the slot holds", floor = 0 }

[modes]
busy = { scope = "runtime" }

[steps]
measure = { event = "measured" }
oil = { event = "oiled" }
build = { event = "built", count = { held = 1 }, mode = { busy = true } }
tidy = { event = "tidied", mode = { busy = false } }
empty = { event = "emptied", set = { held = 0 } }

[session]

[serving]

[[rules]]
id = "A"
guards = ["build"]
kind = "after"
event = "measured"
than = "built"
because = "what is built has measures of its own"
fix = "measure first"

[[rules]]
id = "B"
guards = ["build"]
kind = "at_least"
event = "oiled"
n = 1
because = "it would jam"
fix = "oil it"

[[rules]]
id = "C"
guards = ["make"]
kind = "counter"
counter = "held"
equals = 1
because = "the slot holds what it was made for, once"
fix = "build once"

[[rules]]
id = "D"
guards = ["make"]
kind = "mode"
mode = "busy"
is = false
because = "others wait for the bench"
fix = "tidy up"

[[properties]]
id = "measures"
says = "what is built has measures of its own"
when = "built"
before = [{ after = ["measured", "built"] }, { at_least = ["oiled", 1] }]

[[properties]]
id = "bench"
says = "building keeps the bench busy"
when = "built"
holds = [{ mode = ["busy", true], scope = "runtime" }]

[[properties]]
id = "over"
says = "the bench is left as it was found"
when = ["ready", "broken"]
holds = [{ mode = ["busy", false], scope = "runtime" }]

[[properties]]
id = "one"
says = "a slot that is ready holds one"
when = "ready"
holds = [{ counter = ["held", 1] }]

[[properties]]
id = "none"
says = "a slot that is broken holds none"
when = "broken"
holds = [{ counter = ["held", 0] }]

[warmup]
forwards = 1

[sizes]
default = [1]
default_without_padding = [1]
cap = 1

[buffers]

[outputs]

[policy]
"""
