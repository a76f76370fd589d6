"""Where tensors are under emulation, by every way to make, move, read and ask for them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tsgraph.errors import CaptureUnsupported, NotEmulated

pytestmark = pytest.mark.usefixtures("emulated")

CUDA = torch.device("cuda", 0)


def _device():
    return torch.arange(4.0, device="cuda")


def _host():
    return torch.arange(4.0)


def _packed(sequence):
    return nn.utils.rnn.pack_padded_sequence(sequence.view(-1, 1, 1), torch.tensor([3]))


ON_DEVICE = {
    "ones": lambda: torch.ones(2, device="cuda"),
    "index": lambda: torch.ones(2, device=0),
    "object": lambda: torch.ones(2, device=torch.device("cuda")),
    "numbered object": lambda: torch.ones(2, device=torch.device(0)),
    "numbered word": lambda: torch.ones(2, device="cuda:0"),
    "tensor": lambda: torch.tensor([1.0], device="cuda"),
    "empty tensor": lambda: torch.tensor([], device="cuda"),
    "as_tensor": lambda: torch.as_tensor([1.0], device="cuda"),
    "as_tensor of a host tensor": lambda: torch.as_tensor(_host(), device="cuda"),
    "as_tensor of a device tensor": lambda: torch.as_tensor(_device()),
    "asarray": lambda: torch.asarray(np.ones(2), device="cuda"),
    "new_tensor": lambda: _device().new_tensor([1.0]),
    "new_zeros": lambda: _device().new_zeros(2),
    "new_zeros there": lambda: _host().new_zeros(2, device="cuda"),
    "like": lambda: torch.zeros_like(_device()),
    "like there": lambda: torch.zeros_like(_host(), device="cuda"),
    "random": lambda: torch.randn(2, device="cuda"),
    "randperm": lambda: torch.randperm(4, device="cuda"),
    "operation": lambda: _device() * 2 + 1,
    "with a host scalar": lambda: _device() + torch.tensor(1.0),
    "view": lambda: _device()[1:],
    "host index": lambda: _device()[torch.tensor([0, 2])],
    "host mask": lambda: _device()[torch.tensor([True, False, True, False])],
    "detached": lambda: _device().detach(),
    "cuda()": lambda: _host().cuda(),
    "cuda(0)": lambda: _host().cuda(0, non_blocking=True),
    "to word": lambda: _host().to("cuda"),
    "to index": lambda: _host().to(0),
    "to tensor": lambda: _host().to(_device()),
    "to device and dtype": lambda: _host().to("cuda", torch.float16),
    "to keyword": lambda: _host().to(device="cuda", dtype=torch.float16, non_blocking=True, copy=True),
    "to dtype": lambda: _device().to(torch.float16),
    "type": lambda: _host().type("torch.cuda.HalfTensor"),
    "half": lambda: _device().half(),
    "deepcopy": lambda: copy.deepcopy(_device()),
    "Linear": lambda: nn.Linear(2, 2, device="cuda").weight,
    "Module.cuda": lambda: nn.Linear(2, 2).cuda().bias,
    "Module.to": lambda: nn.Linear(2, 2).to("cuda").weight,
    "Module.to index": lambda: nn.Linear(2, 2).to(0).weight,
    "Module.to_empty": lambda: nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight,
    "deepcopy of a module": lambda: copy.deepcopy(nn.Linear(2, 2).cuda()).weight,
    "Parameter": lambda: nn.Parameter(_device()),
    "dropout": lambda: nn.functional.dropout(_device()),
    "out=": lambda: torch.add(_device(), 1, out=_device()),
    "in place": lambda: _device().add_(1),
    "type_as": lambda: _host().type_as(_device()),
    "type, by dtype": lambda: _device().type(torch.float16),
    "to what it is": lambda: _device().to(dtype=torch.float32),
    "packed": lambda: nn.GRU(1, 2).cuda()(_packed(_device()))[1],
    "to itself": lambda: _device().to("cuda"),
    "of torch's own numbers": lambda: torch.unravel_index(_device().long(), (2, 2))[0],
}
ON_HOST = {
    "ones": lambda: torch.ones(2),
    "there, by name": lambda: torch.ones(2, device="cpu"),
    "like": lambda: torch.zeros_like(_device(), device="cpu"),
    "new": lambda: _device().new_zeros(2, device="cpu"),
    "cpu()": lambda: _device().cpu(),
    "to": lambda: _device().to("cpu"),
    "to object": lambda: _device().to(torch.device("cpu"), torch.float16),
    "to tensor": lambda: _device().to(_host()),
    "type": lambda: _device().type("torch.HalfTensor"),
    "as_tensor": lambda: torch.as_tensor(_device(), device="cpu"),
    "operation": lambda: _host() + 1,
    "copy_": lambda: _host().copy_(_device()),
    "type_as": lambda: _device().type_as(_host()),
    "sizes of packed sequences": lambda: _packed(_device()).batch_sizes,
    "Module.cpu": lambda: nn.Linear(2, 2).cuda().cpu().weight,
    "from_numpy": lambda: torch.from_numpy(_device().cpu().numpy()),
    "meta aside": lambda: torch.tensor([torch.ones(2, device="meta").numel()]),
}


@pytest.mark.parametrize("make", ON_DEVICE.values(), ids=ON_DEVICE)
def test_made_on_the_device(make):
    """It says in every way that it is on cuda:0."""
    made = make()

    assert (CUDA, True, False, 0) == (made.device, made.is_cuda, made.is_cpu, made.get_device())
    assert made.type().startswith("torch.cuda.")
    assert ("cuda", 0, "cuda:0") == (made.device.type, made.device.index, str(made.device))


@pytest.mark.parametrize("make", ON_HOST.values(), ids=ON_HOST)
def test_made_on_the_host(make):
    """It says in every way that it is on the host."""
    made = make()

    assert (torch.device("cpu"), False, True, -1) == (made.device, made.is_cuda, made.is_cpu, made.get_device())


@pytest.mark.parametrize("make", [lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: x.cuda(), lambda x: x.to("cuda")])
@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_moves_copy_only_across(make, place):
    """A move to another place is a copy with the same values; one to the same place is the tensor itself."""
    tensor = torch.arange(3.0, device=place)
    moved = make(tensor)

    assert (tensor.device == moved.device) == (tensor is moved)
    assert [0.0, 1.0, 2.0] == moved.tolist()
    moved.add_(1)
    assert (tensor.tolist() == [0.0, 1.0, 2.0]) == (tensor is not moved)


def test_as_tensor_copies_numpys_memory():
    """Onto the device everything is a copy: NumPy's array and the tensor do not share memory."""
    array = np.zeros(2)
    made = torch.as_tensor(array, device="cuda")
    array[:] = 1

    assert [0.0, 0.0] == made.tolist()


MIXED = {
    "add": lambda: _device() + _host(),
    "cat": lambda: torch.cat([_device(), _host()]),
    "linear": lambda: nn.functional.linear(_host(), torch.ones(2, 4, device="cuda")),
    "module": lambda: nn.Linear(4, 2).cuda()(_host()),
    "embedding": lambda: nn.functional.embedding(torch.tensor([0]), torch.ones(2, 4, device="cuda")),
    "out=": lambda: torch.add(_device(), 1, out=_host()),
    "in place": lambda: _host().add_(_device()),
    "where": lambda: torch.where(_device() > 1, _device(), _host()),
    "gather": lambda: _device().gather(0, torch.tensor([0])),
    "index of a host tensor": lambda: _host()[torch.tensor([0], device="cuda")],
    "scatter of host values": lambda: _device().index_put_((torch.tensor([0, 1], device="cuda"),), torch.ones(2)),
}


@pytest.mark.parametrize("mix", MIXED.values(), ids=MIXED)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_devices_do_not_mix(mix, mode):
    """An operation on tensors of both places is the error that CUDA gives, in every mode of autograd."""
    with mode(), pytest.raises(RuntimeError, match=r"same device"):
        mix()


@pytest.mark.parametrize("split", [torch.tensor_split, torch.Tensor.tensor_split])
def test_tensor_split_wants_its_places_on_the_host(split):
    """As torch has it on a GPU, eagerly too; from there it takes them."""
    places = torch.tensor([1, 3])
    assert [1, 2, 1] == [len(each) for each in split(_device(), places)]
    with pytest.raises(RuntimeError, match="to be on cpu, but it's on cuda:0"):
        split(_device(), places.cuda())
    with pytest.raises(RuntimeError, match="to be on cpu"):
        split(_device(), tensor_indices_or_sections=places.cuda())


def test_reading_on_the_host():
    """Outside a capture the host may read the device; NumPy wants a copy first, as ever."""
    tensor = _device()

    assert (6.0, [0.0, 1.0, 2.0, 3.0], True) == (tensor.sum().item(), tensor.tolist(), bool(tensor[1]))
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        tensor.numpy()
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        np.asarray(tensor)


SHOWN = {
    "tensor([1., 2.], device='cuda:0')": lambda: torch.tensor([1.0, 2.0], device="cuda"),
    "tensor(3, device='cuda:0')": lambda: torch.tensor(3, device="cuda"),
    "tensor([], device='cuda:0', size=(0, 3))": lambda: torch.empty(0, 3, device="cuda"),
    "tensor([1], device='cuda:0', dtype=torch.int32)": lambda: torch.ones(1, dtype=torch.int32, device="cuda"),
    "tensor([1.], device='cuda:0', requires_grad=True)": lambda: torch.ones(1, device="cuda", requires_grad=True),
    "tensor([1.])": lambda: torch.ones(1),
}


@pytest.mark.parametrize(("shown", "make"), SHOWN.items())
def test_it_prints_where_it_is(shown, make):
    """`repr` names the device where torch puts it: after the data."""
    assert shown == repr(make())


def test_pinned_memory():
    """Pinned memory is the host's, says so, and takes what is copied from the device without blocking."""
    tensors = (
        torch.ones(2, pin_memory=True), torch.ones(2).pin_memory(), torch.tensor([1.0, 1.0], pin_memory=True),
        _device().to("cpu", non_blocking=True),
    )  # fmt: skip

    assert [(True, False)] * 4 == [(each.is_pinned(), each.is_cuda) for each in tensors]
    assert (False, False) == (torch.ones(2).is_pinned(), _device().is_pinned())
    assert tensors[0].pin_memory() is tensors[0]


def test_device_memory_cannot_be_pinned():
    """Only host memory can."""
    with pytest.raises(RuntimeError, match="pinned"):
        _device().pin_memory()
    with pytest.raises(RuntimeError, match="pinned"):
        torch.ones(2, device="cuda", pin_memory=True)


@pytest.mark.parametrize(
    "name", [lambda: torch.ones(1, device="cuda:1"), lambda: torch.ones(1).cuda(2), lambda: torch.cuda.set_device(1)]
)
def test_there_is_one_device(name):
    """Another is an invalid ordinal."""
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        name()


def test_default_device():
    """Factories without a place make device tensors from then on, in this thread, until it is taken back."""
    torch.set_default_device("cuda")
    try:
        inside = torch.ones(1).device, torch.tensor([1]).device, torch.get_default_device(), repr(torch.ones(1))
    finally:
        torch.set_default_device(None)

    assert (CUDA, CUDA, CUDA, "tensor([1.])") == inside
    assert (torch.device("cpu"),) * 2 == (torch.ones(1).device, torch.get_default_device())


def test_default_device_of_a_block():
    """`with torch.device("cuda")` does the same for a block."""
    with torch.device("cuda"):
        made = torch.zeros(2)

    assert (CUDA, torch.device("cpu")) == (made.device, torch.zeros(2).device)


def test_autograd_stays_on_the_device():
    """Gradients of device tensors are on the device, and optimisers work there."""
    layer = nn.Linear(2, 1, device="cuda")
    layer(torch.ones(3, 2, device="cuda")).sum().backward()
    for optimiser in (torch.optim.SGD(layer.parameters(), lr=0.1), torch.optim.Adam(layer.parameters())):
        optimiser.step()

    assert (CUDA, [[3.0, 3.0]]) == (layer.weight.grad.device, layer.weight.grad.tolist())


@pytest.mark.parametrize("enter", [lambda: torch.autocast("cuda"), lambda: torch.amp.autocast("cuda", torch.float16)])
def test_autocast(enter):
    """Autocast for CUDA casts to half by default, and says that it is on."""
    before = torch.is_autocast_enabled(), torch.is_autocast_enabled("cuda")
    with enter():
        product = torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
        during = torch.is_autocast_enabled(), torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")

    assert ((False, False), (True, torch.float16, True)) == (before, during)
    assert (torch.float16, CUDA) == (product.dtype, product.device)


def test_loading_onto_the_device(tmp_path):
    """`torch.load(map_location="cuda")` gives device tensors; without it, and after it, host tensors are such."""
    path = tmp_path / "weights.pt"
    torch.save({"weight": _device()}, path)

    assert CUDA == torch.load(path, map_location="cuda")["weight"].device
    assert CUDA == torch.load(path, map_location=torch.device("cuda", 0))["weight"].device
    assert torch.device("cpu") == torch.load(path, map_location="cpu")["weight"].device


def test_fake_and_meta_tensors_are_left_alone():
    """They live nowhere: torch knows CUDA there without having it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = torch.empty(2, device="cuda") + torch.tensor([1.0], device="cuda")
    assert mode.avoid_device_init  # also on a CUDA build, which finds no device
    meta = torch.ones(2, device="meta") + 1

    assert ("cuda", "meta") == (fake.device.type, meta.device.type)


def test_places_that_are_no_places():
    """What is left to torch: meta tensors as targets, and what names no device at all."""
    meta = _device().to(torch.ones(1, device="meta"))

    assert ("meta", "meta") == (meta.device.type, _device().to("meta").device.type)
    with pytest.raises(TypeError):
        torch.ones(2, device=1.5)


def test_sparse_tensors_are_refused():
    """They have no storage whose place could be noted."""
    with pytest.raises(NotEmulated, match="sparse"):
        _device().to_sparse()


def test_addresses_are_not_handed_out():
    """Other libraries would take the memory for a GPU's."""
    with pytest.raises(NotEmulated, match="array interface"):
        _device().__cuda_array_interface__  # noqa: B018
    with pytest.raises(NotEmulated, match="DLPack"):
        torch.utils.dlpack.from_dlpack(_device())


IN_CAPTURE = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to host": lambda x: x.to("cpu"),
    "pageable": lambda x: x.copy_(torch.ones(4)),
    "pageable to": lambda x: torch.ones(4).to("cuda"),
    "pageable cuda": lambda x: torch.ones(4).cuda(non_blocking=True),
    "data": lambda x: torch.tensor([1.0], device="cuda"),
    "numbers of torch's own": lambda x: torch.unravel_index(x.long(), (2, 2)),
    "mask": lambda x: x[x > 1],
    "bool": lambda x: 1 if x[0] > 0 else 2,
    "repr": repr,
    "synchronize": lambda x: torch.cuda.synchronize(),
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
    "manual_seed": lambda x: torch.cuda.manual_seed(1),
    "another capture": lambda x: torch.cuda.CUDAGraph().capture_begin(),
}


@pytest.mark.parametrize("call", IN_CAPTURE.values(), ids=IN_CAPTURE)
def test_what_a_capture_refuses(call):
    """What a capturing stream refuses is refused, naming this line."""
    source = _device()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        with pytest.raises(CaptureUnsupported, match=r"test_emulate_tensors\.py:\d+"):
            call(source)


@pytest.mark.parametrize("name", [
    "tolist", "cpu", "to host", "pageable", "pageable to", "pageable cuda", "data", "numbers of torch's own",
])  # fmt: skip
def test_a_pageable_copy_leaves_the_capture_valid(name):
    """Torch refuses it before CUDA sees it: caught or not, what was recorded until then and after it replays."""
    source, caught, escaped = _device(), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(caught):
        doubled = source * 2
        with pytest.raises(CaptureUnsupported, match=r"pageable|not pinned"):
            IN_CAPTURE[name](source)
        more = doubled + 1
    results = []

    def step():
        with torch.cuda.graph(escaped):
            results.append(source * 3)
            IN_CAPTURE[name](source)

    with pytest.raises(CaptureUnsupported, match=r"pageable|not pinned"):
        step()
    caught.replay()
    escaped.replay()

    assert (source * 2 + 1).tolist() == more.tolist()
    assert [(source * 3).tolist()] == [each.tolist() for each in results]


def test_what_a_capture_takes():
    """Factories, host work, host scalars and pinned copies within a capture."""
    source, staged, back = _device(), torch.full((4,), 2.0).pin_memory(), torch.zeros(4, pin_memory=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        host = torch.ones(2, device="cpu") + torch.zeros_like(source, device="cpu")[:2]
        made = torch.full((4,), 3.0, device="cuda") + staged.cuda(non_blocking=True) + source.new_ones(4)
        back.copy_(made * torch.tensor(10.0), non_blocking=True)
        facts = made.device, made.is_cuda, host.device, made.shape, back.is_pinned(), torch.empty(1).device
    graph.replay()

    assert (CUDA, True, torch.device("cpu"), torch.Size([4]), True, torch.device("cpu")) == facts
    assert ([6.0] * 4, [60.0] * 4, [1.0, 1.0]) == (made.tolist(), back.tolist(), host.tolist())
