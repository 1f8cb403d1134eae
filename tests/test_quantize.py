from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4ref
from covering import names_by_parts
from fp4ref import registry
from fp4ref.arithmetic import SIXTH, TE_DIVISION, Constants, block_scale_te, encoding_te, scaled_te
from fp4ref.conformance.families.strategies import (
    DTYPES,
    amax_at_powers_of_two,
    float32s,
    matrices,
    near,
    near_midpoints,
    shapes,
    zero_blocks,
)
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.conformance.oracle import rationals
from fp4ref.conformance.vectors.sources.four_over_six import sums_by_order
from fp4ref.errors import DomainError, DTypeError, ShapeError
from fp4ref.formats import CUDA_E4M3, E2M1, E4M3, F
from fp4ref.model import tiles
from fp4ref.model.quantize import global_amax, quantize
from fp4ref.random_source import random_bits

DIRECTIONS = ("row", "column")
SMALL = shapes(3, 33) | shapes(33, 3)
NVFP4 = Constants(E2M1, CUDA_E4M3, F(6), F(448), lambda v: v)


AVAILABLE = [name for name, reason in registry.available() if reason is None and name in {"numpy", "cpu", "torch"}]


def block_of(maximum: float) -> np.ndarray:
    x = np.zeros((1, 16), np.float32)
    x[0, 3] = maximum
    return x


@pytest.mark.rule("NUM-1", "BLK-1", "BLK-2", "BLK-3", "BLK-4", "BLK-5", "BLK-6", "GLB-1", "GLB-2")
@given(x=matrices(shape=SMALL, finite=False), direction=st.sampled_from(DIRECTIONS))
def test_nvfp4_is_the_oracles(x, direction):
    expected = oracle.quantize(x, fp4ref.NVFP4, direction)
    assert not oracle.differences(quantize(x, fp4ref.NVFP4, direction), expected)


@pytest.mark.rule("GLB-5", "BLK-8")
@given(x=matrices(shape=SMALL, finite=False), direction=st.sampled_from(DIRECTIONS))
def test_row_scaled_is_the_oracles(x, direction):
    expected = oracle.quantize(x, fp4ref.NVFP4_ROW_SCALED, direction)
    assert not oracle.differences(quantize(x, fp4ref.NVFP4_ROW_SCALED, direction), expected)


@pytest.mark.rule("BLK-1", "BLK-7")
@settings(max_examples=40)
@given(x=matrices((16, 16), shape=shapes(33, 17), finite=False), direction=st.sampled_from(DIRECTIONS))
def test_nvfp4_2d_is_the_oracles(x, direction):
    expected = oracle.quantize(x, fp4ref.NVFP4_2D, direction)
    assert not oracle.differences(quantize(x, fp4ref.NVFP4_2D, direction), expected)


@pytest.mark.rule("BLK-11")
@given(x=matrices(shape=SMALL, finite=False), direction=st.sampled_from(DIRECTIONS))
def test_fast_math_is_the_oracles(x, direction):
    expected = oracle.quantize(x, fp4ref.NVFP4_FAST, direction)
    assert not oracle.differences(quantize(x, fp4ref.NVFP4_FAST, direction), expected)


@pytest.mark.rule("BLK-3", "BLK-4", "BLK-5")
@given(
    global_amax=float32s(finite=True).map(abs) | amax_at_powers_of_two(),
    fraction=near_midpoints(E4M3).map(lambda v: abs(v) / F(448)),
    elements=st.lists(near_midpoints(E2M1) | float32s(), min_size=16, max_size=16),
)
def test_one_block_with_any_global_amax_is_the_oracles(global_amax, fraction, elements):
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        x = (np.array([elements], F) * (fraction * global_amax / F(6))).astype(F)
    amax = np.array([global_amax], F)
    expected = oracle.quantize(x, fp4ref.NVFP4, amax=amax.tolist())
    assert not oracle.differences(quantize(x, fp4ref.NVFP4, amax=amax), expected)


@pytest.mark.rule("BLK-3")
@pytest.mark.parametrize("tensor, block, byte, by_division", [(12, 4.5, 0x73, 0x72), (15.75, 11.8125, 0x7B, 0x7A)])
def test_block_scale_is_amax_times_the_sixth_of_the_encoding_scale(tensor, block, byte, by_division):
    amax = np.array([tensor], F)
    assert quantize(block_of(block), fp4ref.NVFP4, amax=amax).scales.tolist() == [[byte]]
    divided = fp4ref.NVFP4.replace(arithmetic=TE_DIVISION)
    assert quantize(block_of(block), divided, amax=amax).scales.tolist() == [[by_division]]


@pytest.mark.rule("BLK-3", "GLB-2")
@pytest.mark.parametrize(
    "tensor, encoding, sixth, scale",
    [
        (1.6015625, 0x44D1CB8D, 0x438BDD09, 0x7E),
        (8.0, 0x43A80000, 0x42600000, 0x6B),
        (1000, 0x402C0831, 0x3EE56042, 0x33),
    ],
)
def test_intermediates_of_the_worked_examples(tensor, encoding, sixth, scale):
    g = encoding_te(np.array([tensor], F), NVFP4)
    assert g.view(np.uint32).tolist() == [encoding]
    assert (g * SIXTH).view(np.uint32).tolist() == [sixth]
    amax = np.array([1.6015625], F)
    assert CUDA_E4M3.encode(block_scale_te(amax, g, NVFP4)).tolist() == [scale]


@pytest.mark.rule("BLK-4", "BLK-5")
@pytest.mark.parametrize(
    "tensor, scale, factor", [(1.6015625, 0x7E, 0x406FC40E), (8.0, 0x6B, 0x40745D16), (1000, 0x33, 0x407A3A75)]
)
def test_encode_scale_takes_two_roundings_and_a_division(tensor, scale, factor):
    g = encoding_te(np.array([tensor], F), NVFP4)
    s = CUDA_E4M3.decode(np.uint8([scale]))
    assert scaled_te(np.ones(1, F), s, g, NVFP4).view(np.uint32).tolist() == [factor]
    assert (g / s).view(np.uint32).tolist() == [factor + 1]  # the older formula is another number


@pytest.mark.rule("BLK-3")
def test_block_scale_is_at_most_flt_max():
    with np.errstate(over="ignore"):
        got = block_scale_te(np.array([np.inf, 3e38, np.nan, 2], F), np.array([1, 1e3, 1, 3], F), NVFP4)
    assert got.tolist() == [rationals.FLT_MAX] * 3 + [1]


@pytest.mark.rule("BLK-4")
def test_the_encode_scale_comes_from_the_stored_scale():
    x = np.full((1, 16), 6.0, F)
    x[0, :2] = 5.8, 2.4
    q = quantize(x, fp4ref.NVFP4, amax=np.array([2688.0], F))  # S_enc 1: scale 1 from 6 * (1 / 6)
    assert (q.scales.tolist(), q.data[0, 0]) == ([[0x38]], 0x47)
    x *= F(1.06)  # scale 1.06 is stored as 1, so that everything is 6 % larger in its unit
    q = quantize(x, fp4ref.NVFP4, amax=np.array([2688.0], F))
    assert (q.scales.tolist(), q.data[0, 0]) == ([[0x38]], 0x57)


@pytest.mark.rule("BLK-2", "GLB-1")
def test_a_maximum_ignores_nan_and_starts_at_zero():
    x = np.full((2, 32), np.nan, F)
    assert global_amax(x, fp4ref.NVFP4).tobytes() == F(0).tobytes()
    assert not quantize(x, fp4ref.NVFP4).scales.any()
    x[1, 20], x[0, 3] = -3, 1
    q = quantize(x, fp4ref.NVFP4)
    assert (q.amax.tolist(), q.scales.tolist()) == ([3.0], [[0x71, 0], [0, 0x7E]])
    x[0, 0] = -np.inf
    assert global_amax(x, fp4ref.NVFP4).tolist() == [np.inf]


@pytest.mark.rule("BLK-7", "BLK-12")
@pytest.mark.parametrize("spec", [fp4ref.NVFP4_2D, fp4ref.MXFP4_2D, fp4ref.MXFP8_2D], ids=lambda s: s.name)
@given(data=st.data())
def test_2d_scales_repeat_and_directions_are_transposes(spec, data):
    x = data.draw(matrices(spec.block, spec.element.format, shape=shapes(65, 65), finite=False))
    row, column = (quantize(x, spec, direction) for direction in DIRECTIONS)
    codes = fp4ref.packing.unpack(row.data, x.shape[1], spec.element.format)
    assert np.array_equal(codes.T, fp4ref.packing.unpack(column.data, x.shape[0], spec.element.format))
    size = spec.block.rows
    tile_bytes, other = row.scales[::size], column.scales[::size]
    assert np.array_equal(tile_bytes.T, other)
    assert np.array_equal(row.scales, np.repeat(tile_bytes, size, axis=0)[: x.shape[0]])


def scale_bytes(quantized) -> set[int]:
    """Return the values of the scale bytes of the only direction."""
    return set((quantized.row or quantized.column).scales.ravel().tolist())


@pytest.mark.rule("BLK-8", "BLK-12", "FOS-5")
@pytest.mark.parametrize("backend", AVAILABLE)
def test_a_transposed_block_can_choose_the_other_candidate(backend):
    x = sums_by_order()
    search = fp4ref.FourOverSix(scale_max=256)
    spec = fp4ref.NVFP4_4OVER6.replace(name="nvfp4-4over6 2d 256", block=(16, 16), four_over_six=search)
    for direction, byte in (("row", 0x78), ("column", 0x7C)):
        assert scale_bytes(fp4ref.quantize(x, spec, direction, backend=backend)) == {byte}
        assert scale_bytes(fp4ref.quantize(x, fp4ref.NVFP4_2D, direction, backend=backend)) == {0x7E}


@pytest.mark.sampled(3)
@pytest.mark.rule("BLK-8")
@pytest.mark.parametrize(
    "name", ["nvfp4", "nvfp4-row-scaled", "nvfp4-4over6", "mxfp4", "mxfp8-e5m2", "torchao.nvfp4_2lvl"]
)
@settings(max_examples=20)
@given(data=st.data())
def test_column_direction_is_that_of_the_transpose(name, data):
    x = data.draw(matrices((1, 32), finite=False))
    spec = fp4ref.profiles[name]
    assert not oracle.differences(quantize(x, spec, "column"), quantize(np.ascontiguousarray(x.T), spec, "row"))


@pytest.mark.rule("BLK-1")
@settings(max_examples=50)
@given(
    x=matrices(shape=shapes(3, 65)),
    spec=st.sampled_from([fp4ref.NVFP4, fp4ref.MXFP4, fp4ref.MXFP8_E4M3, fp4ref.NVFP4_2D]),
)
def test_ragged_tails_are_padded_with_zeros(x, spec):
    rows, columns = x.shape
    below, right = -rows % spec.block.rows, -columns % 32
    padded = np.zeros((rows + below, columns + right), x.dtype)
    padded[:rows, :columns] = x
    got, whole = quantize(x, spec), quantize(padded, spec)
    assert np.array_equal(got.scales, whole.scales[:rows, : got.scales.shape[1]])
    width = columns // 2 if spec.element.format is E2M1 else columns  # the spare nibble is of another rule
    assert np.array_equal(got.data[:, :width], whole.data[:rows, :width])


@pytest.mark.rule("BLK-9", "GLB-1")
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (2, 0, 3), (2, 3, 0), (0,)])
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-2d", "nvfp4-row-scaled", "nvfp4-4over6", "mxfp4", "mxfp8-2d"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_zero_size_gives_zero_size(name, shape, direction):
    x = np.zeros(shape, ml_dtypes.bfloat16)
    got = quantize(x, fp4ref.profiles[name], direction)
    assert got.data.size == got.scales.size == 0
    assert not oracle.differences(got, oracle.quantize(x, fp4ref.profiles[name], direction))


@pytest.mark.rule("BLK-9", "HAD-4")
@pytest.mark.parametrize("shape", [(0, 5), (16, 0)])
def test_zero_size_with_hadamard(shape):
    got = quantize(np.zeros(shape, ml_dtypes.bfloat16), fp4ref.NVFP4_RHT, "column")
    assert (got.data.size, got.scales.size, got.amax.tolist()) == (0, 0, [0.0])


@pytest.mark.rule("NUM-4")
@pytest.mark.parametrize("shape", [(48,), (2, 3, 33), (2, 1, 4, 17), (1, 1, 1)])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_leading_dimensions_are_flattened(shape, direction, dtype):
    x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    for spec in (fp4ref.NVFP4, fp4ref.NVFP4_2D, fp4ref.MXFP8_E4M3):
        expected = quantize(x.reshape(-1, shape[-1]), spec, direction)
        assert not oracle.differences(quantize(x, spec, direction), expected)


@pytest.mark.rule("NUM-4")
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_strides_do_not_matter(direction):
    base = np.random.default_rng(4).standard_normal((40, 6, 50)).astype(np.float32)
    views = [base[::2], base[:, ::-1, ::3], base.transpose(2, 0, 1), base[:, 2].T, np.broadcast_to(base[0, 0], (5, 50))]
    for view, spec in itertools.product(views, (fp4ref.NVFP4, fp4ref.MXFP4_2D)):
        expected = quantize(np.ascontiguousarray(view), spec, direction)
        assert not oracle.differences(quantize(view, spec, direction), expected)


@pytest.mark.sampled(4)
@pytest.mark.rule("NUM-1", "GLB-1")
@pytest.mark.parametrize("name", names_by_parts(fp4ref.profiles.values()))
def test_results_do_not_depend_on_the_tiles(name, monkeypatch):
    spec = fp4ref.profiles[name]
    x = np.random.default_rng(5).standard_normal((4, 12, 15)).astype(ml_dtypes.bfloat16)
    wide = (
        np.random.default_rng(6).standard_normal((2, 9, 530)).astype(ml_dtypes.bfloat16)
    )  # of many columns, and of rows past a block
    x[0, 0, 0] = wide[0, 0, 0] = 50
    cases = [(x, "column"), (wide, "row"), (x, "row")]

    def bytes_of(tensor, direction):
        bits = random_bits(tensor.shape, direction) if spec.stochastic else None
        return quantize(tensor, spec, direction, random_bits=bits)

    whole = [bytes_of(tensor, direction) for tensor, direction in cases]
    monkeypatch.setattr(tiles, "ELEMENTS", 1)
    monkeypatch.setattr(tiles, "WIDTH", 1)
    for (tensor, direction), expected in zip(cases, whole, strict=True):
        assert not oracle.differences(bytes_of(tensor, direction), expected)


@pytest.mark.rule("NUM-3")
@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.uint8, np.bool_, np.complex64, ml_dtypes.float8_e4m3fn])
def test_other_types_are_refused(dtype):
    with pytest.raises(DTypeError, match="NUM-3"):
        fp4ref.quantize(np.zeros((1, 16), dtype), fp4ref.NVFP4)


@pytest.mark.rule("NUM-3")
def test_a_wider_type_would_round_twice():
    value, one = np.array([[2.5000000001]]), np.array([2688.0], F)
    padded = np.hstack([value, [[6.0]]])  # the scale is 1
    assert quantize(padded.astype(np.float32), fp4ref.NVFP4, amax=one).data.tolist() == [[0x74]]
    with pytest.raises(DTypeError, match="NUM-3"):
        fp4ref.quantize(padded, fp4ref.NVFP4)


@pytest.mark.rule("NUM-3")
@settings(max_examples=50)
@given(x=matrices(dtype=np.float16, finite=False), spec=st.sampled_from([fp4ref.NVFP4, fp4ref.MXFP8_E5M2]))
def test_narrow_inputs_are_widened_exactly(x, spec):
    assert not oracle.differences(quantize(x, spec), quantize(x.astype(np.float32), spec))


@pytest.mark.rule("NUM-5")
def test_subnormal_inputs_are_kept_or_flushed():
    x = np.array([[1e-40, -1e-40, 2e-38, 0] * 8], np.float32)
    kept, flushed = (quantize(x, fp4ref.MXFP8_E4M3.replace(subnormals=rule)) for rule in ("keep", "flush"))
    assert kept.data[0, :2].tolist() == [0x09, 0x89]
    assert flushed.data[0, :4].tolist() == [0, 0x80, *kept.data[0, 2:4]]
    assert global_amax(x[:, :2], fp4ref.NVFP4).tolist() == [float(F(1e-40))]
    assert global_amax(x[:, :2], fp4ref.NVFP4.replace(subnormals="flush")).tolist() == [0]


@pytest.mark.rule("NUM-5")
@given(x=matrices(shape=SMALL, finite=False), name=st.sampled_from(["nvfp4", "mxfp4"]))
def test_flushed_subnormals_are_the_oracles(x, name):
    spec = fp4ref.profiles[name].replace(subnormals="flush")
    assert not oracle.differences(quantize(x, spec), oracle.quantize(x, spec))


@pytest.mark.rule("NUM-2")
def test_a_nan_that_an_operation_makes_is_negative():
    spec = fp4ref.profiles["torchao.nvfp4_2lvl"]  # its codecs keep the sign of NaN
    q = quantize(np.zeros((1, 16), np.float32), spec)  # 0 / 0 in the scale
    assert (q.scales.tolist(), set(q.data.ravel())) == ([[0xFF]], {0xCC})
    with np.errstate(invalid="ignore"):
        nan = np.full((1, 16), np.nan, np.float32)
    assert quantize(nan, spec).scales.tolist() == [[0x7F]]  # one that came in keeps its sign
    assert quantize(-nan, spec).scales.tolist() == [[0x7F]]  # of |x|
    nan[0, 0], nan[0, 1] = -nan[0, 0], 1
    floor = quantize(nan, fp4ref.profiles["torchao.mxfp4_floor"])
    assert floor.data[0, :2].tolist() == [0x3B, 0x33]  # the element's own sign, else the scale's


@pytest.mark.rule("GLB-2", "GLB-3", "NUM-1")
@given(amax=float32s().map(abs) | amax_at_powers_of_two() | near(np.float64([2688 / 3.4028234663852886e38, 7.9e-36])))
def test_encoding_scale_is_the_oracles(amax):
    with np.errstate(all="ignore"):
        got = encoding_te(np.array([abs(amax)], F), NVFP4)
    assert got.tolist() == [oracle.encoding_scale(float(abs(amax)), 2688.0)]


@pytest.mark.rule("GLB-3")
@pytest.mark.parametrize(
    "amax, expected",
    [
        (0, 1),
        (np.inf, 1),
        (np.nan, rationals.FLT_MAX),
        (1e-37, rationals.FLT_MAX),
        (2.0**-149, rationals.FLT_MAX),
        (2688, 1),
    ],
)
def test_special_global_maxima_by_hand(amax, expected):
    with np.errstate(all="ignore"):
        assert encoding_te(np.array([amax], F), NVFP4).tolist() == [expected]


@pytest.mark.rule("GLB-4")
@settings(max_examples=50)
@given(x=matrices(shape=SMALL), factor=st.sampled_from([0, 2.0**-149, 2.0**-30, 0.25, 0.9, 1.1, 8, 2.0**60]))
def test_a_callers_amax_is_taken_as_it_is(x, factor):
    amax = global_amax(x, fp4ref.NVFP4) * F(min(factor, 1)) if factor < 1 else np.array([factor], F)
    expected = oracle.quantize(x, fp4ref.NVFP4, amax=amax.tolist())
    assert not oracle.differences(quantize(x, fp4ref.NVFP4, amax=amax), expected)


@pytest.mark.rule("GLB-4")
def test_an_amax_below_the_true_one_saturates():
    x = np.full((1, 16), -8.0, F)
    x[0, 0] = 1
    q = quantize(x, fp4ref.NVFP4, amax=np.array([2.0], F))
    assert (q.scales.tolist(), q.amax.tolist(), q.data[0].tolist()) == ([[0x7E]], [2.0], [0xF5] + [0xFF] * 7)
    for bad in (np.nan, -1.0):
        with pytest.raises(DomainError, match=r"need >= 0 and not NaN \[GLB-4\]"):
            fp4ref.quantize(x, fp4ref.NVFP4, amax=bad)
    with pytest.raises(ShapeError, match="GLB-4"):
        fp4ref.quantize(x, fp4ref.NVFP4, amax=np.ones(2, F))


@pytest.mark.rule("GLB-5")
def test_every_row_is_quantized_by_its_own_maximum():
    x = np.random.default_rng(6).standard_normal((5, 40)).astype(np.float32) * np.float32(
        [[1], [9], [0], [1e-3], [1e30]]
    )
    q = quantize(x, fp4ref.NVFP4_ROW_SCALED)
    assert q.amax.tolist() == np.abs(x).max(axis=1).tolist()
    for i in range(5):
        alone = quantize(x[i : i + 1], fp4ref.NVFP4)
        assert np.array_equal(q.data[i], alone.data[0])
        assert np.array_equal(q.scales[i], alone.scales[0])
    with pytest.raises(DomainError, match="GLB-5"):
        fp4ref.NVFP4_ROW_SCALED.replace(block=(16, 16))


@pytest.mark.rule("GLB-6")
def test_without_a_global_scale_it_is_one():
    x = np.random.default_rng(7).standard_normal((2, 32)).astype(np.float32)
    alone = fp4ref.NVFP4.replace(global_scale="none")
    q, of_one = quantize(x, alone), quantize(x, fp4ref.NVFP4, amax=np.array([2688.0], F))  # S_enc is 2688 / 2688
    assert q.amax is None
    assert np.array_equal(q.data, of_one.data)
    assert np.array_equal(q.scales, of_one.scales)
    with pytest.raises(DomainError, match="GLB-6"):
        fp4ref.quantize(x, fp4ref.MXFP4, amax=1.0)
    with pytest.raises(DomainError, match="GLB-6"):
        fp4ref.MXFP4.replace(global_scale="tensor")


@pytest.mark.rule("BLK-2", "BLK-5", "E2M1-2")
@given(block=zero_blocks((2, 32)))
def test_zero_blocks_keep_their_signs(block):
    q = quantize(block, fp4ref.NVFP4)
    assert not q.scales.any()
    expected = [oracle.pack([8 * int(sign) for sign in row], 4) for row in np.signbit(block).tolist()]
    assert q.data.tolist() == expected


@pytest.mark.rule("BLK-1")
@settings(max_examples=20)
@given(x=matrices((3, 5), shape=shapes(7, 17)), direction=st.sampled_from(DIRECTIONS))
def test_blocks_of_any_size_are_the_oracles(x, direction):
    spec = fp4ref.NVFP4.replace(block=(3, 5))
    assert not oracle.differences(quantize(x, spec, direction), oracle.quantize(x, spec, direction))
