"""CUDA-graph semantics on plain CPU tensors, so that a step can be captured, replayed and found wanting anywhere.

A *device* tensor is a CPU tensor whose storage is registered: allocated or adopted by the backend, or made inside a
recording with `device=` or by an operation on device tensors. Everything else is host memory, pinned if `pin` made it.

Recording has two layers. `functions` sees what the user calls: it refuses what would read the device on the host, and
knows whether `device=` was given. `operations` sees the operators below: `admission` judges their operands by the rules
of a CUDA capture, `metadata` says what they return without running a kernel, and a launch is kept for each. Outputs are
poisoned, views are real, host operations run at once. `graph` makes the launches again on the same storages.

What it accepts and refuses was compared with a GPU, call by call. Where it differs:

- It refuses more: host masks as indices, `x[True]`, `deepcopy` and DLPack of device tensors, several host values to a
  custom operator, `torch.tensor([])` on the device, and any operator without a fake kernel.
- It accepts more: `histc` without a range, `Tensor.type("torch.FloatTensor")`, first calls of libraries that initialise
  themselves (on a GPU, warm up before recording).
- "cpu" as a literal in `to("cpu")` means the host; everywhere else a named device is the device.
- Tensors that eager code makes of device tensors, in warm-ups too, are host tensors until they are adopted.
- A graph holds what it touches, so dropped inputs stay readable (a CUDA graph would read freed memory), and no block
  of a pool is used twice, so graphs never overwrite each other's intermediates.
- Nothing is asynchronous: errors surface at the replay that causes them, and no wait can be missing.
- Modules that look for torch function modes (the fast path of `nn.TransformerEncoderLayer`) take their other path.
- Code that reads memory by its address, such as a Triton kernel's launcher, is not seen.
"""

from __future__ import annotations

from tsgraph.backends.emulated.backend import EmulatedBackend

__all__ = ["EmulatedBackend"]
