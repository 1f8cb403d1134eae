from __future__ import annotations

import dataclasses
import math
import tracemalloc
from fractions import Fraction
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4ref
from compiled import together
from fp4ref import packing, registry
from fp4ref.conformance.oracle.gemm import BINARY, NUMPY, expected, matrix
from fp4ref.conformance.oracle.rationals import rounded
from fp4ref.layout import STANDARD_LAYOUTS
from fp4ref.model import gemm as model
from fp4ref.model import integers
from fp4ref.multiply import MODES
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.registry import Call

F = np.float32
PAIRS = [
    "nvfp4 nvfp4",
    "nvfp4 nvfp4-row-scaled",
    "nvfp4-row-scaled nvfp4-4over6",
    "nvfp4-row-scaled nvfp4-row-scaled",
    "mxfp8-e4m3 mxfp8-e4m3",
    "mxfp8-e4m3 mxfp8-e5m2",
    "mxfp8-e5m2 mxfp8-e5m2",
    "mxfp4 mxfp8-e5m2",
    "mxfp4 mxfp4-2d",
]
AVAILABLE = [name for name, reason in registry.available() if reason is None and name in {"numpy", "cpu", "torch"}]


@pytest.fixture(scope="module")
def compiled_for_this_file():
    pairs = [[fp4ref.profiles[name] for name in names.split()] for names in PAIRS]
    together(Call(operation, a, spec_b=b) for a, b in pairs for operation in ("gemm_exact", "gemm_blockwise"))


def same(got, want) -> None:
    got = np.asarray(got)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    kind = np.uint32 if got.dtype == F else np.uint16
    differing = np.argwhere(got.view(kind) != want.view(kind))
    assert not len(differing), (differing[0], got[tuple(differing[0])], want[tuple(differing[0])])


def bytes_of(spec, data, scales, amax=None, layout="linear") -> Quantized:
    """A record of given bytes: [M, K] codes and linear scales."""
    codes = np.uint8(data)
    packed = packing.pack(codes, spec.element.format)
    laid = fp4ref.LAYOUTS[layout].from_linear(np.uint8(scales))
    needs = {"none": None, "tensor": (1,), "row": (len(codes),)}[spec.global_scale]
    given_amax = None if needs is None else np.broadcast_to(F(1 if amax is None else amax), needs).copy()
    return Quantized(spec, codes.shape, "float32", layout, DirectionData(packed, laid, given_amax))


UNIT = F(2688)  # as the amax of both operands it makes alpha 1


def sums(a, b, mode="exact", backend=None):
    return fp4ref.gemm(a, b, mode, backend=backend).ravel().tolist()


E4M3 = {v: int(fp4ref.NVFP4.scale.encode(F([v]))[0]) for v in (2.0**-9, 2.0**-6, 1, 2, 4, 16, 256, 448)}


# Sums


@st.composite
def operands(draw, names: str, specials: bool):
    """Random bytes of two operands, biased to extreme scales and codes."""
    width = 16 if "nvfp4" in names else 32
    depth = draw(st.sampled_from([1, width, width + 3, 3 * width]))
    seed = draw(st.integers(0, 2**32 - 1))
    spread = draw(st.sampled_from([0, 3, 100]))
    rng = np.random.default_rng(seed)
    made = []
    for name in names.split():
        spec = fp4ref.profiles[name]
        rows = int(rng.integers(1, 4))
        shape = (rows, depth)
        codes = rng.integers(0, 1 << spec.element.format.bits, shape)
        blocks = (rows, -(-depth // width))
        if spec.scale.format.name == "e8m0":
            scales = np.clip(rng.integers(127 - spread, 128 + spread, blocks), 0, 254)
        else:
            scales = rng.integers(0, 0x7F, blocks)
        if not specials:
            bad = ~np.isfinite(spec.element.decode(codes.astype(np.uint8)))
            codes[bad] = 0x38
        elif rng.random() < 0.5:
            scales.ravel()[rng.integers(scales.size)] = 0xFF if spec.scale.format.name == "e8m0" else 0x7F
        amax = F(rng.choice([9.8125, 0.6171875, 2688, 1e-30, 0, np.inf] if specials else [9.8125, 0.6171875, 2688]))
        layout = str(rng.choice(["linear", "tiled_128x4"]))
        made.append(bytes_of(spec, codes, scales, amax, layout))
    return made


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_for_this_file")
@pytest.mark.rule("GEM-1", "GEM-2", "GEM-3", "GEM-4", "GEM-5", "GEM-6", "GEM-7", "GEM-8", "GEM-9", "LAY-6")
@pytest.mark.parametrize("names", PAIRS)
@settings(max_examples=5)
@given(data=st.data(), specials=st.booleans(), dtype=st.sampled_from(sorted(BINARY)), added=st.booleans())
def test_every_backend_computes_what_the_oracle_does(names, data, specials, dtype, added):
    a, b = data.draw(operands(names, specials))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    shape = (a.shape[0], b.shape[0])
    bias = rng.standard_normal(shape[1]).astype(ml_dtypes.bfloat16) if added else None
    accumulate = (rng.standard_normal(shape) * 100).astype(NUMPY[dtype]) if added else None
    alpha = float(rng.choice(F([1, 0.1, -2])))
    rule = str(rng.choice(["reciprocal", "division"]))
    for mode in ("exact", "blockwise"):
        want = expected(a, b, mode, dtype, alpha, bias, accumulate, rule)
        for name in AVAILABLE:
            got = fp4ref.gemm(
                a, b, mode, alpha=alpha, bias=bias, accumulate=accumulate, dtype=dtype, backend=name, alpha_rule=rule
            )
            same(got, want)


@pytest.mark.rule("GEM-2", "GEM-4")
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize(
    "last, exact, blockwise",
    [
        ([1, 1], 2.0**24 + 2, 2.0**24),
        ([1], 2.0**24, 2.0**24),  # a tie goes to the even one
        ([1, 2.0**-18], 2.0**24 + 2, 2.0**24),  # above the tie by the smallest product of one element
        ([-1], 2.0**24 - 1, 2.0**24 - 1),
        ([1, 1, 1], 2.0**24 + 4, 2.0**24),  # a tie between odd and even: up
    ],
)
def test_ties_of_the_sum(backend, last, exact, blockwise):
    amounts = [2.0**24, *last]
    left, right = from_amounts(amounts)
    assert sums(left, right, "exact", backend) == [exact]
    assert sums(left, right, "blockwise", backend) == [blockwise]


def from_amounts(amounts):
    """Two rows whose blocks contribute given amounts: +-2^24, +-1 or +-2^-18."""
    codes = {2.0**24: (6, 16, 256), 1: (2, 1, 1), 2.0**-18: (2, 1, 2.0**-9)}  # code, count, scale
    rows = []
    for side in range(2):
        values, scales = [], []
        for amount in amounts:
            code, count, scale = codes[abs(amount)]
            negative = 8 if side == 0 and amount < 0 else 0
            values += [code | negative] * count + [0] * (16 - count)
            scales.append(E4M3[scale])
        rows.append(bytes_of(fp4ref.NVFP4, [values], [scales], UNIT))
    return rows


@pytest.mark.rule("GEM-2")
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize(
    "scales, want",
    [
        ([(0xFE, 0xFE)], math.inf),
        ([(0x01, 0x01)], 0.0),  # 2^-252
        ([(127, 127 - 20), (127, 127 - 149 + 24), (127, 0)], 2.0**-20),  # far below the last place
        ([(127 - 100, 127 - 48)], 2.0**-148),  # a subnormal
        ([(127 - 100, 127 - 50)], 0.0),  # half of the smallest: the tie goes to 0
        ([(127 - 100, 127 - 50), (0, 0)], 2.0**-149),  # more than half, by 2^-254
        ([(254, 254 - 127), (0, 0)], 2.0**127),
    ],
)
def test_mx_sums_span_every_exponent(backend, scales, want):
    codes = np.zeros((1, 32 * len(scales)), int)
    codes[0, ::32] = 2  # the value 1 in e2m1
    a = bytes_of(fp4ref.MXFP4, codes, [[pair[0] for pair in scales]])
    b = bytes_of(fp4ref.MXFP4, codes, [[pair[1] for pair in scales]])
    assert sums(a, b, "exact", backend) == [want]
    minus = bytes_of(fp4ref.MXFP4, codes * 5, [[pair[1] for pair in scales]])  # -1
    got = fp4ref.gemm(a, minus, backend=backend)
    assert got.tolist() == [[-want]]
    assert np.signbit(got).all()


@pytest.mark.rule("GEM-2")
@pytest.mark.parametrize("backend", AVAILABLE)
def test_terms_that_cancel_leave_the_small_ones(backend):
    codes = np.zeros((1, 96), int)
    codes[0, [0, 32, 64]] = 2
    minus = codes.copy()
    minus[0, 64] = 10
    a = bytes_of(fp4ref.MXFP4, codes, [[250, 20, 250]])
    b = bytes_of(fp4ref.MXFP4, minus, [[130, 127, 130]])
    assert sums(a, b, "exact", backend) == [2.0 ** (20 - 127)]
    assert sums(a, b, "blockwise", backend) == [2.0 ** (250 - 127 + 3) - 2.0 ** (250 - 127 + 3)]


@pytest.mark.sampled(3)
@pytest.mark.rule("GEM-2")
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("length", [1217394, 1217395])
def test_sums_at_the_end_of_64_bits(backend, length):
    assert (length * 2752512**2 < 2**63) == (length == 1217394)  # in steps of 2^-20
    codes = np.full((1, length), 7, np.uint8)
    q = bytes_of(fp4ref.NVFP4, codes, np.full((1, -(-length // 16)), 0x7E), UNIT)
    assert sums(q, q, "exact", backend) == [rounded(Fraction(length * 2688**2))]


@pytest.mark.rule("GEM-2")
@pytest.mark.parametrize("name", ["nvfp4", "mxfp8-e4m3", "mxfp8-e5m2"])
def test_wide_integers_agree_with_64_bits(name, monkeypatch):
    x = np.random.default_rng(2).standard_normal((5, 96)).astype(F)
    q = fp4ref.quantize(x, name, backend="numpy")
    want = fp4ref.gemm(q, q, backend="numpy")
    monkeypatch.setattr(model, "LIMIT", 1)
    same(fp4ref.gemm(q, q, backend="numpy"), want)


@pytest.mark.rule("GEM-2", "NUM-1")
@given(n=st.integers(-(2**63) + 1, 2**63 - 1), exponent=st.integers(-300, 300))
def test_integers_are_rounded_once(n, exponent):
    want = rounded(Fraction(n) * Fraction(2) ** exponent)
    for array in (np.array([n], np.int64), np.array([n], object)):
        got = integers.rounded(array, np.array([exponent]))
        same(got, np.array([math.copysign(want, n)], F))


@pytest.mark.rule("GEM-21")
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("mode", MODES)
def test_empty_operands(backend, mode):
    spec = fp4ref.NVFP4
    empty = fp4ref.quantize(np.zeros((3, 0), F), spec)
    assert fp4ref.gemm(empty, empty, mode, bias=np.ones(3, F), backend=backend).tolist() == [[1] * 3] * 3
    none, some = fp4ref.quantize(np.zeros((0, 32), F), spec), fp4ref.quantize(np.ones((2, 32), F), spec)
    assert fp4ref.gemm(none, some, mode, backend=backend).shape == (0, 2)
    assert fp4ref.gemm(some, none, mode, backend=backend).shape == (2, 0)


@pytest.mark.rule("GEM-3", "GEM-23")
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("mode", ["exact", "blockwise"])
@pytest.mark.parametrize(
    "other, want",
    [([0x3C, 0x3C], math.inf), ([0, 0x3C], math.nan), ([0xBC, 0x3C], -math.inf), ([0xFC, 0x3C], -math.inf)],
)
def test_an_infinite_element(backend, mode, other, want):
    spec = fp4ref.MXFP8_E5M2
    a, b = bytes_of(spec, [[0x7C, 0x3C]], [[127]]), bytes_of(spec, [other], [[127]])
    got = fp4ref.gemm(a, b, mode, backend=backend)
    same(got, F([[want]]))


@pytest.mark.rule("GEM-24")
@pytest.mark.parametrize("dtype, bits", [("float32", 0x7FC00000), ("bfloat16", 0x7FC0), ("float16", 0x7E00)])
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("mode", MODES)
def test_nan_is_the_positive_quiet_one(backend, mode, dtype, bits):
    a = bytes_of(fp4ref.NVFP4, [[0x8] * 32], [[0x7F, 0x38]], -0.0)
    got = fp4ref.gemm(a, a, mode, alpha=-1.0, dtype=dtype, backend=backend)
    assert got.view(np.uint32 if dtype == "float32" else np.uint16).tolist() == [[bits]]


# Alpha and what follows


@pytest.mark.rule("GEM-5", "GEM-6")
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize(
    "amaxes, alpha, rule, bits",
    [
        ((4, 0.5), 1, "reciprocal", 0x34949B93),
        ((1.1, 1.3), 0.1, "reciprocal", 0x32AA01DA),
        ((9.8125, 0.6171875), 1, "reciprocal", 0x3560FF6C),
        ((9.8125, 0.6171875), 1, "division", 0x3560FF6B),
    ],
)
def test_alpha(backend, amaxes, alpha, rule, bits):
    code = np.zeros((1, 16), int)
    code[0, 0] = 2
    a, b = (bytes_of(fp4ref.NVFP4, code, [[0x38]], amax) for amax in amaxes)
    got = fp4ref.gemm(a, b, alpha=alpha, alpha_rule=rule, backend=backend)
    assert got.view(np.uint32).tolist() == [[bits]]


@pytest.mark.rule("GEM-5")
@pytest.mark.parametrize("maxima, bits", [((448, 448), 0x34149B93), ((448, 256), 0x34820821), ((256, 256), 0x34E38E39)])
def test_the_factor_of_scale_maxima(maxima, bits):
    code = np.zeros((1, 16), int)
    code[0, 0] = 2
    specs = {448: fp4ref.NVFP4, 256: fp4ref.NVFP4_4OVER6.replace(four_over_six=fp4ref.FourOverSix(scale_max=256))}
    for pair in (maxima, maxima[::-1]):
        a, b = (bytes_of(specs[m], code, [[0x38]], 1) for m in pair)
        for backend in AVAILABLE:
            assert fp4ref.gemm(a, b, backend=backend).view(np.uint32).tolist() == [[bits]]


@pytest.mark.rule("GEM-7")
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize(
    "names, bits",
    [
        ("nvfp4-row-scaled nvfp4", 0x394F8742),
        ("nvfp4 nvfp4-row-scaled", 0x394F8742),
        ("nvfp4-row-scaled nvfp4-row-scaled", 0x394F8743),
        ("nvfp4 nvfp4", 0x394F8741),
    ],
)
def test_row_scaled_operands_are_scaled_after_the_sum(backend, names, bits):
    specs = [fp4ref.profiles[name] for name in names.split()]
    x, w = np.zeros((2, 16), int), np.zeros((2, 16), int)
    x[0, :2], w[0, :2] = (6, 2), (7, 2)  # 4 * 6 + 1 * 1 is 25
    a = bytes_of(specs[0], x, [[0x52], [0]], 1.1)  # scale 10
    b = bytes_of(specs[1], w, [[0x48], [0]], 1.3)  # scale 4
    got = fp4ref.gemm(a, b, backend=backend)
    assert got.view(np.uint32)[0, 0] == bits


@pytest.mark.rule("GEM-8")
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize(
    "row, extra, bias, want",
    [(False, 0, 1, 258), (True, 0, 1, 258), (False, 2.0**-8, None, 258), (True, 2.0**-8, None, 256)],
)
def test_the_order_of_what_is_added(backend, row, extra, bias, want):
    spec = fp4ref.NVFP4_ROW_SCALED if row else fp4ref.NVFP4
    other = np.zeros((1, 32), int)
    other[0, [0, 16]] = 2
    a = bytes_of(spec, other, [[0x38, 0x38]], 2688)
    b = bytes_of(fp4ref.NVFP4, other, [[0x38, 0x02 if extra else 0]], 2688)  # 1 + 2^-8
    c = np.full((1, 1), 256, ml_dtypes.bfloat16)
    bias = None if bias is None else F([bias])
    got = fp4ref.gemm(a, b, bias=bias, accumulate=c, dtype="bfloat16", backend=backend)
    assert got.tolist() == [[want]]
    assert c.tolist() == [[256]]


# Operands


def stored_operands(both, layout):
    """Return both operands of a product by their directions, stored in a layout."""
    rng = np.random.default_rng(5)

    def operand(direction, rows, name):
        shape = (rows, 48) if direction == "row" else (48, rows)
        return fp4ref.quantize(rng.standard_normal(shape).astype(ml_dtypes.bfloat16), name, "both", layout)

    name = "nvfp4-rht" if both == ("column", "column") else "nvfp4"
    return operand(both[0], 32, name), operand(both[1], 16, "nvfp4-rht" if name == "nvfp4-rht" else "nvfp4-2d")


@cache
def expected_of_operands(both):
    return expected(*stored_operands(both, "linear"), "exact", "float32", directions=both)


@pytest.mark.sampled(4)
@pytest.mark.rule("GEM-1", "GEM-10", "LAY-6")
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("layout", [form.name for form in STANDARD_LAYOUTS])
@pytest.mark.parametrize("directions", ["row row", "row column", "column row", "column column"])
def test_directions_and_layouts(backend, layout, directions):
    both = tuple(directions.split())
    a, b = map(poisoned, stored_operands(both, layout))
    same(fp4ref.gemm(a, b, directions=both, backend=backend), expected_of_operands(both))


def poisoned(q):
    """The same with padding bytes that decode to NaN."""
    changed = {}
    for name in ("row", "column"):
        data, (rows, columns) = q.direction(name)
        valid = fp4ref.LAYOUTS[q.scale_layout].valid(rows, -(-columns // q.spec.block.columns))
        changed[name] = data._replace(scales=np.where(valid, data.scales, 0x7F).astype(np.uint8))
    return dataclasses.replace(q, **changed)


@pytest.mark.rule("GEM-12")
@pytest.mark.parametrize("backend", [None, *AVAILABLE])
def test_groups(backend):
    rng = np.random.default_rng(6)
    rows = [5, 0, 130]
    a = [fp4ref.quantize(rng.standard_normal((m, 32)).astype(F), "nvfp4", scale_layout="tiled_128x4") for m in rows]
    b = [fp4ref.quantize(rng.standard_normal((7, 32)).astype(F), "nvfp4") for _ in rows]
    bias = [rng.standard_normal(7).astype(F), None, None]
    got = fp4ref.gemm_grouped(a, b, bias=bias, backend=backend)
    assert [d.shape for d in got] == [(m, 7) for m in rows]
    for d, *arguments in zip(got, a, b, bias, strict=True):
        same(d, fp4ref.gemm(arguments[0], arguments[1], bias=arguments[2], backend=backend))
    with pytest.raises(fp4ref.ShapeError, match=r"3 members of a and 2 of b, need as many \[GEM-12\]"):
        fp4ref.gemm_grouped(a, b[:2])
    assert fp4ref.gemm_grouped([], []) == []


@cache
def operands_without_amax(names):
    """Return both operands of a product, and the exact sum of each result with that of its terms' magnitudes."""
    rng = np.random.default_rng(7)
    a, b = (
        fp4ref.quantize((rng.standard_normal((9, 320)) * np.exp(rng.standard_normal((9, 1)))).astype(F), name)
        for name in names.split()
    )
    ones = [strip_amax(q) for q in (a, b)]
    left, right = (matrix(q) for q in ones)
    sums = {}
    for m, n in np.ndindex(9, 9):
        terms = [
            Fraction(p) * Fraction(s) * Fraction(q) * Fraction(t)
            for p, s, q, t in zip(
                left.codes[m],
                np.repeat(left.scales[m], left.width).tolist(),
                right.codes[n],
                np.repeat(right.scales[n], right.width).tolist(),
                strict=True,
            )
        ]
        sums[m, n] = sum(terms), sum(map(abs, terms))
    return ones, sums


@pytest.mark.sampled(3)
@pytest.mark.rule("GEM-11")
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("names", PAIRS)
def test_fast_keeps_its_bound(backend, names):
    ones, sums = operands_without_amax(names)
    got = fp4ref.gemm(*ones, "fast", backend=backend)
    u = Fraction(1, 2**23)
    gamma = 320 * u / (1 - 320 * u)
    for place, (total, magnitude) in sums.items():
        assert abs(Fraction(float(got[place])) - total) <= gamma * magnitude


def strip_amax(q):
    """The same with amaxes that make alpha 1."""
    if q.row.amax is None:
        return q
    return dataclasses.replace(
        q, spec=q.spec.replace(global_scale="tensor"), row=q.row._replace(amax=np.array([2688], F))
    )


@pytest.mark.rule("GEM-1")
def test_results_do_not_depend_on_the_tiles(monkeypatch):
    rng = np.random.default_rng(8)
    q = fp4ref.quantize(rng.standard_normal((37, 80)).astype(F), "nvfp4")
    whole = [fp4ref.gemm(q, q, mode, backend="numpy") for mode in ("exact", "blockwise")]
    monkeypatch.setattr(model, "ELEMENTS", 800)
    for mode, want in zip(("exact", "blockwise"), whole, strict=True):
        same(fp4ref.gemm(q, q, mode, backend="numpy"), want)


@pytest.mark.rule("GEM-1")
def test_the_golden_model_needs_bounded_memory():
    peaks = []
    for rows in (1024, 4096):
        q = fp4ref.quantize(np.ones((rows, 2048), F), "nvfp4")
        small = fp4ref.quantize(np.ones((2, 2048), F), "nvfp4")
        tracemalloc.start()
        fp4ref.gemm(q, small, backend="numpy")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.2


@pytest.mark.parametrize("backend", [name for name in AVAILABLE if name == "torch"])
def test_torch_tensors_come_back_as_such(backend):
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 32).to(torch.bfloat16)
    q = fp4ref.quantize(x, "nvfp4")
    for mode in MODES:
        d = fp4ref.gemm(q, q, mode, dtype="bfloat16", bias=torch.ones(4), accumulate=torch.ones(4, 4).bfloat16())
        assert isinstance(d, torch.Tensor)
        assert d.dtype is torch.bfloat16
        named = fp4ref.gemm(
            q,
            q,
            mode,
            dtype=torch.bfloat16,
            bias=torch.ones(4),
            accumulate=torch.ones(4, 4).bfloat16(),
            backend=backend,
        )
        assert torch.allclose(d.float(), named.float(), rtol=0.01)


@pytest.mark.gpu
@pytest.mark.rule("GEM-2", "GEM-4", "GEM-8", "GEM-11", "GEM-12")
@pytest.mark.parametrize("names", PAIRS)
def test_operands_on_a_gpu(names):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    rng = np.random.default_rng(9)
    host = [
        fp4ref.quantize(rng.standard_normal((rows, 1184)).astype(F), name, scale_layout="tiled_128x4")
        for rows, name in zip((70, 48), names.split(), strict=True)
    ]
    bias, accumulate = rng.standard_normal(48).astype(F), rng.standard_normal((70, 48)).astype(F)
    device = [
        dataclasses.replace(
            q, row=DirectionData(*(None if part is None else torch.from_numpy(part.copy()).cuda() for part in q.row))
        )
        for q in host
    ]
    added = {"bias": bias, "accumulate": accumulate}
    there = {name: torch.from_numpy(part).cuda() for name, part in added.items()}
    for mode in MODES:
        got = fp4ref.gemm(*device, mode, **there)
        assert got.is_cuda
        want = fp4ref.gemm(*host, "exact" if mode == "fast" else mode, **added)
        if mode == "fast":
            sizes = fp4ref.gemm(*(magnitudes(q) for q in host), "exact") * 1184 * 2.0**-22 + 2.0**-20
            assert (np.abs(got.cpu().numpy() - want) <= sizes).all()
            [member] = fp4ref.gemm_grouped(device[:1], device[1:], "fast", bias=[there["bias"]])
            assert member.shape == (70, 48)
        else:
            same(got.cpu().numpy(), want)


def magnitudes(q):
    """The same without signs."""
    form = q.spec.element.format
    codes = packing.unpack(q.row.data, q.shape[1], form) & (form.sign_bit - 1)
    return dataclasses.replace(q, row=q.row._replace(data=packing.pack(codes.astype(np.uint8), form)))


# Bad input

X = np.ones((32, 32), F)
NV, MX = (fp4ref.quantize(X, name, backend="numpy") for name in ("nvfp4", "mxfp4"))  # which compiles nothing
RHT = fp4ref.quantize(X.astype(ml_dtypes.bfloat16), "nvfp4-rht", "both", backend="numpy")
OTHER = fp4ref.NVFP4.replace(name="other-signs", hadamard=fp4ref.Hadamard(signs=1))


@pytest.mark.rule("GEM-6", "GEM-8", "GEM-9", "GEM-10", "GEM-19", "GEM-20", "GEM-22", "GEM-58", "GEM-59")
@pytest.mark.parametrize(
    "a, b, arguments, error, message",
    [
        (
            NV,
            fp4ref.quantize(X[:, :16], "nvfp4", backend="numpy"),
            {},
            fp4ref.ShapeError,
            r"a row \[32, 32\] and b row \[32, 16\].*GEM-22",
        ),
        (NV, MX, {}, fp4ref.DomainError, r"a nvfp4 and b mxfp4: scales e4m3 and e8m0, need the same.*GEM-9"),
        (NV, NV, {"mode": "split"}, fp4ref.DomainError, "mode 'split'.*exact, blockwise, fast"),
        (NV, NV, {"directions": "row"}, fp4ref.DomainError, "directions 'row', need two"),
        (NV, NV, {"directions": ("row", "up")}, fp4ref.DomainError, "need two of row and column"),
        (NV, NV, {"directions": ("column", "row")}, fp4ref.DomainError, r"a \(nvfp4\) without its column direction"),
        (NV, RHT, {"directions": ("row", "column")}, fp4ref.DomainError, "a nvfp4 row not transformed.*0xd7e8.*GEM-10"),
        (
            fp4ref.quantize(X.astype(ml_dtypes.bfloat16), OTHER, "column", backend="numpy"),
            RHT,
            {"directions": ("column", "column")},
            fp4ref.DomainError,
            "a other-signs column with signs 0x1 and b nvfp4-rht column with signs 0xd7e8",
        ),
        (NV, X, {}, fp4ref.DTypeError, "b of type ndarray"),
        (
            NV,
            dataclasses.replace(NV, spec=fp4ref.MXFP4),
            {},
            fp4ref.ShapeError,
            "operand b: row.scales",
        ),
        (
            dataclasses.replace(NV, scale_layout="tiled_128x4"),
            NV,
            {},
            fp4ref.ShapeError,
            r"operand a: row.scales \[32, 2\], need \[128, 4\] for nvfp4 \[32, 32\] tiled_128x4",
        ),
        (
            dataclasses.replace(NV, scale_layout="zigzag"),
            NV,
            {},
            fp4ref.UnknownNameError,
            "scale_layout of a: 'zigzag'",
        ),
        (
            NV,
            fp4ref.quantize(X, "compressed_tensors.nvfp4", backend="numpy"),
            {},
            fp4ref.DomainError,
            "order of compressed-tensors.*GEM-59",
        ),
        (
            NV,
            fp4ref.quantize(X, fp4ref.NVFP4.replace(name="bare", global_scale="none"), backend="numpy"),
            {},
            fp4ref.DomainError,
            "a nvfp4 and b bare: a global scale True and False.*GEM-58",
        ),
        (NV, NV, {"bias": np.ones(3, F)}, fp4ref.ShapeError, r"bias of shape \[3\], need \[32\].*GEM-19"),
        (NV, NV, {"bias": np.ones(32)}, fp4ref.DTypeError, "bias of dtype float64"),
        (
            NV,
            NV,
            {"accumulate": X, "dtype": "bfloat16"},
            fp4ref.DTypeError,
            "accumulate of dtype float32, need bfloat16",
        ),
        (NV, NV, {"accumulate": X[:3]}, fp4ref.ShapeError, r"accumulate of shape \[3, 32\], need \[32, 32\]"),
        (NV, NV, {"dtype": "float64"}, fp4ref.DTypeError, "gemm: dtype float64"),
        (NV, NV, {"alpha": "1"}, fp4ref.DTypeError, "alpha of type str"),
        (NV, NV, {"alpha_rule": "exact"}, fp4ref.DomainError, "alpha_rule 'exact', need one of reciprocal, division"),
        (NV, NV, {"backend": "nothing"}, fp4ref.BackendError, "unknown name 'nothing'"),
    ],
)
def test_operands_that_do_not_fit(a, b, arguments, error, message):
    with pytest.raises(error, match=message):
        fp4ref.gemm(a, b, **arguments)


@pytest.mark.rule("CNF-5")
def test_the_cuda_backend_says_which_products_it_has_not(monkeypatch):
    import fp4ref_cuda

    def reasons(name: str) -> list[str]:
        spec = fp4ref.profiles[name]
        return fp4ref_cuda.BACKEND.unserved(Call("gemm_exact", spec, device="cuda", spec_b=spec))

    assert [name for name in ("nvfp4", "mxfp4", "mxfp8-e5m2", "mxfp6-e3m2", "mxint8") if reasons(name)] == []
    monkeypatch.setattr(fp4ref_cuda.sys, "platform", "win32")
    assert reasons("nvfp4") == ["products: NVRTC has integers of 128 bits on Linux only"]
