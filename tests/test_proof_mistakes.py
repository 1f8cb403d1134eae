"""Every certificate has a mistake that its claim refutes: a check that cannot fail proves nothing."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from covering import few, heavy_or_release
from fp4ref import api, arguments, arrays, formats, hadamard, philox, plans, repeats
from fp4ref import arithmetic as ar
from fp4ref.formats import codec as codec_module
from fp4ref.layout import value as layouts
from fp4ref.model import tiles
from fp4ref.proof import (
    code_values,
    conversions,
    encoders,
    estimates,
    golden_scales,
    host,
    products,
    solver,
    transforms,
)
from fp4ref.proof.catalogue import claims
from fp4ref.proof.claims import ClaimSubject
from refuting import decided, planted, replaced
from tests.test_proof_parts_mistakes import NATIVE_PARTS, PYTHON_PARTS
from tests.test_proof_places_mistakes import NATIVE_PLACES, PYTHON_PLACES
from tests.test_proof_theorems_mistakes import REFUTED

__all__ = ["planted"]  # a fixture
SUMS = ("codec.h", "0x1p23f + 2.0f", "0x1p23f + 3.0f")
ADDED = ("codec.h", "binade + ((unsigned)shift << 23)", "binade + ((unsigned)(shift + 1) << 23)")
SUBNORMAL_VALUES = ("codec.h", "(normal - power_of_two(-Format::bias)) * 2.0f", "normal - power_of_two(-Format::bias)")
ONE_DIVISION = ("arithmetic.h", "1.0f / (s * (1.0f / g)), FLOAT_MAX", "g / s, FLOAT_MAX")
ONE_PART = ("block.h", "high, x * low)", "high, 0.0f)")
DECODED = (
    "arithmetic.h",
    "s * A * (1.0f / (S::element_max * S::scale_max))",
    "s * (A * (1.0f / (S::element_max * S::scale_max)))",
)
STEP_TIES = ("thresholds.h", "0x2401u * BOTH", "0x2400u * BOTH")
NATIVE = {  # claim: file of the header, text, its replacement
    "encode-e2m1/header": SUMS,
    "encode-e2m1-overflow/header": ("codec.h", "Overflow < 0 ? 7.0f : 8.0f", "Overflow < 0 ? 7.0f : 7.0f"),
    "encode-e4m3/header": ("codec.h", "Overflow < 0 ? Format::codes - 1", "Overflow < 0 ? Format::codes - 2"),
    "encode-e4m3-nan/header": ("codec.h", "bits_of(x) >> 31 ? NegativeNaN : NaN", "bits_of(x) >> 31 ? NaN : NaN"),
    "encode-e5m2/header": ADDED,
    "encode-e5m2-infinity/header": ("codec.h", "Format::codes - 1 : Overflow)", "Format::codes - 1 : NaN)"),
    "encode-e2m3/header": ADDED,
    "encode-int8/header": ("signs.h", "(codes + sign_bit - code) &", "(codes - code) &"),
    "encode-ue4m3/header": ADDED,
    "encode-ue5m3/header": ("codec.h", "Overflow < 0 ? Format::codes - 1", "Overflow < 0 ? Format::codes - 2"),
    **{
        f"encode-sign-{name}/header": (
            *("codec.h", "bits_of(x) >> (32 - Format::bits) & Format::sign_bit"),
            "x < 0.0f ? Format::sign_bit : 0u",
        )
        for name in ("e4m3", "e5m2")
    },
    "encode-e3m2/header": ADDED,
    "encode-e8m0/header": ("codec.h", "mantissa > 0x400000u", "mantissa >= 0x400000u"),
    **{f"values-{name}/header": SUBNORMAL_VALUES for name in ("e2m1", "e2m3", "e3m2", "e4m3")},
    "values-e5m2/header": ("codec.h", "Format::has_infinity && i == Format::codes", "Format::has_infinity"),
    "values-e8m0/header": ("codec.h", "code << 23 : 0x400000u", "code << 23 : 0u"),
    "values-int8/header": ("signs.h", "code & sign_bit ? (int)codes : 0", "code > sign_bit ? (int)codes : 0"),
    "values-ue4m3/header": ("signs.h", "code == Codes ? 0.0f", "code > Codes ? 0.0f"),
    "values-ue5m3/header": ("codec.h", "(i < Format::codes ? bits_of(value", "(i <= Format::codes ? bits_of(value"),
    "round-bfloat16/header": ("bits.h", "u + 0x7fffu + (u >> 16 & 1u)", "u + 0x8000u"),
    "round-float16/header": ("bits.h", "m + 0xfffu + (m >> 13 & 1u)", "m + 0x1000u"),
    "widen-bfloat16/header": ("bits.h", "float_of(w << 16)", "float_of((w & 0x7fffu) << 16)"),
    "widen-float16/header": ("bits.h", "magnitude < 0x7c00u << 13 ? finite", "magnitude <= 0x7c00u << 13 ? finite"),
    "mx-floor/header": (
        "arithmetic.h",
        "shared_scale<S>(bits_of(a) >> 23)",
        "shared_scale<S>((bits_of(a) + 1u) >> 23)",
    ),
    "mx-ceil/header": ("arithmetic.h", "(bits_of(a) + 0x7fffffu) >> 23)", "(bits_of(a) + 0x7ffffeu) >> 23)"),
    "mx-even/header": ("arithmetic.h", "half = 1u << (22 - ", "half = 1u << (21 - "),
    "encoding-448/header": ("arithmetic.h", "A == 0.0f || g == 0.0f", "A == 0.0f"),
    "encoding-256/header": (
        "arithmetic.h",
        "S::scale_max * S::element_max / A, FLOAT_MAX",
        "S::element_max * (S::scale_max / A), FLOAT_MAX",
    ),
    "block-scale/header": ("arithmetic.h", "a * (g * SIXTH)", "a * g * SIXTH"),
    "factor/header": ONE_DIVISION,
    "factor-significands/header": ONE_DIVISION,
    "decode/header": DECODED,
    "decode-significands/header": DECODED,
    "block/header": SUMS,
    "block-all/header": SUMS,
    "over-2688/header": ONE_PART,
    "over-1536/header": ONE_PART,
    "over-6/header": ONE_PART,
    "stochastic/header": ("codec.h", "(Format::mantissa_bits + 8)", "(Format::mantissa_bits + 7)"),
    "stochastic-mean/header": ("codec.h", "half = sum >= 0x3f000000u", "half = sum > 0x3f000000u"),
    "reciprocal/header": ("reciprocal.h", "rounding = 2023", "rounding = 2022"),
    "hadamard-signs/header": ("hadamard.h", "? -0.25f : 0.25f", "? -0.25f : 0.25001f"),
    "estimate-units/header": (
        "block.h",
        "template of<S, true>(1.0f, s, g, A, 0.0f)",
        "template of<S, true>(1.0f, s, g, A * 1.000001f, 0.0f)",
    ),
    "estimate-narrow/header": (
        "codec.h",
        "exact_product_plus(binade, -size, exact",
        "exact_product_plus(binade, 1.0f - size, exact",
    ),
    "thresholds/header": STEP_TIES,
    **{
        f"quantize-{spec}-{kind}/cpu": SUMS
        for spec in ("nvfp4", "mxfp4")
        for kind in ("float32", "bfloat16", "float16")
    },
    **{
        f"quantize-mxfp8-{of}-{kind}/cpu": ADDED
        for of in ("e4m3", "e5m2")
        for kind in ("float32", "bfloat16", "float16")
    },
    "special-operands/cpu": ("codec.h", "? 0x7f800000u : 0x7fc00000u;", "? 0x7f800000u : 0u;"),
    "gemm-longest/cpu": (
        *("codec.h", "(i << shift) + ((unsigned)(127 - Format::bias) << 23)"),
        "(i << shift) + ((unsigned)(128 - Format::bias) << 23)",
    ),
    **{f"gemm-pairs-{spec}/cpu": SUBNORMAL_VALUES for spec in ("nvfp4", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2")},
    **{f"dequantize-{spec}/cpu": SUBNORMAL_VALUES for spec in ("nvfp4", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2")},
}


HEAVY = ("encode-e4m3/header", "factor/header", "over-6/header", "hadamard-signs/header")


@heavy_or_release(NATIVE, HEAVY)
def test_a_mistake_in_the_header_is_refuted(name, planted):
    planted(*NATIVE[name])
    assert decided(name).witness


BY_INPUT = {
    f"{part.factors.__module__}:factors": partial(part.factors, 127 << 23, 1 << 18) for part in (host, transforms)
}


@pytest.mark.heavy
@pytest.mark.parametrize("decide", BY_INPUT.values(), ids=BY_INPUT)
def test_a_mistake_of_thresholds_is_refuted_input_by_input_and_by_runs(decide, planted):
    assert decide(lambda done: None).witness is None
    planted(*STEP_TIES)
    assert decide(lambda done: None).witness


# Python: each plants its mistake by a function of pytest's monkeypatch


def changed(owner, name, change):
    """Return a planter that changes results of a function of a module or class."""

    def plant(patch):
        where = importlib.import_module(owner) if isinstance(owner, str) else owner
        right = getattr(where, name)
        wrong = functools.wraps(right)(lambda *given, **named: change(right(*given, **named), *given))
        wrong.cache_clear = getattr(right, "cache_clear", None)
        for module in [
            where,
            *(importlib.import_module(f"fp4ref_torch.{user}") for user in USERS if where is not user),
        ]:
            for attribute, value in list(vars(module).items()):
                if value is right:
                    patch.setattr(module, attribute, wrong)

    return plant


USERS = ("quantize", "dequantize", "arithmetic", "codecs")


def in_arithmetic(record, name, wrong):
    """Return a planter that replaces a function of an arithmetic, whose record is frozen."""

    def plant(patch):
        before = getattr(record, name)
        patch.setattr(record.__class__, "__setattr__", object.__setattr__)
        patch.setattr(record, name, np.errstate(all="ignore")(wrong))
        assert getattr(record, name) is not before

    return plant


def one_code(name):
    """Return a planter of another code for the one input before the first place at which a code begins."""

    def plant(patch):
        start = int(encoders.expected(name).starts[1])
        wrong = changed(
            formats.Codec, "encode", lambda codes, _, x, *__: np.where(x.view(np.uint32) == start - 1, 1, codes)
        )
        wrong(patch)

    return plant


def one_code_of_torch(name):
    def plant(patch):
        import torch

        start = int(encoders.expected(name).starts[1])
        wrong = changed(
            "fp4ref_torch.codecs",
            "encode",
            lambda codes, x, *_: torch.where(x.view(torch.int32) == start - 1, 1, codes),
        )
        wrong(patch)

    return plant


def next_value(values, form, *_):
    """Return the table of values with the next float in the place of that of code 5."""
    values = values.copy()
    values[5] = np.nextafter(values[5], np.float32(np.inf))
    return values


def one_more(codes, *_):
    return codes + (codes == 3).to(codes.dtype)


def scaled_twice(x, s, g, k):
    return x * g / s


def next_constant(amax, g, k):
    return amax * np.nextafter(np.float32(1) / k.element_max, np.float32(1))


def decoded_otherwise(q, s, amax, k):
    return q * (s * (amax * np.float32(1 / 2688)))


def without_last_bit(words, *_):
    import torch

    return (words.view(torch.int16) & -2).view(words.dtype)


def in_calls(owner, name, wrong):
    """Return a planter for checks of calls, of which nothing is remembered then or later."""

    def plant(patch):
        plans.to_quantize.cache_clear()
        patch.setattr(repeats, "_repeats", {})
        patch.setattr(owner, name, wrong)

    return plant


def flag_by_value(operation, noop, out):
    return noop is not None and bool(noop.sum() != 0), {}


ON_CPU = ("golden", "cpu", "torch")
KINDS = ("float32", "bfloat16", "float16")
WORDS = ("bfloat16", "float16")
MXFP8 = ("mxfp8-e4m3", "mxfp8-e5m2")
PYTHON = {
    "decision-key/golden": replaced(
        codec_module, "_decision", lambda x: (x.view(np.uint32) >> 16 << 1).astype(np.intp)
    ),
    **{f"encode-{name}/golden": one_code(name) for name in encoders.CODECS},
    **{f"encode-{name}/torch": one_code_of_torch(name) for name in encoders.CODECS},
    **{f"values-{name}/golden": changed(codec_module, "_value_table", next_value) for name in code_values.VALUES},
    **{
        f"values-{name}/torch": changed("fp4ref_torch.codecs", "decode", lambda values, *_: values * 1.0000001)
        for name in code_values.VALUES
    },
    **{
        f"round-{name}/golden": replaced(conversions, "INPUT_DTYPES", {name: arrays.INPUT_DTYPES[other]})
        for name, other in (WORDS, WORDS[::-1])
    },
    **{f"round-{name}/torch": changed("fp4ref_torch.exact", f"to_{name}", without_last_bit) for name in WORDS},
    **{f"widen-{name}/golden": changed(tiles, "widen", lambda values, *_: np.abs(values)) for name in WORDS},
    **{
        f"widen-{name}/torch": changed("fp4ref_torch.exact", "widened", lambda values, *_: abs(values))
        for name in WORDS
    },
    **{
        f"mx-{mode}/golden": in_arithmetic(record, "block_scale", ar.block_scale_rceil)
        for mode, record in (("floor", ar.OCP_FLOOR), ("ceil", ar.OCP_CEIL), ("even", ar.OCP_EVEN))
    },
    **{
        f"mx-{mode}/torch": changed("fp4ref_torch.powers_of_two", "exponent", lambda found, *_: found * 2)
        for mode in ("floor", "ceil", "even")
    },
    **{
        f"encoding-{top}/golden": replaced(
            golden_scales,
            "encoding_te",
            lambda amax, k: np.fmin(k.element_max * (k.scale_max / amax), np.float32(3e38)),
        )
        for top in (448, 256)
    },
    "block-scale/golden": replaced(golden_scales, "block_scale_te", lambda a, g, k: np.fmin(a * g * ar.SIXTH, 3e38)),
    "factor/golden": replaced(golden_scales, "scaled_te", scaled_twice),
    "decode/golden": replaced(golden_scales, "dequantized_te", decoded_otherwise),
    "block/golden": replaced(golden_scales, "scaled_te", scaled_twice),
    **{f"quantize-nvfp4-{kind}/golden": in_arithmetic(ar.TE, "scaled", scaled_twice) for kind in KINDS},
    **{
        f"quantize-{spec}-{kind}/golden": in_arithmetic(ar.RCEIL, "block_scale", next_constant)
        for spec in ("mxfp4", *MXFP8)
        for kind in KINDS
    },
    "dequantize-nvfp4/golden": in_arithmetic(ar.TE, "dequantized", decoded_otherwise),
    **{f"dequantize-{spec}/golden": changed(codec_module, "_value_table", next_value) for spec in ("mxfp4", *MXFP8)},
    **{
        f"quantize-{spec}-{kind}/torch": changed("fp4ref_torch.codecs", "encode", one_more)
        for spec in ("nvfp4", "mxfp4", *MXFP8)
        for kind in KINDS
    },
    **{
        f"dequantize-{spec}/torch": changed("fp4ref_torch.codecs", "decode", lambda values, *_: values * 1.0000001)
        for spec in ("nvfp4", "mxfp4", *MXFP8)
    },
    "hadamard-signs/golden": replaced(hadamard, "STRIDES", (1, 2, 4)),
    "hadamard-signs/torch": changed("fp4ref_torch.hadamard", "_butterfly", lambda values, *_: values + 0.25),
    "stochastic-bfloat16/golden": changed(formats.Codec, "_stochastic", lambda index, *_: np.maximum(index, 1)),
    "stochastic-mean/golden": changed(formats.Codec, "_stochastic", lambda index, *_: np.maximum(index, 1)),
    "stochastic-mean/torch": changed("fp4ref_torch.codecs", "encode", one_more),
    **{f"packing-{bits}/golden": changed("fp4ref.packing", "pack", lambda row, *_: row[:, ::-1]) for bits in (4, 6, 8)},
    **{
        f"packing-{bits}/torch": changed("fp4ref_torch.codecs", "pack", lambda row, *_: row.flip(1))
        for bits in (4, 6, 8)
    },
    "stochastic-bfloat16/torch": changed("fp4ref_torch.codecs", "encode", one_more),
    **{
        f"layout-{name}/golden": replaced(
            layouts.Layout,
            "from_linear",
            functools.partialmethod(lambda self, right, s: right(self, s // 2 * 2), layouts.Layout.from_linear),
        )
        for name in ("linear", "tiled_128x4", "tiled_8x4")
    },
    **{
        f"gemm-pairs-{spec}/golden": changed(
            "fp4ref.model.gemm", "rounded", lambda sums, *_: np.nextafter(sums, np.float32(0))
        )
        for spec in ("nvfp4", "mxfp4", *MXFP8)
    },
    **{
        f"gemm-pairs-{spec}/torch": changed("fp4ref_torch.gemm", "finish", lambda result, *_: result * 1.0000001)
        for spec in ("nvfp4", "mxfp4", *MXFP8)
    },
    **{f"transformed-shapes/{subject}": in_calls(arguments, "POINTS", 32) for subject in ON_CPU},
    **{f"no-global-scale/{subject}": in_calls(api, "given_amax", lambda *_: None) for subject in ON_CPU},
    **{f"flags/{subject}": in_calls(api, "read_flag", flag_by_value) for subject in ON_CPU},
    "operands/golden": replaced("fp4ref.multiply", "LONGEST", 48),
    "recipe-nvfp4/torch": changed(
        "fp4ref.te.recipe", "QParams", lambda made, *_: dataclasses.replace(made, stochastic_rounding=False)
    ),
    "recipe-fp8/torch": changed("fp4ref.te.recipe_state", "fp8_dtype", lambda found, *_: type(found).kFloat8E4M3),
    "scale-flags/torch": replaced("fp4ref.te.swizzle", "GEMM", "linear_padded"),
    "aimed-operands/formula": replaced("fp4ref.conformance.families.products.cases", "SIGNIFICANT", 26),
    "added-operands/formula": replaced("fp4ref.conformance.families.products.additions", "STEP", 9),
    "special-operands/golden": changed("fp4ref.model.gemm", "exact", lambda sums, *_: np.nan_to_num(sums)),
    "special-operands/torch": changed("fp4ref_torch.gemm", "finish", lambda sums, *_: sums.nan_to_num()),
    "settings/golden": replaced("fp4ref.spec", "POINTS", 8),
    "gemm-longest/golden": changed("fp4ref.model.gemm", "_fits", lambda *_: True),
    "gemm-longest/torch": changed("fp4ref_torch.gemm", "finish", lambda result, *_: result * 1.0000001),
    "gemm-limit/formula": replaced(products, "LONGEST", 1217395),
    "gemm-contributions/formula": replaced(products, "CUDA_E2M1", formats.CUDA_E4M3),
    "gemm-operands/formula": replaced(products, "EXACT", ((formats.CUDA_E2M1, formats.CUDA_E8M0, 0, 0xFD),)),
    "philox-bits/golden": replaced(philox, "KEY_STEPS", (0x9E3779B9, 0xBB67AE86)),
    "philox-bijection/formula": replaced(philox, "MULTIPLIERS", (0xD2511F53, 0xCD9E8D58)),
}
FORMULAS = {  # claim: an argument of the function that decides it, and a wrong value
    "e2m1-sums/formula": (solver.sums, {"ones": solver.ONES + 1}),
    "power-of-two/formula": (solver.power_of_two, {"byte_of_one": 126}),
    "estimate-margin/formula": (estimates.margin, {"stated": {"mae": (Fraction(60), Fraction(64))}}),
    "stochastic-index/formula": (solver.drawn, {"lowest": 0x40000000}),
}
QUICK = (
    "decision-key/golden",
    "values-e5m2/golden",
    "packing-6/golden",
    "quantize-mxfp4-float16/golden",
    "layout-tiled_8x4/golden",
    "dequantize-mxfp8-e5m2/golden",
)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.release) for name in PYTHON]
)
@pytest.mark.filterwarnings("ignore:All-NaN slice")  # of a witness whose block is NaN
def test_a_mistake_in_python_is_refuted(name, monkeypatch):
    for library in {"torch": ("torch",), "formula": ("z3", "cvc5")}.get(name.rpartition("/")[2], ()):
        pytest.importorskip(library)
    tables = (codec_module._value_table, codec_module._code_table, codec_module._index_table)
    for table in tables:
        table.cache_clear()
    try:
        with monkeypatch.context() as patch:
            PYTHON[name](patch)
            assert decided(name).witness
    finally:
        for table in tables:
            table.cache_clear()


@pytest.mark.rule("E2M1-3", "BLK-10", "SR-2")
@pytest.mark.parametrize("name", few([*FORMULAS], 1))
def test_a_mistake_in_a_formula_is_refuted(name):
    for library in ("z3", "cvc5"):
        pytest.importorskip(library, reason="the extra `prove` is not installed")
    decide, wrong = FORMULAS[name]
    assert decide(lambda done: None, **wrong).witness


def test_every_certificate_has_a_mistake():
    """A long claim may share the function that decides it with one that has a mistake; a GPU's share those of others.

    Sweeps on a GPU have mistakes of their own.
    """
    tables = {*NATIVE, *PYTHON, *FORMULAS, *NATIVE_PLACES, *PYTHON_PLACES, *REFUTED, *NATIVE_PARTS, *PYTHON_PARTS}
    assert tables <= claims().keys()
    functions = {(claim.decider(), claim.subject) for name, claim in claims().items() if name in tables}
    functions |= {(name, ClaimSubject.HEADER) for name in BY_INPUT}
    lacking = [
        name
        for name, claim in claims().items()
        if name not in tables
        and claim.subject is not ClaimSubject.CUDA
        and not (claim.long and (claim.decider(), claim.subject) in functions)
    ]
    assert lacking == []
    of_device = [claim for claim in claims().values() if claim.subject is ClaimSubject.CUDA]
    of_header = [claim for claim in of_device if claim.decider() == "fp4ref.proof.device:on_device"]
    apart = [claim for claim in of_header if claim.name.replace("/cuda", "/header") not in tables]
    assert {
        (claim.covers[0], ClaimSubject.HEADER) for claim in apart
    } <= functions  # else the processor has its own text
    of_whole_calls = {claim.decider() for claim in claims().values() if claim.subject is ClaimSubject.TORCH}
    swept = {f"fp4ref.proof.device_sweeps:{name}" for name in ("bfloat16", "drawn", "float32", "both")}
    others = {claim.decider() for claim in of_device if claim not in of_header}
    of_pairs = {"fp4ref.proof.device:converted", "fp4ref.proof.six_bits:paired", "fp4ref.proof.six_bits:placed"}
    of_device_alone = {f"fp4ref.proof.device_products:{name}" for name in ("values", "decoded", "finished", "factors")}
    of_groups = {"fp4ref.proof.group_calls:grouped"}
    assert others <= {*of_whole_calls, *swept, *of_pairs, *of_device_alone, *of_groups}
