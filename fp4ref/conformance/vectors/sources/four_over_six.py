"""Aimed tensors for 4over6 and for stochastic rounding."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.vectors.sources.parts import Json, bits, block, floats
from fp4ref.conformance.vectors.sources.tensors import NVFP4_STOCHASTIC, aimed, both, spread, two_blocks
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.four_over_six import RULES
from fp4ref.spec import FourOverSix, Metric
from fp4ref.specs import NVFP4_2D, NVFP4_4OVER6


def four_over_six_groups() -> list[Json]:
    """Choices that hang on the last bit, on ties, and on the order of additions."""
    rows = {
        ("mae", 448): (
            ("OrderOfAdditions", "bf4d 3f96 bfd4 becf bebb 3fd3 4008 3e8f bfaf 3f1f bf16 3f31 bb5d 3f70 bf0a 3eee"),
            ("OrderOfAdditions", "bf2f 3f87 bfd6 3fa7 3f3d 3eb6 be86 3f1a 3f46 3fb1 3f3b 3f6f 3fd4 bfb1 4031 bf31"),
            ("FourOverSix", "be78 bf75 3f1f be1c 3fb1 bdbd bf67 bf76 4044 3d16 bf96 3f98 3e46 bc0d c023 beb0"),
        ),
        ("mae", 256): (
            ("OrderOfAdditions", "beae bf93 bf41 bede bfc0 3f45 3fb1 bf25 3eb6 bfa5 bfd2 3e01 bfc0 bf67 3f84 bf5b"),
            ("OrderOfAdditions", "3e9c 3ecb bf83 bf58 bf46 3b73 bc32 bec1 bf42 bf0e be78 c000 bf3c 3f1e 3efd 402d"),
            ("OrderOfAdditions", "bf06 bff8 3f98 bcea 3f8b 3f03 bf45 bcf8 bf99 c013 3e74 3f98 bf36 bf63 bedf 3f89"),
        ),
        ("mse", 256): (
            ("Contraction", "3fa7 3f06 401b 3ff4 3f39 3e2c 3d19 bf88 3f4a 3ebe 3fc8 be3e 3ff5 bf8b 3fbb 3eaf"),
            ("Contraction", "be8a be17 bfd6 bfd7 3f0c 3fda bf9d bf87 bfa4 3e60 3e0e be59 3bb1 bf3e 3ec5 3f0a"),
            ("OrderOfAdditions", "3f9b 3f9e 3f18 3eb8 3f01 3fd8 3fc3 bf88 3e69 becc bf89 3f08 3e90 3fa8 3f97 3fd7"),
        ),
        ("max", 448): (
            ("FourOverSix", "bf4d 3f96 bfd4 becf bebb 3fd3 4008 3e8f bfaf 3f1f bf16 3f31 bb5d 3f70 bf0a 3eee"),
        ),
    }
    groups = []
    for (metric, top), witnesses in rows.items():
        spec = NVFP4_4OVER6.replace(
            name=f"nvfp4-4over6 {metric} {top}", four_over_six=FourOverSix(metric=Metric(metric), scale_max=top)
        )
        tests = [
            *((flag, "amax 8", bits(words, "bfloat16")[None], {"amax": [8.0]}) for flag, words in witnesses),
            (
                "FourOverSix",
                "exact in both: a tie keeps the first",
                block(floats("4 2 -1", "bfloat16")),
                {"amax": [16.0]},
            ),
            ("FourOverSix", "zeros, and a block beside them", two_blocks("0 -0", "3 -1 0.5")),
            ("FourOverSix NaN", "NaN errors keep the first", block(floats("nan 3 -1"))),
            ("FourOverSix Infinity", "Inf", block(floats("inf 3 -1"))),
            ("FourOverSix WideRange", "blocks of all magnitudes", spread((2, 48), "bfloat16", 30 + top, 7)),
        ]
        groups.append(aimed("FOS-1 FOS-2 FOS-3 FOS-5 FOS-6", spec, tests))
    for difference in ("scaled_units", "scaled_units_float16", "dequantized_by_reciprocal"):
        spec = NVFP4_4OVER6.replace(
            name=f"nvfp4-4over6 {difference}", four_over_six=FourOverSix(difference=RULES[difference], scale_max=256)
        )
        rule = "FOS-3" if difference == "dequantized_by_reciprocal" else "FOS-4"
        groups.append(aimed(rule, spec, [("FourOverSix", "errors in other units", spread((2, 48), "float32", 33))]))
    tile = NVFP4_4OVER6.replace(name="nvfp4-4over6 2d", block=(16, 16))
    wide = tile.replace(name="nvfp4-4over6 2d 256", four_over_six=FourOverSix(scale_max=256))
    rowwise = NVFP4_4OVER6.replace(name="nvfp4-4over6 row", global_scale="row")
    order, other = "SharedTile OrderOfAdditions", "the transposed block makes another choice"
    return [
        *groups,
        aimed("FOS-5 BLK-7", tile, both(order, "one decision for 16 x 16", spread((16, 17), "bfloat16", 34))),
        aimed("FOS-3 GLB-5", rowwise, [("RowScale", "each row's own maximum", spread((3, 32), "bfloat16", 35))]),
        aimed("FOS-5 BLK-8 BLK-12", wide, both(order, other, sums_by_order())),
    ]


def sums_by_order() -> NDArray[Any]:
    """Return the block of BLK-12, bfloat16 [16, 16]: its errors and their transpose have other sums."""
    x = np.zeros((16, 16), ml_dtypes.bfloat16)
    for place, value in {
        (1, 3): 3.875,
        (1, 14): 0.875,
        (5, 4): -2,
        (5, 10): -5,
        (6, 4): 2.125,
        (7, 6): 0.375,
        (10, 13): 3.375,
        (13, 15): -4.75,
        (15, 0): 4.625,
    }.items():
        x[place] = value
    return x


def stochastic_groups() -> list[Json]:
    """Random bytes of a tensor, in both directions and with a ragged tail."""
    x = spread((3, 18), "bfloat16", 40)
    drawn = (np.arange(54) * 37 % 256).astype(np.uint8)
    row, column = {"random_bits": drawn.reshape(3, 18)}, {"random_bits": drawn.reshape(18, 3), "direction": "column"}
    zeros, most = ({"random_bits": np.full((3, 18), byte, np.uint8)} for byte in (0, 255))
    tests = [
        ("RandomBits", "one byte per element", x, row),
        ("RandomBits ColumnDirection", "bytes of the transpose", x, column),
        ("RandomBits", "all bytes 0: truncation", x, zeros),
        ("RandomBits", "all bytes 255", x, most),
    ]
    tiles = NVFP4_2D.replace(name="nvfp4-2d stochastic", element=STOCHASTIC_E2M1)
    four = [
        ("RandomBits", "under the scale of a tile", x, row),
        ("RandomBits ColumnDirection", "columns of a tile take bytes of their own", x, column),
    ]
    return [aimed("SR-1 SR-2 SR-3", NVFP4_STOCHASTIC, tests), aimed("SR-1 SR-2 BLK-12", tiles, four)]
