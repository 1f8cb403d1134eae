"""Qwix 0.1.8 and JAX 0.10.2 on XLA's CPU: what they returned for aimed inputs, executed on 2026-11-23."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import fp4ref
from fp4ref.arithmetic_xla import fused, logarithm
from fp4ref.catalogue import PROMISES
from fp4ref.conformance.judge.promised import promised
from fp4ref.model.quantize import quantize

F = np.float32
# x and jax.numpy.log(x); but for the last two, a logarithm that is rounded once differs.
LOGARITHMS = """
    40758a5c 3fac1b28, 4133eebe 401ae12c, 26bf5fc2 c2090548, 3e134296 bff83a0c, 5195a20f 41c8e02a, 42117c7e 4066009e,
    38000000 c1265af6, 53800000 41ddce9e
"""


@pytest.mark.rule("PRO-8")
def test_xla_s_logarithm():
    pairs = np.array([[int(word, 16) for word in pair.split()] for pair in LOGARITHMS.split(",")], np.uint32)
    x, expected = pairs[:, 0].copy().view(F), pairs[:, 1].copy()
    assert logarithm(x).view(np.uint32).tolist() == expected.tolist()
    rounded = np.log(x.astype(np.float64)).astype(F).view(np.uint32)
    assert (rounded != expected)[:6].all()


@pytest.mark.rule("PRO-8")
def test_a_fused_operation_rounds_once():
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0x3F000000, 0x41000000, 400, dtype=np.uint32).view(F) for _ in range(2))
    near = (-(a * b) * (1 + rng.integers(-2, 3, 400) * 2.0**-23)).astype(F)
    for c in (near, F(2.0**24) * near, np.full(400, F(2.0**-30))):
        for x, y, z, got in zip(a, b, c, fused(a, b, c), strict=True):
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            candidates = {float(np.nextafter(got, F(side))) for side in (-np.inf, np.inf)}
            distance = abs(Fraction(float(got)) - exact)
            assert all(distance <= abs(Fraction(other) - exact) for other in candidates), (x, y, z)


@pytest.mark.rule("PRO-1", "PRO-8")
@pytest.mark.parametrize(
    ("name", "bits", "expected"),
    [  # amax over 448, or 6, times the rounded reciprocal is a power of two, whose logarithm comes out above an integer
        ("qwix.mxfp8@0.1.8", 0x3C5FFFFF, 0x71),
        ("qwix.mxfp8@0.1.8", 0x3C5FFFFE, 0x70),
    ],
)
def test_scales_beside_powers_of_two(name, bits, expected):
    x = np.zeros((2, 64), F)
    x[:, 0] = np.uint32(bits).view(F)
    assert quantize(x, fp4ref.profiles[name]).scales[0, 0] == expected


@pytest.mark.rule("PRO-1")
def test_a_promise_ends_where_a_maximum_is_too_small():
    promise = PROMISES["jax.nvfp4"]
    x = np.zeros((2, 16), F)
    for amax, covered in ((2688 * 2.0**-126, True), (2687 * 2.0**-126, False), (0, False)):
        x[0, 3] = -amax
        assert promised(promise, x) is covered
        assert promised(PROMISES["jax.mxfp8"], x)
    assert promise.record()["least"] == 2688 * 2.0**-126
