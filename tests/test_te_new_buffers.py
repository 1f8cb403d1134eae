"""New buffers of te's tensors: zeros that share a piece of memory are apart in it, aligned, and as shaped as others."""

from __future__ import annotations

import itertools

import pytest

from fp4ref import te
from fp4ref.memory import memory_of, overlap

torch = pytest.importorskip("torch", exc_type=ImportError)
new_buffers = pytest.importorskip("fp4ref.te.new_buffers")

MAKERS = {
    "nvfp4": te.NVFP4Quantizer,
    "nvfp4 by row": lambda: te.NVFP4Quantizer(row_scaled_nvfp4=True),
    "mxfp8": te.MXFP8Quantizer,
    "fp8 blocks": lambda: te.Float8BlockQuantizer(block_scaling_dim=1),
}


@pytest.mark.rule("TEL-4", "TEL-22")
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("internal", [False, True])
@pytest.mark.parametrize("shape", [(128, 128), (2, 64, 96), (8192, 4096)])
def test_buffers_are_those_of_separate_allocations(name, internal, shape, monkeypatch):
    quantizer = MAKERS[name]()
    quantizer.internal = internal
    plain = quantizer.make_empty(shape, device="cpu")
    monkeypatch.setattr(new_buffers, "FILLED", ("cpu",))
    made = quantizer.make_empty(shape, device="cpu")
    shared = set()
    for field in made.BUFFERS:
        mine, other = getattr(made, field), getattr(plain, field)
        assert (mine.shape, mine.stride(), mine.dtype) == (other.shape, other.stride(), other.dtype)
        assert "scale_inv" not in field or name.startswith("nvfp4") or not mine.any()
        assert "amax" not in field or not mine.any()
        assert mine.data_ptr() % 16 == 0
        shared.add(mine.untyped_storage().data_ptr())
    zeros = [getattr(made, field) for field in made.BUFFERS if ("amax" if "nvfp4" in name else "scale") in field]
    small = sum(-(-part.nbytes // new_buffers.APART) * new_buffers.APART for part in zeros) <= new_buffers.SMALL
    assert len(shared) == len(made.BUFFERS) - small
    for one, other in itertools.combinations(made.buffers(), 2):
        assert not overlap(memory_of(one), memory_of(other))


def test_one_direction_has_memory_of_its_own(monkeypatch):
    monkeypatch.setattr(new_buffers, "FILLED", ("cpu",))
    made = te.NVFP4Quantizer(columnwise=False).make_empty((128, 128), device="cpu")
    assert all(not buffer.storage_offset() for buffer in made.buffers())


@pytest.mark.rule("TEL-4", "TEL-22")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", MAKERS)
def test_buffers_are_those_of_a_mode_that_makes_all_tensors(name, device):
    """With fake tensors there is no memory, and no GPU is needed."""
    mode = pytest.importorskip("torch._subclasses.fake_tensor")
    with mode.FakeTensorMode():
        made = MAKERS[name]().make_empty((128, 128), device=device)
        assert all(type(each) is mode.FakeTensor and each.device.type == device for each in made.buffers())


def test_strides_of_nothing_are_those_that_torch_gives():
    codes, scales = new_buffers.new_buffers(((4, 0), (0, 4)), ((3, 0, 2),), torch.uint8, torch.device("cpu"))
    for each in (*codes, *scales):
        assert each.stride() == torch.empty(each.shape).stride()
