"""Calls of te that repeat an earlier one: bytes, counts and draws are those of calls that decide everything."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fp4ref import repeats, te  # noqa: E402
from fp4ref.te import debug, new_buffers  # noqa: E402
from fp4ref.te.cast import turned  # noqa: E402
from fp4ref.te.errors import SettingError, TensorShapeError  # noqa: E402

E4M3, E5M2 = te.DType.kFloat8E4M3, te.DType.kFloat8E5M2
MAKERS: dict[str, Callable[[], Any]] = {
    "nvfp4 row": lambda: te.NVFP4Quantizer(columnwise=False),
    "nvfp4 both": te.NVFP4Quantizer,
    "nvfp4 column": lambda: te.NVFP4Quantizer(rowwise=False),
    "nvfp4 rht": lambda: te.NVFP4Quantizer(with_rht=True, with_post_rht_amax=True),
    "nvfp4 2d": lambda: te.NVFP4Quantizer(with_2d_quantization=True),
    "nvfp4 4over6": lambda: te.NVFP4Quantizer(columnwise=False, nvfp4_use_4over6=True),
    "nvfp4 row-scaled": lambda: te.NVFP4Quantizer(row_scaled_nvfp4=True),
    "nvfp4 sr": lambda: te.NVFP4Quantizer(stochastic_rounding=True),
    "nvfp4 sr column": lambda: te.NVFP4Quantizer(stochastic_rounding=True, rowwise=False),
    "mxfp8 row": lambda: te.MXFP8Quantizer(columnwise=False),
    "mxfp8 column": lambda: te.MXFP8Quantizer(E5M2, rowwise=False),
    "mxfp8 both": te.MXFP8Quantizer,
    "mxfp8 2d": lambda: te.MXFP8Quantizer(with_2d_quantization=True),
    "current": te.Float8CurrentScalingQuantizer,
    "current powers": lambda: te.Float8CurrentScalingQuantizer(E5M2, force_pow_2_scales=True, amax_epsilon=2.0),
    "delayed": lambda: te.Float8Quantizer(torch.tensor([3.0]), torch.tensor([1.5]), E4M3),
    "blocks": lambda: te.Float8BlockQuantizer(block_scaling_dim=1),
    "blocks column": lambda: te.Float8BlockQuantizer(E5M2, block_scaling_dim=1, rowwise=False),
    "tiles": te.Float8BlockQuantizer,
    "tiles column": lambda: te.Float8BlockQuantizer(rowwise=False),
}
EACH = pytest.mark.parametrize("name", list(MAKERS))


ON_DEVICE = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True, params=["cpu", pytest.param("cuda", marks=ON_DEVICE)])
def device(request):
    torch.set_default_device(request.param)
    yield request.param
    torch.set_default_device(None)


@pytest.fixture(autouse=True)
def none_remembered(monkeypatch):
    monkeypatch.setattr(repeats, "_repeats", {})
    debug.reset_operation_counts()


def inputs(shape, count=4):
    """Tensors of one kind, the last of them with NaN, infinities and zeros."""
    torch.manual_seed(5)
    made = [torch.randn(shape).mul_(2.0**i).bfloat16() for i in range(count)]
    made[-1].view(-1)[:3] = torch.tensor([float("nan"), -float("inf"), -0.0])
    made[-1].view(-1)[64:128] = 0
    return made


def ready(name, *, internal=False, moved=False):
    quantizer = MAKERS[name]()
    quantizer.internal, quantizer.optimize_for_gemm, quantizer.role = internal, moved, "weight"
    return quantizer


def bits(made):
    """Everything that a tensor holds, as lists and bytes."""
    held = []
    for attribute in (*made.BUFFERS, *made.SETTINGS, "_dtype"):
        value = getattr(made, attribute)
        if isinstance(value, torch.Tensor):
            value = tuple(value.shape), value.stride(), value.contiguous().view(-1).view(torch.uint8).tolist()
        held.append((attribute, value))
    return type(made), tuple(made.shape), held


def ran(act, plain):
    """Return what some calls gave, the counts, the next draw, and how many functions are remembered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "_repeats", {})
        if plain:
            patch.setattr(repeats, "find", lambda key: None)
        debug.reset_operation_counts()
        torch.manual_seed(7)
        found = act()
        kept = [key for key in repeats._repeats if key[0].startswith("te.")]
        return found, debug.operation_counts(), torch.rand(1), len(kept)


@pytest.mark.sampled(4)
@pytest.mark.rule("TEL-3", "TEL-6", "TEL-7", "TEL-28")
@EACH
@pytest.mark.parametrize("shape", [(128, 128), (64, 160), (2, 64, 96)])
@pytest.mark.parametrize(("internal", "moved"), [(False, False), (True, True), (False, True), (True, False)])
def test_new_tensors(name, shape, internal, moved):
    given = inputs(shape)

    def act():
        quantizer = ready(name, internal=internal, moved=moved)
        return [bits(quantizer(x)) for x in given] + [getattr(quantizer, "amax", torch.zeros(1)).tolist()]

    got, wanted = ran(act, plain=False), ran(act, plain=True)
    assert got[:3] == wanted[:3]
    assert got[3] == 1


@pytest.mark.sampled(4)
@pytest.mark.rule("TEL-5", "TEL-7", "TEL-24", "TEL-6")
@EACH
@pytest.mark.parametrize("flagged", [False, True])
@pytest.mark.parametrize(("internal", "moved"), [(False, False), (True, True), (False, True)])
def test_updates_of_tensors(name, flagged, internal, moved):
    given = inputs((128, 96), 5)
    flags = [torch.tensor([float(i in {2, 4})]) if flagged else None for i in range(5)]

    def act():
        quantizer = ready(name, internal=internal, moved=moved)
        dst = quantizer(given[0])
        places, found = [buffer.data_ptr() for buffer in dst.buffers()], []
        for x, flag in zip(given, flags, strict=True):
            assert quantizer.update_quantized(x, dst, noop_flag=flag) is dst
            found.append(bits(dst))
        assert [buffer.data_ptr() for buffer in dst.buffers()] == places
        return [*found, getattr(quantizer, "amax", torch.zeros(1)).tolist()]

    got, wanted = ran(act, plain=False), ran(act, plain=True)
    assert got[:3] == wanted[:3]
    assert got[3] == 2


@pytest.mark.sampled(4)
@pytest.mark.rule("TEL-24")
@EACH
def test_flags_of_every_kind(name):
    """A flag is 1 or it is not, whatever its type and shape."""
    given = inputs((128, 96), 4)
    numbers = [
        *(torch.tensor([value]) for value in (0.0, 1.0, 2.0, -0.0, float("nan"))),
        torch.tensor(1.0),
        torch.tensor(0.5),
    ]
    whole = [torch.tensor([value, 1 - value]) for value in (0, 1)]
    types = [
        each.to(dtype) for each in whole for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float64)
    ]
    flags = [*numbers, *types, torch.tensor([[0, 1]])[:, :1], torch.tensor([[1, 0]])[:, :1]]

    def act():
        quantizer, found = ready(name), []
        dst = quantizer(given[0])
        for flag in flags:
            for x in given[1:]:
                before = bits(dst)
                quantizer.update_quantized(x, dst, noop_flag=flag)
                found.append(bits(dst))
                assert (found[-1] == before) or flag.reshape(-1)[0] != 1
        return [*found, getattr(quantizer, "amax", torch.zeros(1)).tolist()]

    got, wanted = ran(act, plain=False), ran(act, plain=True)
    assert got[:3] == wanted[:3]


@pytest.mark.rule("TEL-5")
@pytest.mark.parametrize("name", ["current", "delayed"])
@pytest.mark.parametrize("shape", [(1, 1), (1,)])
def test_scales_of_other_shapes_are_filled(name, shape):
    given = inputs((128, 96), 4)

    def act():
        quantizer, found = ready(name), []
        dst = quantizer(given[0])
        dst._scale_inv = dst._scale_inv.reshape(shape)
        for x in given:
            quantizer.update_quantized(x, dst)
            found.append(bits(dst))
        return found

    assert ran(act, plain=False)[:3] == ran(act, plain=True)[:3]


@pytest.mark.rule("TEL-8", "TEL-49")
@pytest.mark.parametrize("dim", [1, 2])
def test_block_scales_of_other_shapes_are_read_as_they_lie(dim):
    quantizer = te.Float8BlockQuantizer(block_scaling_dim=dim, columnwise=False)
    tensor = quantizer(inputs((6, 256))[0])
    wanted, scales = tensor.dequantize(), tensor._rowwise_scale_inv
    for wide in (6 if dim == 1 else 2, 16):
        other = torch.ones(scales.shape[0], wide)
        other[:, : min(wide, scales.shape[1])] = scales[:, :wide]
        tensor._rowwise_scale_inv = other
        for _ in range(3):
            assert torch.equal(tensor.dequantize(), wanted), wide


@EACH
def test_tensors_of_other_kinds(name):
    """Strides, gradients, lazy views and types alternate."""
    x = inputs((128, 128))[0]
    views = [
        x,
        x.t(),
        x.clone().requires_grad_(),
        torch._neg_view(x),
        torch.nn.Parameter(x.clone()),
        x[::2].repeat(2, 1),
    ]

    def act():
        quantizer = ready(name)
        return [bits(quantizer(each)) for _ in range(2) for each in views]

    assert ran(act, plain=False)[:2] == ran(act, plain=True)[:2]


@pytest.mark.rule("TEL-5")
@EACH
def test_a_tensor_that_changed_is_updated_as_it_is_then(name, device):
    given = inputs((128, 128))

    def act():
        quantizer, found = ready(name), []
        dst, plain = quantizer(given[0]), quantizer.copy()
        for x in given[:2]:
            quantizer.update_quantized(x, dst)
        first = next(attribute for attribute in dst.BUFFERS if getattr(dst, attribute) is not None)
        held = getattr(dst, first)
        gaps = torch.zeros(held.shape[0], 2 * held.shape[1], dtype=torch.uint8)[:, ::2]
        for other in (torch.zeros_like(held), gaps if device == "cpu" else torch.ones_like(held)):  # CNF-5
            setattr(dst, first, other)
            quantizer.update_quantized(given[2], dst)
            found.append(bits(dst))
        if "_with_gemm_swizzled_scales" in dst.SETTINGS:
            dst._with_gemm_swizzled_scales = True
        quantizer.update_quantized(given[3], dst)
        with pytest.raises(TensorShapeError):
            plain.update_quantized(inputs((64, 128))[0], dst)
        with pytest.raises(SettingError):
            plain.update_quantized(given[0], te.HybridQuantizer(rowwise_quantizer=plain, columnwise_quantizer=plain)(x))
        return [*found, bits(dst)]

    got, wanted = ran(act, plain=False), ran(act, plain=True)
    assert got[:2] == wanted[:2]


@pytest.mark.rule("TEL-44")
def test_a_scale_that_changes_between_calls():
    x, scale, amax = inputs((128, 128))[0], torch.tensor([1.0]), torch.tensor([0.0])
    quantizer = te.Float8Quantizer(scale, amax, E4M3)
    for value in (1.0, 0.0, -2.0, 1e-40, 3e38, float("inf"), float("nan")):
        for least in (0.0, 1e9, float("nan")):
            scale.fill_(value)
            found = []
            for plain in (False, True):
                amax.fill_(least)
                with pytest.MonkeyPatch.context() as patch:
                    if plain:
                        patch.setattr(repeats, "find", lambda key: None)
                    made = quantizer(x)
                found.append((made._data, made._scale_inv.nan_to_num(-1.0), amax.nan_to_num(-1.0)))
            assert all(map(torch.equal, *found)), (value, least)


@pytest.mark.rule("TEL-6")
def test_a_random_state_of_the_quantizers_own():
    x, found = inputs((64, 64))[0], []
    for seed in (3, 4, 3, 3):
        quantizer = te.NVFP4Quantizer(stochastic_rounding=True)
        quantizer.rng_state = te.nvfp4_quantizer.rng.RngState(seed, 0)
        found.append(bits(quantizer(x)))
    assert found[0] == found[2] == found[3] != found[1]


def test_an_emulated_device_is_another_kind():
    x, quantizer = inputs((128, 128))[0], ready("nvfp4 rht", moved=True)
    for capability in ((10, 0), (12, 0)) * 2:
        with te.emulate_device(*capability):
            debug.reset_operation_counts()
            made = quantizer(x)
        assert made._with_gemm_swizzled_scales
        counts = debug.operation_counts()
        assert (counts["swizzle_in_quantize"] == {"weight": 2}) == (capability == (10, 0))
        assert (counts["swizzle_standalone"] == {"weight": 2}) == (capability == (12, 0))


@pytest.mark.parametrize("shape", [(128, 128), (5, 33), (1, 1), (0, 4)])
def test_bytes_are_turned(shape):
    x = torch.randint(0, 256, shape, dtype=torch.uint8)
    for each in (x, x.clone(), x.t().contiguous().t()):
        assert torch.equal(turned(each), x.t())
        assert turned(each).is_contiguous()


SETTINGS = {
    "internal": (False, True),
    "optimize_for_gemm": (False, True),
    "role": ("weight", "input"),
    "rowwise_usage": (True, True, False),
    "columnwise_usage": (True, True, False),
    "stochastic_rounding": (False, True),
    "with_2d_quantization": (False, True),
    "nvfp4_use_4over6": (False, False, True),
    "dtype": (E4M3, E5M2),
    "block_scaling_dim": (1, 2),
    "amax_epsilon": (0.0, 0.5),
    "columnwise_source": ("original", "original", "rowwise_dequantized"),
}


@pytest.mark.sampled(3)
@pytest.mark.rule("TEL-3", "TEL-5", "TEL-7", "TEL-24", "TEL-25")
@pytest.mark.parametrize("name", ["nvfp4 both", "mxfp8 both", "blocks", "tiles", "current", "hybrid"])
@pytest.mark.parametrize("seed", range(3))
def test_settings_that_change_between_calls(name, seed, monkeypatch):
    """A long sequence of calls, each of which changes something, gives what calls that decide everything give."""
    monkeypatch.setattr(torch, "empty", torch.zeros)  # a flag may leave new buffers as they are
    monkeypatch.setattr(new_buffers, "_short", lambda device: None)
    given = [*inputs((128, 128)), *inputs((64, 256), 2), *(each.view(4, 32, 128) for each in inputs((128, 128), 2))]

    def one(chance, quantizer, held):
        parts = [*quantizer._both(), quantizer] if name == "hybrid" else [quantizer]
        for part in parts:
            setting = chance.choice(list(SETTINGS))
            usage = name == "hybrid" and setting.endswith("usage")
            if (
                hasattr(part, setting)
                and not usage
                and not (setting == "dtype" and "nvfp4" in type(part).__name__.lower())
            ):
                setattr(part, setting, chance.choice(SETTINGS[setting]))
        x = chance.choice(given)
        if chance.random() < 0.2:
            x = x.clone().requires_grad_()
        flag = chance.choice([None, None, torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([[0, 1]])[:, :1]])
        doing = chance.choice(["make", "update", "update", "update", "read", "own"])
        try:
            if doing == "make" or not held:
                made = quantizer(x)
                held.append(made)
            else:
                made = chance.choice(held[-6:])
                if doing == "update":
                    quantizer.update_quantized(x, made, noop_flag=flag)
                elif doing == "own":
                    made.quantize_(x, noop_flag=flag)
            pieces = [made] if name != "hybrid" else [made._rowwise_storage, made._columnwise_storage]
            read = made.dequantize() if chance.random() < 0.3 else torch.zeros(0)
            return [bits(piece) for piece in pieces if piece is not None], read.contiguous().view(torch.uint8).tolist()
        except Exception as error:  # noqa: BLE001 - the same one must come
            return type(error), str(error)

    def act():
        chance, held = random.Random(seed), []
        rows = {"rowwise_quantizer": te.MXFP8Quantizer(), "columnwise_quantizer": te.NVFP4Quantizer()}
        quantizer = te.HybridQuantizer(**rows) if name == "hybrid" else MAKERS[name]()
        found = (one(chance, quantizer, held) for _ in range(120))
        return [hashlib.sha256(repr(each).encode()).hexdigest() for each in found]

    got, wanted = ran(act, plain=False), ran(act, plain=True)
    assert got[:3] == wanted[:3]
    assert got[3] > 2
