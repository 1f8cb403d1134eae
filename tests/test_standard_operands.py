"""Operands that products take or refuse: each row of the rules is tried, on operands that differ in nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref.errors import DomainError
from fp4ref.formats import CUDA_E8M0, FORMATS, Codec, Format
from standard_rules import RULES, rows_of

F = np.float32
X = np.ones((32, 64), F)
WIDE = Format("vendor.e6m1_in_the_table", 6, 1, bias=31, codes=128)


def quantized(base="nvfp4", **fields):
    """Ones, in a specification that differs in some fields."""
    spec = fp4ref.profiles[base]
    return fp4ref.quantize(X, spec.replace(name=f"{base} {fields}", **fields) if fields else spec, backend="numpy")


def outcome(a, b, rule, names=True, **arguments):
    """Return the result of a call in the words of the rule's table."""
    refusals = []
    try:
        fp4ref.gemm(a, b, backend="numpy", **arguments)
    except DomainError as error:
        refusals = [error]
    assert [error.rule for error in refusals] in ([], [rule])
    assert not names or all(q.spec.name in str(error) for q in (a, b) for error in refusals)
    return "refused" if refusals else "fit"


@pytest.mark.rule("GEM-57")
@pytest.mark.example("GEM-57")
def test_blocks_have_one_width():
    for *cells, result in rows_of("GEM-57"):
        sizes = [fp4ref.Block(*map(int, cell.split(" x "))) for cell in cells]
        assert outcome(*(quantized(block=size) for size in sizes), "GEM-57") == result


@pytest.mark.rule("GEM-58")
@pytest.mark.example("GEM-58")
def test_both_have_a_global_scale_or_neither():
    for *cells, result in rows_of("GEM-58"):
        kinds = [quantized(global_scale=cell.strip("`")) for cell in cells]
        assert outcome(*kinds, "GEM-58") == outcome(*kinds[::-1], "GEM-58") == result


def steps(form):
    """The largest finite value of a format, counted in its smallest one above 0."""
    values = [
        Fraction(float(v))
        for v in Codec(format=form, nan=(0, 0)).decode(np.arange(form.codes, dtype=np.uint8))
        if 0 < v < np.inf
    ]
    return max(values) / min(values)


@pytest.mark.rule("GEM-60")
@pytest.mark.example("GEM-60")
def test_values_span_at_most_62_bits():
    most = int(re.search(r"more than (\d+) bits", RULES["GEM-60"].text)[1])
    assert f"span at most {most} bits" in RULES["GEM-60"].title
    for exponents, result in ((most, "fit"), (most + 1, "refused")):  # the largest value has as many bits
        form = Format(f"vendor.e6m1_{exponents}", 6, 1, bias=31, codes=2 * exponents)
        assert int(steps(form)).bit_length() == exponents
        q = quantized("mxfp4", element=Codec(format=form, nan=(0, 0), sign="bit"))
        assert outcome(q, q, "GEM-60") == result
    for element, scale, bits, result in rows_of("GEM-60"):
        form = FORMATS.get(element.lower(), WIDE)
        span = steps(form) * (1 if scale == "E8M0" else steps(FORMATS[scale.lower()]))
        assert int(span - Fraction(1, 2)).bit_length() == int(bits)
        assert (int(bits) > most) == (result == "refused")
        base = "mxfp4" if scale == "E8M0" else "nvfp4"
        codec = Codec(format=form, nan=(0, 0), sign="bit")
        q = quantized(base, element=codec, **({"scale": CUDA_E8M0} if base == "mxfp4" else {}))
        assert outcome(q, q, "GEM-60") == result


@pytest.mark.rule("GEM-61")
@pytest.mark.example("GEM-61")
def test_arrays_are_on_one_device():
    torch = pytest.importorskip("torch")
    q = fp4ref.quantize(torch.ones(32, 64), "mxfp4", backend="torch")
    far = replace(q, row=q.row._replace(data=q.row.data.to("meta"), scales=q.row.scales.to("meta")))
    for a, b, bias, result in rows_of("GEM-61"):
        operands = [q if cell == "CPU" else far for cell in (a, b)]
        given = {"bias": torch.zeros(32, device="cpu" if bias == "CPU" else "meta")} if bias else {}
        assert outcome(*operands, "GEM-61", names=False, **given) == result.replace("computed", "fit")


@pytest.mark.rule("GEM-9")
def test_heights_and_elements_may_differ():
    tall = fp4ref.quantize(X.astype(ml_dtypes.bfloat16), "nvfp4-2d", backend="numpy")
    assert outcome(quantized(), tall, "GEM-9") == "fit"
