"""Block-scaled FP8 in one pass: codes and values of torch's steps, in calls that repeat earlier ones too."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
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


def numbers(shape, mode):
    """Values of a kind: usual, of all magnitudes, tiny, and with zeros, infinities and NaN."""
    x = torch.randn(shape)
    if mode == "wide":
        x *= torch.exp2(torch.randint(-120, 120, shape).float())
    if mode == "tiny":
        x *= torch.exp2(torch.randint(-149, -100, shape).float())
    if mode == "special":
        x[: shape[0] // 2] = 0
        x.view(-1)[::7], x.view(-1)[3::97], x.view(-1)[4::91] = float("nan"), -float("inf"), -float("nan")
    return x


@pytest.mark.sampled(3)
@pytest.mark.rule("TEL-49", "TEL-50", "TEL-73")
@pytest.mark.parametrize("kind", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("shape", [(128, 128), (5, 33), (300, 200)], ids=str)
def test_codes_are_those_of_the_steps(kind, shape):
    torch.manual_seed(3)
    for dim, powers, least, mode, dtype in product(
        (1, 2), (True, False), (0.0, 0.5, 1e-30), ("usual", "wide", "tiny", "special"), TYPES
    ):
        x, how = numbers(shape, mode).to(dtype), (least, powers, dim == 2)
        quantizer = te.Float8BlockQuantizer(kind, block_scaling_dim=dim, force_pow_2_scales=powers, amax_epsilon=least)
        call = Call("block_codes", mxfp8(kind), str(dtype)[6:], "both", shape=shape)
        made = registry.choose(call, "cpu")(call, x, *how)
        bind = registry.binder(call, "cpu")
        for found in (made, bind(call, x, *how)(x), bind(call, x, *how, made)(x, [torch.ones_like(e) for e in made])):
            codes, scales = quantizer._with_any_scales(x)
            columns = (codes, scales) if dim == 2 else quantizer._with_any_scales(x.t())
            wanted = (codes, scales if dim == 2 else scales.t())
            turned = (codes.t(), scales.t()) if dim == 2 else (columns[0], columns[1].t())
            for got, (its_codes, its_scales) in zip((found[:2], found[2:]), (wanted, turned), strict=True):
                assert torch.equal(got[0], its_codes), (dim, powers, least, mode, dtype)
                across = its_scales.shape[1]
                inside = got[1][:, :across].contiguous().view(torch.int32)
                assert torch.equal(inside, its_scales.contiguous().view(torch.int32))
                assert not got[1][:, across:].any()


@pytest.mark.rule("TEL-5", "TEL-49")
@pytest.mark.parametrize("dim", [1, 2])
def test_buffers_that_cannot_be_filled_where_they_are(dim, monkeypatch):
    """Gaps, other types and shapes, memory that is shared with the source, and floats that are not aligned."""
    monkeypatch.setattr(repeats, "_repeats", {})
    torch.manual_seed(5)
    x, quantizer = torch.randn(128, 128), te.Float8BlockQuantizer(block_scaling_dim=dim)
    wanted = quantizer(x)
    memory = torch.zeros(4 * wanted._rowwise_scale_inv.numel() + 1, dtype=torch.uint8).numpy()
    moved = torch.from_numpy(memory[1:].view("f4")).view(wanted._rowwise_scale_inv.shape)
    for change in (
        {"_rowwise_data": torch.zeros(128, 256, dtype=torch.uint8)[:, ::2]},
        {"_rowwise_scale_inv": moved},
        {"_columnwise_scale_inv": torch.zeros(wanted._columnwise_scale_inv.shape, dtype=torch.float64)},
        {"_rowwise_data": x.clone().view(torch.uint8)[:, :128].contiguous()},
    ):
        made = quantizer(torch.zeros(128, 128))
        made.__dict__.update(change)
        for _ in range(3):
            for name in made.BUFFERS:
                getattr(made, name).zero_()
            quantizer.update_quantized(x, made)
            for name in made.BUFFERS:
                assert torch.equal(getattr(made, name), getattr(wanted, name).to(getattr(made, name).dtype)), name
    source = x.clone()
    made = quantizer(x)
    made._rowwise_data = source.view(torch.uint8).view(-1)[: 128 * 128].view(128, 128)
    quantizer.update_quantized(x, made)
    quantizer.update_quantized(x, made)
    source.copy_(x)
    quantizer.update_quantized(source, made)  # whose first bytes are the buffer
    assert torch.equal(made._columnwise_data, wanted._columnwise_data)
    assert torch.equal(made._rowwise_data, wanted._rowwise_data)


@pytest.mark.sampled(4)
@pytest.mark.rule("DEQ-2", "DEQ-3", "TEL-8")
@pytest.mark.parametrize("kind", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("shape", [(128, 128), (32, 96), (2, 64, 160), (288, 4256)], ids=str)
def test_values_of_columns_are_those_of_the_transpose(kind, shape, monkeypatch):
    """Every code under every scale, in calls that repeat earlier ones and in buffers that change."""
    monkeypatch.setattr(repeats, "_repeats", {})
    torch.manual_seed(6)
    made = te.MXFP8Quantizer(kind, rowwise=False)(torch.randn(shape))
    scales = made._columnwise_scale_inv
    for turn, dtype in product(range(3), TYPES):
        fill(made._columnwise_data)
        fill(made._columnwise_scale_inv)
        rows = made.record("column").row
        q = fp4ref.Quantized(
            mxfp8(kind), rows.data.shape, "float32", "linear_padded", row=rows.mapped(torch.Tensor.contiguous)
        )
        wanted = fp4ref.dequantize(q, str(dtype)[6:], backend="numpy").t().reshape(shape)
        values = made.dequantize(dtype=dtype)
        assert same(values, wanted), (turn, dtype)
        assert values.is_contiguous()
        made._columnwise_data = torch.zeros_like(made._columnwise_data)
    for other in (torch.zeros(scales.shape[0], 2 * scales.shape[1], dtype=torch.uint8)[:, ::2], scales.t().clone().t()):
        other.copy_(scales)
        made._columnwise_scale_inv = other
        again = made.dequantize()
        made._columnwise_scale_inv = scales
        assert same(again, made.dequantize())
    moved = te.swizzle_scales_for_gemm_(made.clone()) if hasattr(te, "swizzle_scales_for_gemm_") else None
    assert moved is None or same(moved.dequantize(), made.dequantize())
    call = Call("column_values", mxfp8(kind), shape=(128, 128), to="float32")
    codes = torch.zeros(128, 128, dtype=torch.uint8)
    one = 0x38 if kind is E4M3 else 0x3C
    for across, lines in ((True, codes[:4]), (False, codes[:, :4])):
        assert (registry.choose(call, "cpu")(call, codes + one, lines + 128, across) == 2.0).all()
        with pytest.raises(ShapeError):
            registry.choose(call, "cpu")(call, codes, lines[:3, :3], across)
        with pytest.raises(DTypeError):
            registry.choose(call, "cpu")(call, codes, lines.float(), across)
