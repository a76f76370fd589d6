"""CUDA-graph semantics on plain CPU tensors, so that a step can be captured, replayed and found wanting anywhere.

A *device* tensor is a CPU tensor whose storage is registered: allocated or adopted by the backend, or made inside a
recording, or on the side stream, with `device=` or by an operation on device tensors. Everything else is host memory,
pinned if `pin` made it.

Recording has two layers. `functions` sees what the user calls: it refuses what would read the device on the host, and
knows whether `device=` was given. `operations` sees the operators below: `admission` judges their operands by the rules
of a CUDA capture, `metadata` says what they return without running a kernel, and a launch is kept for each. Outputs are
poisoned, views are real, host operations run at once. `graph` makes the launches again on the same storages.

What it accepts and refuses was compared with a GPU, call by call. Where it differs:

- It refuses more: host masks as indices, `x[True]`, DLPack of device tensors, several host values to a custom operator,
  `torch.tensor([])` on the device, and any operator without a fake kernel.
- It accepts more: `histc` without a range, `Tensor.type("torch.FloatTensor")`, first calls of libraries that initialise
  themselves (on a GPU, warm up before recording).
- "cpu" as a literal in `to("cpu")` means the host; everywhere else a named device is the device.
- Tensors that eager code makes of device tensors, but for warm-ups on the side stream (`tracking`), are host tensors
  until they are adopted.
- Pools share and reuse blocks as a GPU's do (`memory`, `allocator`), but kernels take no workspaces from them. What a
  graph works on and the user has dropped is an error at its replay, or poison; a GPU would read what lies there.
- Nothing is asynchronous: errors surface at the replay that causes them. `streams` order what is recorded as CUDA does,
  and a wait that is missing between them is an error (`hazards`); between streams outside recordings it goes unnoticed.
- A recording's own thread alone puts work on its streams: CUDA would record that of other threads, too. Two recordings
  of one thread end in the reverse order. Host functions (`hostfunc`) run in the thread that replays.
- Modules that look for torch function modes (the fast path of `nn.TransformerEncoderLayer`) take their other path.
- Code that reads memory by its address, such as a Triton kernel's launcher, is not seen.
"""

from __future__ import annotations

from tsgraph.backends.emulated.backend import EmulatedBackend

__all__ = ["EmulatedBackend"]
