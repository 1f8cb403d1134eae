from __future__ import annotations

import dataclasses
import os

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

import fp4ref  # noqa: E402
from fp4ref.formats import STOCHASTIC_E2M1  # noqa: E402
from fp4ref.te import DType, HybridQuantizer, MXFP8Quantizer, NVFP4Quantizer, debug, emulate_device, rng  # noqa: E402
from fp4ref.te import Float8CurrentScalingQuantizer as Float8Quantizer  # noqa: E402
from fp4ref.te.cast import fp8_values  # noqa: E402
from fp4ref.te.dtypes import TE_DType  # noqa: E402

NVFP4, TILES = fp4ref.NVFP4, fp4ref.NVFP4_2D
SEARCH = fp4ref.NVFP4_4OVER6


def four_over_six(**changes):
    return SEARCH.replace(four_over_six=dataclasses.replace(SEARCH.four_over_six, **changes))


# settings of a quantizer, and the specification that they name
SETTINGS = {
    "plain": ({}, NVFP4),
    "tiles": ({"with_2d_quantization": True}, TILES),
    "hadamard": ({"with_rht": True, "with_post_rht_amax": True}, fp4ref.NVFP4_RHT),
    "hadamard without signs": (
        {"with_rht": True, "with_post_rht_amax": True, "with_random_sign_mask": False},
        NVFP4.replace(hadamard=fp4ref.Hadamard(0)),
    ),
    "row-scaled": ({"row_scaled_nvfp4": True}, fp4ref.NVFP4_ROW_SCALED),
    "4over6": ({"nvfp4_use_4over6": True}, SEARCH),
    "4over6 256 mse": (
        {"nvfp4_use_4over6": True, "nvfp4_e4m3_max": 256, "nvfp4_4over6_err_mode": "mse"},
        four_over_six(scale_max=256.0, metric=fp4ref.Metric.SQUARED),
    ),
    "4over6 tiles": (
        {"nvfp4_use_4over6": True, "with_2d_quantization": True},
        SEARCH.replace(block=fp4ref.Block(16, 16)),
    ),
    "stochastic": ({"stochastic_rounding": True}, NVFP4.replace(element=STOCHASTIC_E2M1)),
    "stochastic hadamard": (
        {"stochastic_rounding": True, "with_rht": True, "with_post_rht_amax": True},
        fp4ref.NVFP4_RHT.replace(element=STOCHASTIC_E2M1),
    ),
}


def sample(rows=96, columns=160, dtype=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    spread = torch.exp2(torch.randint(-12, 12, (rows, columns), generator=generator))
    return (torch.randn(rows, columns, generator=generator) * spread).to(dtype or torch.bfloat16)


def model(x, spec, bits=None, layout="linear"):
    return fp4ref.quantize(x, spec, "both", layout, random_bits=bits, backend="numpy")


@pytest.mark.rule("TEL-3", "TEL-6", "TEL-22")
@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_nvfp4_bytes_are_the_models(name, swizzled):
    settings, spec = SETTINGS[name]
    x = sample()
    quantizer = NVFP4Quantizer(**settings)
    quantizer.optimize_for_gemm = swizzled
    bits = None
    if quantizer.stochastic_rounding:
        quantizer.rng_state = rng.RngState(7, 1024)
        bits = fp4ref.Directions(
            *(fp4ref.random_bits((96, 160), name, 7, 1024, device="cpu") for name in ("row", "column"))
        )
    got = quantizer(x)
    want = model(x, spec, bits, "tiled_128x4" if swizzled else "linear")
    assert got._with_gemm_swizzled_scales is swizzled
    assert torch.equal(got._rowwise_data, want.row.data)
    assert torch.equal(got._columnwise_data, want.column.data)
    assert torch.equal(got._amax_rowwise, want.row.amax)
    assert torch.equal(got._amax_columnwise, want.column.amax)
    for scales, part, (rows, blocks) in (
        (got._rowwise_scale_inv, want.row, (96, 10)),
        (got._columnwise_scale_inv, want.column, (160, 6)),
    ):
        assert scales.shape == (-(-rows // 128) * 128, -(-blocks // 4) * 4)
        assert torch.equal(scales if swizzled else scales[:rows, :blocks], part.scales)


@pytest.mark.rule("TEL-3", "TEL-22", "TEL-28")
@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize(
    "settings, spec",
    [
        ({}, fp4ref.MXFP8_E4M3),
        ({"fp8_dtype": DType.kFloat8E5M2}, fp4ref.MXFP8_E5M2),
        ({"with_2d_quantization": True}, fp4ref.MXFP8_2D),
    ],
    ids=["e4m3", "e5m2", "tiles"],
)
def test_mxfp8_bytes_are_the_models(settings, spec, swizzled):
    x = sample(96, 160)
    quantizer = MXFP8Quantizer(**settings)
    quantizer.optimize_for_gemm = swizzled
    got = quantizer(x)
    want = model(x, spec, layout="tiled_128x4" if swizzled else "linear")
    assert torch.equal(got._rowwise_data, want.row.data)
    assert torch.equal(got._columnwise_data, want.column.data.t())
    assert got._rowwise_scale_inv.shape == (128, 8)
    assert got._columnwise_scale_inv.shape == (4, 256)
    if swizzled:
        assert torch.equal(got._rowwise_scale_inv, want.row.scales)
        assert torch.equal(got._columnwise_scale_inv.flatten(), want.column.scales.flatten())
    else:
        assert torch.equal(got._rowwise_scale_inv[:96, :5], want.row.scales)
        assert torch.equal(got._columnwise_scale_inv[:3, :160], want.column.scales.t())


@pytest.mark.rule("TEL-3", "TEL-21", "TEL-63")
@pytest.mark.parametrize(
    "amax, pow2, scale", [(7.0, False, 64.0), (3.0, False, 448.0 / 3), (3.0, True, 128.0), (0.0, False, 1.0)]
)
def test_per_tensor_scale(amax, pow2, scale):
    x = torch.tensor([[amax, -0.5 * amax, 0.25 * amax, 0.0]])
    q = Float8Quantizer(DType.kFloat8E4M3, force_pow_2_scales=pow2)(x)
    expected = torch.tensor([1.0]) / torch.tensor([scale])
    assert torch.equal(q._scale_inv, expected)
    assert torch.equal(q.codes().float(), (x * torch.tensor(scale)).to(torch.float8_e4m3fn).float())


@pytest.mark.rule("TEL-61")
def test_per_tensor_scale_of_infinity_is_one():
    q = Float8Quantizer()(torch.tensor([[float("inf"), 1.0]]))
    assert q.dequantize().tolist() == [[448.0, 1.0]]


@pytest.mark.rule("TEL-23")
@pytest.mark.parametrize("kind, step", [(NVFP4Quantizer, 16), (MXFP8Quantizer, 32)])
@pytest.mark.parametrize("error", [AssertionError, RuntimeError, ValueError])
def test_shapes_that_do_not_fit_are_refused(kind, step, error):
    for shape in ((step, step + 8), (step + 8, step), (step,)):
        with pytest.raises(error, match=str(shape[-1])):
            kind()(torch.ones(shape))
        with pytest.raises(error, match="divisible"):
            kind().make_empty(shape)


@pytest.mark.rule("TEL-3", "TEL-34")
@pytest.mark.parametrize(
    "settings, said",
    [
        ({"with_rht": True}, "with_post_rht_amax"),
        ({"row_scaled_nvfp4": True, "rowwise": False}, "without rowwise"),
        ({"row_scaled_nvfp4": True, "with_rht": True, "with_post_rht_amax": True}, "with with_rht"),
        ({"row_scaled_nvfp4": True, "with_2d_quantization": True}, "with_2d_quantization"),
        ({"row_scaled_nvfp4": True, "stochastic_rounding": True}, "stochastic_rounding"),
        ({"row_scaled_nvfp4": True, "with_amax_reduction": True}, "with_amax_reduction"),
        ({"row_scaled_nvfp4": True, "nvfp4_use_4over6": True}, "columnwise"),
        ({"nvfp4_use_4over6": True, "with_rht": True, "with_post_rht_amax": True}, "with with_rht"),
        ({"nvfp4_use_4over6": True, "stochastic_rounding": True}, "stochastic_rounding"),
        ({"nvfp4_use_4over6": True, "with_2d_quantization": True, "rowwise": False}, "4over6.*2d.*columnwise only"),
        ({"nvfp4_use_4over6": True, "nvfp4_4over6_err_mode": "max"}, "'MAX'"),
        ({"nvfp4_use_4over6": True, "nvfp4_e4m3_max": 300}, "300"),
        ({"nvfp4_e4m3_max": 256}, "without nvfp4_use_4over6"),
        ({"fp4_dtype": DType.kFloat8E4M3}, "fp4_dtype"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, said):
    with pytest.raises(RuntimeError, match=rf"{said}.*\[(TEL-3|TEL-34|FOS-\d|GLB-5)\]") as raised:
        NVFP4Quantizer(**settings)(torch.ones(32, 32, dtype=torch.bfloat16))
    on = [name.replace("nvfp4_use_", "") for name, value in settings.items() if value is True]
    on = [name for name in on if name != "with_post_rht_amax"]
    assert len(on) < 2 or all(name in str(raised.value) for name in on)


def test_hadamard_takes_bfloat16_only():
    quantizer = NVFP4Quantizer(with_rht=True, with_post_rht_amax=True)
    with pytest.raises(fp4ref.DTypeError, match="float32"):
        quantizer(torch.ones(32, 32))


ELIGIBLE = [
    ({"with_2d_quantization": True}, (128, 256), True),
    ({"with_2d_quantization": True}, (128, 192), False),
    ({"with_2d_quantization": True}, (64, 128), False),
    ({"with_2d_quantization": True, "nvfp4_use_4over6": True}, (128, 128), False),
    ({"with_rht": True, "with_post_rht_amax": True}, (64, 128), True),
    ({"with_rht": True, "with_post_rht_amax": True}, (64, 144), False),
    ({"with_rht": True, "with_post_rht_amax": True}, (48, 128), False),
    ({}, (128, 128), False),
    ({"row_scaled_nvfp4": True}, (128, 128), False),
]


@pytest.mark.rule("TEL-4", "TEL-7", "TEL-28", "TEL-84")
@pytest.mark.parametrize("settings, shape, eligible", ELIGIBLE)
def test_flag_of_new_and_of_quantized_tensors(settings, shape, eligible):
    quantizer = NVFP4Quantizer(**settings)
    assert quantizer.make_empty(shape, dtype=torch.bfloat16, device="cpu")._with_gemm_swizzled_scales is False
    quantizer.optimize_for_gemm = True
    quantizer.role = "weight"
    empty = quantizer.make_empty(shape, dtype=torch.bfloat16, device="cpu")
    assert empty._with_gemm_swizzled_scales is eligible
    debug.reset_operation_counts()
    assert quantizer(sample(*shape))._with_gemm_swizzled_scales is True
    counts = debug.operation_counts()
    assert counts["quantize"] == {"weight": 1}
    assert counts["swizzle_in_quantize"] == ({"weight": 2} if eligible else {})
    assert counts["swizzle_standalone"] == ({} if eligible else {"weight": 2})


@pytest.mark.rule("TEL-28")
@pytest.mark.parametrize("device, eligible", [((9, 0), False), ((10, 3), True), ((11, 0), True), ((12, 0), False)])
@pytest.mark.parametrize("settings", [{"with_2d_quantization": True}, {"with_rht": True, "with_post_rht_amax": True}])
def test_emulated_device_decides_eligibility(device, eligible, settings):
    quantizer = NVFP4Quantizer(**settings)
    quantizer.optimize_for_gemm = True
    with emulate_device(*device):
        made = quantizer.make_empty((128, 128), dtype=torch.bfloat16, device="cpu")
    assert made._with_gemm_swizzled_scales is eligible


@pytest.mark.rule("TEL-4", "TEL-5", "TEL-29")
def test_second_swizzle_does_nothing():
    quantizer = NVFP4Quantizer()
    tensor = quantizer(sample(128, 128))
    compact = tensor._rowwise_scale_inv.clone()
    address = tensor._rowwise_scale_inv.data_ptr()
    fp4ref.te.swizzle_scales_for_gemm_(tensor)
    moved = tensor._rowwise_scale_inv.clone()
    assert not torch.equal(moved, compact)
    fp4ref.te.swizzle_scales_for_gemm_(tensor)
    assert torch.equal(tensor._rowwise_scale_inv, moved)
    assert tensor._rowwise_scale_inv.data_ptr() == address


@pytest.mark.rule("TEL-5", "TEL-24", "TEL-84")
@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("kind", ["plain", "tiles", "hadamard", "mxfp8", "float8"])
def test_update_keeps_addresses(kind, swizzled):
    quantizer = {"mxfp8": MXFP8Quantizer, "float8": Float8Quantizer}.get(kind, NVFP4Quantizer)(
        **SETTINGS[kind][0] if kind in SETTINGS else {}
    )
    quantizer.optimize_for_gemm = swizzled
    first, second = sample(128, 192), sample(128, 192, seed=1)
    tensor = quantizer(first)
    addresses = [buffer.data_ptr() for buffer in tensor.buffers()]
    tensor.quantize_(second)
    assert [buffer.data_ptr() for buffer in tensor.buffers()] == addresses
    for got, want in zip(tensor.buffers(), quantizer(second).buffers(), strict=True):
        assert torch.equal(got, want)
    quantizer.update_quantized(first, tensor, noop_flag=torch.ones(1))
    for got, want in zip(tensor.buffers(), quantizer(second).buffers(), strict=True):
        assert torch.equal(got, want)
    quantizer.update_quantized(first, tensor, noop_flag=torch.zeros(1))
    for got, want in zip(tensor.buffers(), quantizer(first).buffers(), strict=True):
        assert torch.equal(got, want)


@pytest.mark.rule("TEL-24")
def test_a_flag_keeps_both_parts_of_a_hybrid_tensor():
    quantizer = HybridQuantizer(rowwise_quantizer=MXFP8Quantizer(), columnwise_quantizer=NVFP4Quantizer())
    first, second = sample(128, 192), sample(128, 192, seed=1)
    tensor = quantizer(first)
    for flag, kept in ((1, first), (0, second)):
        quantizer.update_quantized(second, tensor, noop_flag=torch.full((1,), float(flag)))
        for part, other in zip(tensor.parts().values(), quantizer(kept).parts().values(), strict=True):
            assert all(torch.equal(*pair) for pair in zip(part.buffers(), other.buffers(), strict=True))


def test_update_follows_the_directions_in_use():
    quantizer = NVFP4Quantizer(columnwise=False)
    tensor = quantizer(sample())
    quantizer.set_usage(columnwise=True)
    quantizer.update_quantized(sample(), tensor)
    assert tensor.directions() == ["row", "column"]
    quantizer.set_usage(rowwise=False)
    quantizer.update_quantized(sample(), tensor)
    assert tensor.directions() == ["column"]
    assert tensor.shape == (96, 160)


@pytest.mark.rule("TEL-6")
def test_generator_state_decides_stochastic_bytes():
    quantizer = NVFP4Quantizer(stochastic_rounding=True)
    x = sample()
    torch.manual_seed(5)
    first, second = quantizer(x), quantizer(x)
    torch.manual_seed(5)
    again = quantizer(x)
    assert torch.equal(first._rowwise_data, again._rowwise_data)
    assert torch.equal(first._columnwise_data, again._columnwise_data)
    assert not torch.equal(first._rowwise_data, second._rowwise_data)


@pytest.mark.rule("TEL-76")
def test_inside_of_a_graph_the_seed_is_drawn_on_the_device_and_stays_there(monkeypatch):
    """A device is not needed: the draw is done on the CPU where the device's generator would do it."""
    draw, asked = torch.randint, []

    def randint(low, high, size, device=None):
        asked.append((str(device), tuple(size)))
        return draw(low, high, size)

    monkeypatch.setattr(torch, "randint", randint)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    states = [rng.next_state(torch.device("cuda")) for _ in range(2)]
    assert asked == [("cuda", (1,))] * 2
    assert all(isinstance(state.seed, torch.Tensor) and state.offset == 0 for state in states)
    assert states[0].seed != states[1].seed
    cpu = torch.device("cpu")
    first, second = (rng.random_bytes((16, 32), "both", state, cpu) for state in states)
    assert not torch.equal(first.row, second.row)
    assert not torch.equal(first.column, second.column)
    states[0].seed.copy_(states[1].seed)  # a replay draws into the same memory, which the bytes are made of
    again = rng.random_bytes((16, 32), "both", states[0], cpu)
    assert torch.equal(again.row, second.row)
    assert torch.equal(again.column, second.column)


def test_copies_are_independent():
    quantizer = NVFP4Quantizer(with_rht=True, with_post_rht_amax=True, with_random_sign_mask=False)
    quantizer.optimize_for_gemm, quantizer.role = True, "input"
    other = quantizer.copy()
    assert vars(other).keys() == vars(quantizer).keys()
    assert other.rht_matrix_random_sign_mask_t == 0
    other.set_usage(rowwise=False)
    assert quantizer.rowwise_usage


def test_empty_tensors_keep_their_shapes():
    tensor = NVFP4Quantizer()(torch.zeros(0, 32, dtype=torch.bfloat16))
    assert tensor._rowwise_data.shape == (0, 16)
    assert tensor._rowwise_scale_inv.shape == (0, 4)
    assert tensor._columnwise_data.shape == (32, 0)
    assert tensor.dequantize().shape == (0, 32)


def test_leading_dimensions_and_strides():
    x = sample(64, 96).t().reshape(2, 48, 64)
    tensor = NVFP4Quantizer()(x)
    want = model(x.reshape(96, 64), NVFP4)
    assert tensor.shape == (2, 48, 64)
    assert torch.equal(tensor._rowwise_data.view(96, 32), want.row.data)
    assert torch.equal(tensor._columnwise_data, want.column.data)


@pytest.mark.rule("TEL-22")
def test_scale_shapes_by_the_quantizers_methods():
    quantizer = NVFP4Quantizer()
    assert quantizer.get_scale_shape((256, 272), columnwise=False) == (256, 20)
    assert quantizer.get_scale_shape((256, 272), columnwise=True) == (384, 16)
    assert quantizer.get_columnwise_shape((2, 3, 4)) == (4, 2, 3)
    assert quantizer.convert_shape_for_fp4((2, 4)) == (2, 2)
    assert MXFP8Quantizer().get_scale_shape((96, 160), columnwise=True) == (4, 256)
    assert quantizer.is_quantizable(torch.ones(16, 16))
    assert not NVFP4Quantizer(row_scaled_nvfp4=True).is_quantizable(torch.ones(16, 16))


@pytest.mark.rule("TEL-3", "E4M3-5", "E5M2-5")
@pytest.mark.parametrize("dtype", [DType.kFloat8E4M3, DType.kFloat8E5M2])
def test_per_tensor_nan_has_one_code(dtype):
    x = torch.tensor([float("nan"), -float("nan"), 1.0]).view(torch.int32)
    x[1] |= -(2**31)  # the sign of a NaN is lost on the way through Python
    assert Float8Quantizer(dtype)(x.view(torch.float32))._data[:2].tolist() == [0x7F, 0x7F]


@pytest.mark.rule("TEL-3", "TEL-44")
def test_given_scale_notes_the_amax():
    scale, amax = torch.tensor(3.5), torch.zeros(1)
    x = sample(7, 11, torch.float32)
    q = fp4ref.te.Float8Quantizer(scale, amax, DType.kFloat8E5M2)(x)
    assert amax.item() == x.abs().max().item()
    assert torch.equal(q.codes(), (x * 3.5).clamp(-57344, 57344).to(torch.float8_e5m2))
    assert torch.equal(q.dequantize(), q.codes().float() * (torch.tensor(1.0) / scale))
    fp4ref.te.Float8Quantizer(scale, amax, DType.kFloat8E5M2)(x / 2)
    assert amax.item() == x.abs().max().item()  # it never falls


@pytest.mark.rule("TEL-21")
def test_least_amax():
    q = Float8Quantizer(DType.kFloat8E4M3, amax_epsilon=0.5)(torch.tensor(0.25))
    assert q.shape == ()
    assert torch.equal(q._scale_inv, torch.tensor([1.0]) / torch.tensor([448 / 0.5]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("count, offset", [(1 << 17, 0), (1 << 17, 1), ((1 << 17) + 1, 0), (300, 0)])
def test_codes_decode_alike_alone_and_in_pairs(kind, dtype, count, offset):
    generator = torch.Generator().manual_seed(count + offset)
    codes = torch.randint(0, 256, (count + offset,), dtype=torch.uint8, generator=generator)[offset:]
    found, expected = fp8_values(codes, TE_DType[kind], dtype), codes.view(kind).to(dtype)
    numbers = ~expected.isnan()
    integers = torch.int32 if dtype is torch.float32 else torch.int16
    assert torch.equal(found.view(integers)[numbers], expected.view(integers)[numbers])
    assert found[~numbers].isnan().all()


def as_now(quantizer):
    """The bytes of a quantizer that remembers nothing: of a class of its own, which has no kind."""
    own = type("Own", (type(quantizer),), {})
    fresh = object.__new__(own)
    fresh.__dict__.update(quantizer.__dict__)
    assert fresh.kind() is None
    return fresh


OF_ALL = {
    "direction": lambda q, _: q.set_usage(rowwise=False),
    "both directions": lambda q, _: q.set_usage(rowwise=True, columnwise=True),
    "rows alone": lambda q, _: q.set_usage(rowwise=True, columnwise=False),
    "swizzled": lambda q, _: setattr(q, "optimize_for_gemm", True),
    "storage": lambda q, _: setattr(q, "internal", True),
    "tiles": lambda q, _: setattr(q, "with_2d_quantization", True),
}
OF_NVFP4 = OF_ALL | {
    "row-scaled": lambda q, _: (q.set_usage(rowwise=True, columnwise=False), setattr(q, "row_scaled_nvfp4", True)),
    "4over6": lambda q, _: setattr(q, "nvfp4_use_4over6", True),
    "fast": lambda _, patch: patch.setenv("NVTE_USE_FAST_MATH", "1"),
    "fast, set to 0": lambda _, patch: patch.setenv("NVTE_USE_FAST_MATH", "0"),
    "fast errors": lambda q, patch: (
        setattr(q, "nvfp4_use_4over6", True),
        patch.setenv("NVTE_NVFP4_4OVER6_ERR_USE_FAST_MATH", "1"),
    ),
}
OF_MXFP8 = OF_ALL | {"E5M2": lambda q, _: setattr(q, "dtype", DType.kFloat8E5M2)}
OF_FLOAT8 = {name: OF_MXFP8[name] for name in ("direction", "storage", "E5M2")} | {
    "power of two": lambda q, _: setattr(q, "force_pow_2_scales", True),
    "least amax": lambda q, _: setattr(q, "amax_epsilon", 1e6),
}
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]),
]
CHANGES_OF = {NVFP4Quantizer: OF_NVFP4, MXFP8Quantizer: OF_MXFP8, Float8Quantizer: OF_FLOAT8}
CHANGES = [(kind, name) for kind, changes in CHANGES_OF.items() for name in changes]


@pytest.mark.rule("TEL-3")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "change"), CHANGES)
def test_a_quantizer_that_is_called_again_follows_its_settings(kind, change, device, monkeypatch):
    quantizer = kind()
    for shape in ((128, 256), (2, 64, 256)):
        x, other = sample(dtype=torch.bfloat16, rows=128, columns=256), sample(128, 256, seed=1)
        x, other = x.view(shape).to(device), other.view(shape).to(device)
        for _ in range(3):
            quantizer(x)
        CHANGES_OF[kind][change](quantizer, monkeypatch)
        right = as_now(quantizer)(other.cpu())
        debug.reset_operation_counts()
        as_now(quantizer)(other)
        counted = debug.operation_counts()
        for _ in range(3):
            debug.reset_operation_counts()
            made = quantizer(other)
            assert debug.operation_counts() == counted
            assert type(made) is type(right)
            for name in (*right.SETTINGS, *right.BUFFERS):
                got, needed = getattr(made, name), getattr(right, name)
                same = torch.equal(got.cpu(), needed) if isinstance(needed, torch.Tensor) else got == needed
                assert same, name
            made._quantizer.set_usage(rowwise=not quantizer.rowwise_usage)  # a copy: nobody else's


@pytest.mark.rule("TEL-3", "TEL-7")
def test_a_quantizer_that_is_called_again_counts_and_keeps_gradients():
    quantizer, x = NVFP4Quantizer(columnwise=False), sample()
    for _ in range(3):
        quantizer(x)
    debug.reset_operation_counts()
    quantizer.role = "input"
    with_history = x.float().requires_grad_().to(torch.bfloat16)
    made = quantizer(with_history)
    assert made.requires_grad
    made.dequantize().sum().backward()
    quantizer(x)
    turned = sample(160, 96).t()
    assert torch.equal(quantizer(turned)._rowwise_data, quantizer(turned.contiguous())._rowwise_data)
    assert debug.operation_counts()["quantize"] == {"input": 4}


@pytest.mark.rule("TEL-3")
def test_an_environment_in_the_place_of_another_is_read(monkeypatch):
    quantizer, x = NVFP4Quantizer(columnwise=False), sample(128, 256)
    for _ in range(2):
        quantizer(x)
    monkeypatch.setattr(os, "environ", dict(os.environ) | {"NVTE_USE_FAST_MATH": "1"})
    right = as_now(quantizer)(x)
    assert quantizer.spec(torch.bfloat16, (128, 256)).arithmetic.name == "te-fast"
    assert torch.equal(quantizer(x)._rowwise_data, right._rowwise_data)


@pytest.mark.parametrize("kind", [NVFP4Quantizer, MXFP8Quantizer, Float8Quantizer])
def test_a_tangent_ends_at_quantizing(kind):
    quantizer, x = kind(), sample(64, 64).float()
    for _ in range(2):
        with forward_ad.dual_level():
            made = quantizer(forward_ad.make_dual(x, torch.ones_like(x)))
            assert all(forward_ad.unpack_dual(part).tangent is None for part in made.buffers())
