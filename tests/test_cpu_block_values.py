"""Block-scaled FP8 decoded in one pass: the values of torch's steps, in calls that repeat earlier ones too."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fp4ref import registry, repeats, te  # noqa: E402
from fp4ref.errors import DTypeError, ShapeError  # noqa: E402
from fp4ref.registry import Call  # noqa: E402
from fp4ref.te.specifications import mxfp8  # noqa: E402

E4M3, E5M2 = te.DType.kFloat8E4M3, te.DType.kFloat8E5M2
SHAPES = [(128, 128), (5, 33), (300, 200), (33, 4200), (2, 64, 96), (1100, 700)]
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def filled(shape, kind, dim, **usage):
    """A tensor of random codes and scales: subnormal, large, and others than powers of two."""
    made = te.Float8BlockQuantizer(kind, block_scaling_dim=dim, **usage)(torch.randn(shape))
    for name in made.directions():
        for buffer in (getattr(made, f"_{name}wise_data"), getattr(made, f"_{name}wise_scale_inv")):
            fill(buffer)
    return made


def fill(buffer):
    if buffer.dtype is torch.uint8:
        buffer.copy_(torch.randint(0, 256, buffer.shape, dtype=torch.uint8))
    else:
        fraction = 1 + torch.rand(buffer.shape) * torch.rand(buffer.shape).round()
        buffer.copy_(torch.exp2(torch.randint(-150, 130, buffer.shape).float()) * fraction)


def same(values: Any, wanted: Any) -> bool:
    """True for equal bits; a NaN has one pattern of each sign here."""
    kind = torch.int16 if values.element_size() == 2 else torch.int32
    number = ~wanted.isnan()
    if not torch.equal(values[number].view(kind), wanted[number].view(kind)):
        return False
    return bool(values[~number].isnan().all())


@pytest.mark.sampled(4)
@pytest.mark.rule("TEL-8", "TEL-49")
@pytest.mark.parametrize(("kind", "dim", "shape"), list(product((E4M3, E5M2), (1, 2), SHAPES)), ids=str)
def test_values_are_those_of_the_steps(kind, dim, shape, monkeypatch):
    monkeypatch.setattr(repeats, "_repeats", {})
    torch.manual_seed(2)
    for usage, dtype in product(({}, {"rowwise": False}), TYPES):
        for turn in range(2):
            made = filled(shape, kind, dim, **usage)
            for name in made.directions():
                wanted = made._by_steps(name, torch.float32).to(dtype)
                assert same(made.matrix_values(name, dtype), wanted), (usage, dtype, turn)
            first = made._by_steps(made.directions()[0], torch.float32).to(dtype)
            assert same(made.dequantize(dtype=dtype), (first.t() if usage else first).reshape(shape))
    assert len([key for key in repeats._repeats if key[0] == "te.block_values"]) == 6


@pytest.mark.rule("TEL-8")
def test_buffers_that_change(monkeypatch):
    """Types, strides, settings and addresses are read in every call."""
    monkeypatch.setattr(repeats, "_repeats", {})
    torch.manual_seed(4)
    made = filled((2, 128, 128), E4M3, 1)
    for _ in range(2):
        for change in (
            {},
            {"_fp8_dtype": E5M2},
            {"_fp8_dtype": E4M3},
            {"_rowwise_data": torch.zeros(2, 128, 256, dtype=torch.uint8)[..., ::2]},
            {"_rowwise_data": torch.zeros(2, 128, 128, dtype=torch.uint8)},
            {"_rowwise_scale_inv": torch.ones(2, 256)[:1]},
            {"_rowwise_scale_inv": torch.ones(256, 1).t()},
            {"_rowwise_scale_inv": torch.ones(1, 256)},
        ):
            made.__dict__.update(change)
            fill(made._rowwise_data)
            fill(made._rowwise_scale_inv)
            wanted = made._by_steps("row", torch.float32).to(torch.bfloat16).view(2, 128, 128)
            assert same(made.dequantize(dtype=torch.bfloat16), wanted), change
    whole = te.Float8BlockQuantizer(block_scaling_dim=2)(torch.ones(128, 128))
    whole._rowwise_scale_inv.copy_(torch.tensor([3.0, 0, 0, 0]))
    assert whole.dequantize().unique().tolist() == [768.0]
    whole._is_2D_scaled, whole._rowwise_scale_inv = False, torch.full((1, 128), 2.0)
    assert whole.dequantize().unique().tolist() == [512.0]


def test_scales_that_are_not_aligned():
    codes, memory = torch.full((128, 128), 0x38, dtype=torch.uint8).numpy(), bytearray(513)
    scales = torch.full((1, 128), 2.0).numpy()
    moved = np.frombuffer(memory, "u1")[1:].view("f4").reshape(1, 128)
    moved[...] = scales
    call = Call("block_values", mxfp8(E4M3), shape=(128, 128), to="float32")
    again = registry.binder(call, "cpu")(call, codes, scales, False)
    assert (again(codes, moved) == 2.0).all()
    assert (registry.choose(call, "cpu")(call, codes, moved, False) == 2.0).all()
    with pytest.raises(ShapeError):
        registry.choose(call, "cpu")(call, codes, scales[:, :64], False)
    with pytest.raises(DTypeError):
        registry.choose(call, "cpu")(call, codes, codes, False)
