"""What `tsgraph.testing.emulate` puts in the place of `torch.cuda` while it is on.

`places` says which words name the device. `functions` is the upper layer of a thread (what the user calls), `handlers`
lists the calls that CPU tensors would answer otherwise, and `facts` and `moves` answer them; `operators` is the lower
layer. `machine` holds the device's state, and `threads` puts the layers on each thread. `graphs`, `streams`, `api`,
`generators`, `memory` and `properties` are the stand-ins; `eager_memory` and `waits` know what a capture forbids to
work beside it. `surface` says which name of `torch.cuda` is which, and `patches` puts them there and back.
"""
