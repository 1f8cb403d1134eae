"""Kernels that multiply, right ones in many orders and wrong ones, on trial."""

from __future__ import annotations

import json
import re

import ml_dtypes
import numpy as np
import pytest

import fp4ref
import fp4ref.testing
from accepted_once import accepted_once
from commands import folder_with, printed
from fp4ref.conformance.families.products import cases as products
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.product_runs import check
from fp4ref.layout import STANDARD_LAYOUTS
from operands_at_random import sides_of

pytestmark = pytest.mark.slow  # each mutant is called on every case
F = np.float32
INPUTS = ("a_data", "a_scales", "a_amax", "b_data", "b_scales", "b_amax", "rows", "columns", "depth")
NO_AMAX = tuple(name for name in INPUTS if "amax" not in name)


# A kernel in parts, written on its own: decode, add, scale, cast


def nibbles(data, depth, first=0):
    pairs = np.stack([data >> 4 * first & 15, data >> 4 * (1 - first) & 15], axis=-1)
    return pairs.reshape(len(data), -1)[:, :depth]


def e2m1(codes):
    return F([0, 0.5, 1, 1.5, 2, 3, 4, 6])[codes & 7] * np.where(codes & 8, F(-1), F(1))


def e4m3(codes):
    return codes.view(ml_dtypes.float8_e4m3fn).astype(F)


def untiled(buffer, rows, blocks, swap=False):
    r, c = np.indices((rows, blocks))
    across = -(-blocks // 4)
    fast, slow = (r % 128 // 32, r % 32) if not swap else (r % 32 % 4, r % 128 // 4)
    offset = (r // 128 * across + c // 4) * 512 + slow * 16 + fast * 4 + c % 4
    return buffer.ravel()[offset]


def terms(ad, as_, bd, bs, m, n, k, *, read=nibbles, scales=untiled, values=e2m1, decode=e4m3, width=16):
    """Products [M, N, K] in float32, exact, and blocks."""
    blocks = -(-k // width)
    left, right = values(read(ad, k)), values(read(bd, k))
    of_a, of_b = decode(scales(as_, m, blocks)), decode(scales(bs, n, blocks))
    spread = np.arange(k) // width
    return (left * of_a[:, spread])[:, None] * (right * of_b[:, spread])[None]


def alpha(aa, ba):
    return aa[0] * ba[0] * (F(1) / F(7225344))


def added(products, order="sequential"):
    k = products.shape[2]
    with np.errstate(invalid="ignore"):
        if order == "pairwise":
            while products.shape[2] > 1:
                if products.shape[2] % 2:
                    products = np.concatenate([products, np.zeros_like(products[:, :, :1])], axis=2)
                products = products[:, :, 0::2] + products[:, :, 1::2]
            return products[:, :, 0]
        total = np.zeros(products.shape[:2], F)
        if order == "float64-truncated":
            return toward_zero(products.astype(np.float64).sum(axis=2))
        for i in range(k) if order != "reversed" else reversed(range(k)):
            if order == "truncated":
                total = toward_zero(total.astype(np.float64) + products[:, :, i])
            elif order in {"float16", "bfloat16"}:
                kind = np.float16 if order == "float16" else ml_dtypes.bfloat16
                total = (total + products[:, :, i]).astype(kind).astype(F)
            elif order == "14 bits":
                exact = total.astype(np.float64) + products[:, :, i]
                fraction, exponent = np.frexp(exact)
                total = np.ldexp(np.trunc(fraction * 2**14), exponent - 14).astype(F)
            else:
                total = total + products[:, :, i]
        return total


def toward_zero(wide):
    near = wide.astype(F)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(wide), np.nextafter(near, F(0)), near)


def kernel(sums=added, scale=alpha, cast=lambda y: y, to="float32", **parts):
    @fp4ref.kernel(operation="gemm", inputs=INPUTS, outputs=("values",), scale_layout="tiled_128x4", to=to)
    def gemm(ad, as_, aa, bd, bs, ba, m, n, k):
        with np.errstate(all="ignore"):
            y = sums(terms(ad, as_, bd, bs, m, n, k, **parts))
            return cast(np.asarray(y * scale(aa, ba), F))

    return gemm


FAMILIES = ("powers", "width", "dense", "ragged", "alpha", "special", "random")


@pytest.fixture(autouse=True)
def smaller(monkeypatch):
    """The same families with fewer results, for kernels that hold every product at once."""
    make = products.FAMILIES

    def few(name, spec, random):
        for case in make[name].make(name, spec, random):
            m, n, k = case.shape
            if m * n * k <= 1_700_000:
                yield case

    monkeypatch.setattr(
        products, "FAMILIES", {name: products.ProductFamily(few, f.reason, f.rules) for name, f in make.items()}
    )


once = accepted_once()


def verdict(function, spec="nvfp4", families=FAMILIES):
    return check(Subject.of(function), fp4ref.profiles[spec], families)


@pytest.mark.rule("GEM-13", "GEM-14", "GEM-5")
@pytest.mark.parametrize(
    "order",
    [
        "pairwise",
        "truncated",
        *(pytest.param(name, marks=pytest.mark.heavy) for name in ("sequential", "reversed", "float64-truncated")),
    ],
)
def test_every_order_of_float32_additions_conforms(order):
    report = verdict(kernel(lambda p: added(p, order)))
    assert report.ok, report.headline
    assert "no bit differs" in report.headline


def nearest(kind):
    return lambda y: y.astype(kind)


@pytest.mark.rule("GEM-8", "GEM-13")
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_right_kernels_of_narrower_results_conform(name):
    kind = ml_dtypes.bfloat16 if name == "bfloat16" else np.float16
    report = verdict(kernel(cast=nearest(kind), to=name))
    assert report.ok, report.headline


@pytest.mark.rule("GEM-6")
def test_dividing_by_the_factor_is_a_choice():
    report = verdict(kernel(scale=lambda a, b: a[0] * b[0] / F(7225344)))
    assert report.ok
    assert "amaxes divided by the factor (GEM-6)" in report.headline


def blocks_of(products, change):
    m, n, k = products.shape
    padded = np.concatenate([products, np.zeros((m, n, -k % 16), F)], axis=2)
    return added(change(padded.reshape(m, n, -1, 16)).reshape(m, n, -1))


def swapped_scales(buffer, rows, blocks):
    order = [k ^ 1 if k ^ 1 < blocks else k for k in range(blocks)]
    return untiled(buffer, rows, blocks)[:, order]


def as_linear(buffer, rows, blocks):
    return buffer.ravel()[: rows * blocks].reshape(rows, blocks)


def swapped_digits(buffer, rows, blocks):
    return untiled(buffer, rows, blocks, swap=True)


def direct(function, to="float32", scale=alpha):
    """A kernel that is given everything."""

    @fp4ref.kernel(operation="gemm", inputs=INPUTS, outputs=("values",), scale_layout="tiled_128x4", to=to)
    def gemm(ad, as_, aa, bd, bs, ba, m, n, k):
        with np.errstate(all="ignore"):
            return np.asarray(function(ad, as_, bd, bs, m, n, k) * scale(aa, ba), F)

    return gemm


def values_of(data, scales, rows, k):
    spread = np.arange(k) // 16
    return e2m1(nibbles(data, k)) * e4m3(untiled(scales, rows, -(-k // 16)))[:, spread]


def not_transposed(ad, as_, bd, bs, m, n, k):
    left, right = values_of(ad, as_, m, k), values_of(bd, bs, n, k)
    return left @ (right if n == k else right.T)


def without_signs(ad, as_, bd, bs, m, n, k):
    left, right = values_of(ad, as_, m, k), values_of(bd & 0x77, bs, n, k)
    return left @ right.T


def high_nibble_first(ad, as_, bd, bs, m, n, k):
    if k % 2:
        return values_of(ad, as_, m, k) @ values_of(bd, bs, n, k).T
    return values_of(ad, as_, m, k) @ values_of(bd << 4 | bd >> 4, bs, n, k).T


def one_scale_for_b(ad, as_, bd, bs, m, n, k):
    spread = np.arange(k) // 16
    left = e2m1(nibbles(ad, k)) * e4m3(untiled(as_, m, -(-k // 16)))[:, spread]
    return left @ e2m1(nibbles(bd, k)).T


HEAVY = pytest.mark.heavy  # a few run by default
MUTANTS = {
    "no alpha": (kernel(scale=lambda a, b: F(1)), "the global amaxes and the factor are left out"),
    "amax of B left out": (kernel(scale=lambda a, b: a[0] * (F(1) / F(7225344))), "the amax of B is left out"),
    "amax of A left out": (kernel(scale=lambda a, b: b[0] * (F(1) / F(7225344))), "the amax of A is left out"),
    "factor without 36": (kernel(scale=lambda a, b: a[0] * b[0] * (F(1) / F(448 * 448))), "lacks the element maxima"),
    "factor of 256": (kernel(scale=lambda a, b: a[0] * b[0] * (F(1) / F(1536 * 1536))), "scale maxima of 256"),
    "each amax alone": (
        direct(lambda *x: np.float64(1) * added(terms(*x)), scale=lambda a, b: a[0] * (F(1) / F(7225344)) * b[0]),
        "the factor multiplies the amax of A before that of B",
    ),
    "last block missing": (kernel(lambda p: blocks_of(p, lambda b: b[:, :, :-1])), "the last block is left out"),
    "first block twice": (
        kernel(lambda p: blocks_of(p, lambda b: np.concatenate([b[:, :, :1], b], axis=2))),
        "the first block is added twice",
    ),
    "last block twice": (
        kernel(lambda p: blocks_of(p, lambda b: np.concatenate([b, b[:, :, -1:]], axis=2))),
        "the last block is added twice",
    ),
    "tail of a tile of 4 missing": (
        kernel(lambda p: blocks_of(p, lambda b: b[:, :, : b.shape[2] // 4 * 4])),
        "blocks that do not fill a tile of 4 are left out",
    ),
    "scales swapped": (kernel(scales=swapped_scales), "block scales of A and B: neighbouring blocks are swapped"),
    "scales read as linear": (kernel(scales=as_linear), "the scales of A and B are read as linear"),
    "digits of a tile swapped": (kernel(scales=swapped_digits), "wrong"),
    "float16 sums": (kernel(lambda p: added(p, "float16")), "11 significant bits instead of 24, as float16"),
    "bfloat16 sums": (kernel(lambda p: added(p, "bfloat16")), "8 significant bits instead of 24, as bfloat16"),
    "14-bit sums": (kernel(lambda p: added(p, "14 bits")), "14 significant bits"),
    "float16 sums, bfloat16 result": (
        kernel(lambda p: added(p, "float16"), cast=nearest(ml_dtypes.bfloat16), to="bfloat16"),
        "11 significant bits",
    ),
    "sums rounded to bfloat16": (
        kernel(lambda p: added(p).astype(ml_dtypes.bfloat16).astype(F)),
        "8 significant bits|sums are rounded to bfloat16",
    ),
    "result truncated": (
        kernel(cast=lambda y: (y.view(np.uint32) & 0xFFFF0000).view(F).astype(ml_dtypes.bfloat16), to="bfloat16"),
        "truncated to bfloat16",
    ),
    "B not transposed": (direct(not_transposed), "d = A B instead of A B"),
    "signs lost": (direct(without_signs), "the signs of B are lost"),
    "high nibble first": (direct(high_nibble_first), "the high nibble of A is taken first|high nibble of B"),
    "B without its scales": (direct(one_scale_for_b), "the block scales of B are left out"),
    "no amax, high nibble": (
        direct(high_nibble_first, scale=lambda a, b: F(1)),
        "high nibble .* and the global amaxes and the factor are left out",
    ),
}


@pytest.mark.rule("GEM-13", "GEM-14", "GEM-5", "CNF-2")
@pytest.mark.parametrize("name", [n if i % 12 == 0 else pytest.param(n, marks=HEAVY) for i, n in enumerate(MUTANTS)])
def test_mutants_are_caught_and_named(name):
    function, text = MUTANTS[name]
    report = verdict(function)
    assert not report.ok
    assert re.search(text, report.headline), report.headline


@pytest.mark.heavy
@pytest.mark.rule("CNF-26", "SPC-4")
def test_scales_read_as_a_layout_that_was_registered_later():
    """Bands of two rows, whose bytes alternate: no named layout stores them so."""

    def in_bands(buffer, rows, blocks):
        r, c = np.indices((rows, blocks))
        return buffer.ravel()[r // 2 * 2 * blocks + c * 2 + r % 2]

    @fp4ref.kernel(operation="gemm", inputs=INPUTS, outputs=("values",), multiple=(2, 16))
    def gemm(ad, as_, aa, bd, bs, ba, m, n, k):
        with np.errstate(all="ignore"):
            return np.asarray(added(terms(ad, as_, bd, bs, m, n, k, scales=in_bands)) * alpha(aa, ba), F)

    form = fp4ref.Layout("acme.bands", "m(2,*) k(*): m0 k0 m1; pad m refused")
    assert "acme.bands" not in verdict(gemm, families=("powers",)).headline
    fp4ref.register(form, source="a test")
    try:
        assert "the scales of A and B are read as acme.bands" in verdict(gemm, families=("powers",)).headline
    finally:
        fp4ref.LAYOUTS.forget(form.name)


@pytest.mark.rule("GEM-14")
def test_a_product_that_is_rounded_leaves_the_bound():
    def rounded_products(p):
        small = p.astype(ml_dtypes.bfloat16).astype(F)
        return added(np.where(np.abs(p) < 2.0**20, p, small) if p.shape[2] < 512 else small)

    report = verdict(kernel(rounded_products), families=("random",))
    assert "sums leave the bound of float32 additions (GEM-14)" in report.headline


@pytest.mark.rule("GEM-3")
def test_a_nan_scale_that_gets_lost():
    report = verdict(kernel(decode=lambda codes: np.nan_to_num(e4m3(codes), nan=480)))
    assert "NaN scales of A and B are read as the number after the largest" in report.headline
    report = verdict(kernel(decode=lambda codes: np.nan_to_num(e4m3(codes), nan=7)), families=("special",))
    assert "NaN or infinities are not handled as GEM-3 says" in report.headline


# Other formats


def of_library(mode, spec, *, to="float32", layout="tiled_128x4"):
    names = INPUTS if spec.global_scale != "none" else NO_AMAX

    @fp4ref.kernel(operation="gemm", inputs=names, outputs=("values",), scale_layout=layout, to=to)
    def gemm(*given):
        sides = sides_of(spec, dict(zip(names, given, strict=True)), layout)
        return fp4ref.gemm(*sides, mode, dtype=to)

    return gemm


@pytest.mark.sampled(4)
@pytest.mark.rule("GEM-13", "GEM-14", "GEM-4", "GEM-7", "GEM-11")
@pytest.mark.parametrize("mode", ["exact", "blockwise", "fast"])
@pytest.mark.parametrize("name", ["nvfp4-row-scaled", "nvfp4-2d", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2"])
def test_our_modes_conform(name, mode):
    report = verdict(of_library(mode, fp4ref.profiles[name]), name)
    assert report.ok, report.headline


@pytest.mark.heavy
@pytest.mark.rule("GEM-9", "UE4M3-1")
def test_scales_with_a_second_zero():
    spec, cases = "ggml.nvfp4", ("powers", "special", "special-tails", "second-zero")
    right = of_library("fast", fp4ref.profiles[spec], layout="linear")
    assert verdict(right, spec, cases).ok

    @fp4ref.kernel(operation="gemm", inputs=NO_AMAX, outputs=("values",))
    def limited(a_data, a_scales, *rest):
        return right(a_data, np.where(a_scales == 0x7F, 0x7E, a_scales), *rest)

    assert "wrong: the second zero of a scale" in verdict(limited, spec, cases).headline


@pytest.mark.rule("GEM-7", "GEM-13")
def test_row_scaled_mutants():
    inverse = F(1) / F(7225344)
    first = direct(lambda *x: added(terms(*x)), scale=lambda a, b: a[:, None] * b[None] * inverse)
    report = verdict(first, "nvfp4-row-scaled", ("powers", "alpha"))
    assert "amaxes of rows are multiplied into alpha first" in report.headline
    same = direct(lambda *x: added(terms(*x)) * inverse, scale=lambda a, b: a[0] * b[0])
    report = verdict(same, "nvfp4-row-scaled", ("powers", "alpha"))
    assert "the first row's amax serves every row" in report.headline


@pytest.mark.rule("CNF-8", "LAY-6")
def test_declarations():
    for layout in (form.name for form in STANDARD_LAYOUTS):
        report = verdict(of_library("fast", fp4ref.MXFP4, layout=layout), "mxfp4", ("dense", "ragged"))
        assert report.ok, report.headline

    @fp4ref.kernel(operation="gemm", inputs=INPUTS, outputs=("values",), multiple=(32, 128))
    def strict(*given):
        raise ValueError("never")

    report = verdict(strict)
    assert "raised in" in report.headline
    assert not report.skipped  # operands are padded to the multiples

    @fp4ref.kernel(operation="gemm", inputs=("a_data", "alpha"), outputs=("values",))
    def told(data, alpha): ...

    with pytest.raises(fp4ref.DomainError, match=r"input alpha for mxfp4, need a spec with a global scale \[CNF-8\]"):
        verdict(told, "mxfp4")
    with pytest.raises(fp4ref.DomainError, match="input alpha for nvfp4-row-scaled, need a_amax"):
        verdict(told, "nvfp4-row-scaled")


@pytest.mark.rule("GEM-13")
def test_as_an_assertion():
    assert fp4ref.testing.assert_conforms(of_library("fast", fp4ref.MXFP4), "mxfp4", families=["powers"]).ok
    with pytest.raises(AssertionError, match="the global amaxes and the factor are left out"):
        fp4ref.testing.assert_conforms(kernel(scale=lambda a, b: F(1)), "nvfp4", families=["powers", "alpha"])


# The command

SOURCE = """
import numpy as np
import fp4ref

INPUTS = ("a_data", "a_scales", "a_amax", "b_data", "b_scales", "b_amax", "rows", "columns", "depth")

def operand(data, scales, amax, rows, depth):
    parts = fp4ref.DirectionData(data, scales, amax)
    return fp4ref.Quantized(fp4ref.NVFP4, (rows, depth), "float32", "linear", parts)

@fp4ref.kernel(operation="gemm", inputs=INPUTS, outputs=("values",))
def gemm(a_data, a_scales, a_amax, b_data, b_scales, b_amax, rows, columns, depth):
    a, b = operand(a_data, a_scales, a_amax, rows, depth), operand(b_data, b_scales, b_amax, columns, depth)
    return fp4ref.gemm(a, b, "fast", backend="numpy")

@fp4ref.kernel(operation="gemm", inputs=INPUTS, outputs=("values",))
def wrong(*given):
    return gemm(*given) * np.float32(2)
"""


here = folder_with(SOURCE, "kernel.py")


@pytest.mark.usefixtures("here")
@pytest.mark.rule("CNF-2", "GEM-13")
def test_the_command():
    text = printed("verify --kernel kernel.py:gemm --spec nvfp4")
    assert "\nkernel.py:gemm: conforms to GEMM of nvfp4: no bit differs in " in f"\n{text}"
    text = printed("verify --kernel kernel.py:wrong --spec nvfp4 --family powers --family alpha", 1)
    assert "wrong: " in text
    assert "powers-up d[0, 0]: got " in text
    text = printed("verify --kernel kernel.py:wrong --spec nvfp4 --json --case powers-up", 1)
    found = json.loads(text[text.index("{") :])
    assert found["verdict"] == "wrong"
    assert found["cases"] == 1
    assert "no case 'powers-sideways'" in printed(
        "verify --kernel kernel.py:gemm --spec nvfp4 --case powers-sideways", 2
    )
    refused = printed("verify --kernel kernel.py:gemm --spec nvfp4 --save-case x.npz", 2)
    assert "--save-case: not for a gemm" in refused
    refused = printed("verify --kernel kernel.py:gemm --spec nvfp4 --level 1 --save-case x.npz", 2)
    assert "--level and --save-case: not for a gemm" in refused
    assert "family 'element-ties' of gemm" in printed(
        "verify --kernel kernel.py:gemm --spec nvfp4 --family element-ties", 2
    )
