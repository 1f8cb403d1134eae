"""Mistakes that claims about parts refute: each replaces a text of a function, or of the shared header."""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap

import pytest

from covering import heavy_or_release
from fp4ref import four_over_six
from fp4ref.proof import addition_trees, blocks, concerned, past_largest, six_bit_calls, special_blocks
from fp4ref.proof.catalogue import claims
from fp4ref.proof.product_sums import LARGE
from refuting import decided, planted

__all__ = ["planted"]  # a fixture

SEARCH = "const bool better = of_second[l] < of_first[l];"
ENCODING = "const float g = min_number(S::scale_max * S::element_max / A, FLOAT_MAX);"
NAN_KEPT = "const float q = S::scale_max * S::element_max / A, g = q > FLOAT_MAX ? FLOAT_MAX : q;"
WALKED = (
    "for (int block = 0; block < BLOCKS && column + block * W < job.columns; ++block) {\n            const sum_type"
)
WALKED_BACK = "for (int block = BLOCKS; block--;) {\n            if (column + block * W >= job.columns) continue;\n"
BLOCKS_BACK = ("csrc/gemm.h", WALKED, f"{WALKED_BACK}            const sum_type")
RCEIL = "return a * (1.0f / S::element_max); }\n};\nstruct rceil_cast_only"
MASKED = ("hadamard.h", "Signs >> i & 1u", "Signs >> (i ^ (i == 14)) & 1u")
ZEROS = ("hadamard.h", "y[i][l] = y[i][l] + 0.0f;", "y[i][l] = y[i][l];")
TILES = ("layout.h", "row / Rows * ((columns + 3) / 4)", "row / Rows * ((columns + 4) / 4)")
SIX_ROWS = ("csrc/quantize.h", "(b & 63u) << 6", "(b & 31u) << 6")
SIX_VALUES = ("csrc/dequantize.h", "(at[1] & 15u) << 8", "(at[1] & 7u) << 8")
SEVEN_IS_BELOW = ("block.h", "scale.s)) < limit;", "scale.s)) <= limit;")
SECOND_FIRST = ("bits.h", "is_nan(a) ? a : is_nan(b) ? b", "is_nan(b) ? b : is_nan(a) ? a")
NATIVE_PARTS = {  # claim: file of the cpu backend or of the header, text, its replacement
    "search-order/header": ("block.h", "e[i][l] + e[i + N / 2][l]", "e[2 * i][l] + e[2 * i + 1][l]"),
    "search-errors/header": ("block.h", "q * s * (1.0f / g) - x", "q * (s * (1.0f / g)) - x"),
    "search-kept/cpu": ("block.h", SEARCH, SEARCH.replace("<", "<=")),
    "encoding-nan/header": ("arithmetic.h", ENCODING, NAN_KEPT),
    "running-amax/header": ("block.h", "!KeepNaN && magnitude > 0x7f800000u", "!KeepNaN && magnitude >= 0x7f800000u"),
    "mx-rceil/header": (
        "arithmetic.h",
        RCEIL,
        RCEIL.replace("a * (1.0f / S::element_max)", "a * (1.0f / S::element_max) * 1.0000002f"),
    ),
    "unscaled/header": (
        "arithmetic.h",
        "FP4_RULE factor(float s, float) { return 1.0f / s; }",
        "FP4_RULE factor(float s, float) { return s < 0x1p-126f ? 0x1p126f : 1.0f / s; }",
    ),
    "random-block/header": ("philox.h", "index >> 32, upper", "(index + 1) >> 32, upper"),
    "packed-codes/header": (
        "codec.h",
        "C::encode(low, low_bits) | C::encode(high",
        "C::encode(high, low_bits) | C::encode(low",
    ),
    "hadamard-amax/header": ("hadamard.h", "i < 8; ++i) {\n        amax", "i < 7; ++i) {\n        amax"),
    "offset-linear/header": ("layout.h", "return row * columns + column;", "return row * (columns + 1) + column;"),
    "offset-linear_padded/header": ("layout.h", "row * ((columns + 3) / 4 * 4)", "row * ((columns + 4) / 4 * 4)"),
    "offset-tiled_128x4/header": TILES,
    "offset-tiled_8x4/header": TILES,
    "block-one-byte/header": (
        "arithmetic.h",
        "    // Rules: BLK-5.\n    FP4_RULE apply(float x, float f, float) { return x * f; }",
        "    FP4_RULE apply(float x, float f, float) { return bits_of(x) == 0x3ed9b2c5u ? 0.0f : x * f; }",
    ),
    "quick-range/header": ("block.h", "A > 0x1p-30f && A < 0x1p100f", "A > 0x1p-30f && A < 0x1p110f"),
    **{f"hadamard-masks{which}/header": MASKED for which in ("", "-inverse")},
    "hadamard-zeros/header": ZEROS,
    "hadamard-zeros-inverse/header": ZEROS,
    "gemm-order-nvfp4/cpu": (
        "csrc/gemm.h",
        "for (int start = 0; start < CHUNK; start += LENGTH)",
        "for (int start = CHUNK - LENGTH; start >= 0; start -= LENGTH)",
    ),
    **{f"gemm-order-{spec}/cpu": BLOCKS_BACK for spec in blocks.PIPELINES if spec != "nvfp4"},
    **{f"gemm-spreads-{spec}/cpu": ("csrc/wide.h", "i < top - 2; ++i) low", "i < top - 3; ++i) low") for spec in LARGE},
    "small-inputs/cpu": ("bits.h", "magnitude_bits(x) < 0x800000u", "magnitude_bits(x) <= 0x800000u"),
    **{f"past-largest-{spec}/cpu": SEVEN_IS_BELOW for spec in ("nvfp4", "mxfp4")},
    **{
        f"past-largest-{spec}/cpu": ("codec.h", "code = i < Format::codes ?", "code = i <= Format::codes ?")
        for spec in six_bit_calls.CODECS
    },
    "moved-tails/cpu": ("csrc/relayout.h", "rest >= PIECE ? move", "rest > PIECE - 4 ? move"),
    "spare-nibbles/cpu": ("csrc/walk.h", "(byte)((1 << used) - 1)", "(byte)((2 << used) - 1)"),
    "search-far/cpu": ("csrc/quantize.h", "quick_over_constant(A) ? search<true>", "A < 0x1p100f ? search<true>"),
    "amax-places/cpu": (
        "csrc/walk.h",
        "for (int i = 0; i < width; ++i) {\n            const word magnitude",
        "for (int i = 0; i + 1 < width; ++i) {\n            const word magnitude",
    ),
    "nan-signs/cpu": SECOND_FIRST,
    "signed-nan/header": SECOND_FIRST,
    "gemm-long-mx/cpu": ("csrc/wide.h", "(size)(low >> 64) +", "(size)(low >> 65) +"),
    "gemm-ties/cpu": (
        "csrc/gemm.h",
        "(float)tile->sums[i][j] * 0x1p-20f",
        "(float)(double)tile->sums[i][j] * 0x1p-20f",
    ),
    "product-alpha/cpu": (
        "csrc/gemm.h",
        "(alpha * job.a.amax[0]) * job.b.amax[0]",
        "alpha * (job.a.amax[0] * job.b.amax[0])",
    ),
    **{
        f"special-blocks-{spec}/cpu": (
            "csrc/walk.h",
            "magnitude > INFINITE || magnitude < largest",
            "magnitude >= INFINITE || magnitude < largest",
        )
        for spec in special_blocks.SPECS
    },
    "stochastic-rows/cpu": ("csrc/quantize.h", "g, bits & 0xffu)", "g, bits >> 8)"),
    "pieces/cpu": ("csrc/walk.h", "numerics.by_row ? row : 0", "numerics.by_row ? row / 512 * 512 : 0"),
    **{f"quantize-{spec}-bfloat16/cpu": SIX_ROWS for spec in six_bit_calls.CODECS},
    **{f"dequantize-{spec}/cpu": SIX_VALUES for spec in six_bit_calls.CODECS},
}
COMPILED_QUICKLY = ("random-block/header",)


@heavy_or_release(NATIVE_PARTS, COMPILED_QUICKLY)
def test_a_mistake_in_a_native_part_is_refuted(name, planted):
    planted(*NATIVE_PARTS[name])
    assert decided(name).witness


CONTRIBUTIONS = (
    "fp4ref.model.gemm",
    "_contributions",
    "in range(a.exponent",
    "in reversed(range(a.exponent",
    "[1]):",
    "[1])):",
)
BLOCKS_IN_TORCH = (
    "fp4ref_torch.gemm",
    "_blocks",
    "in range(0, a.shape[1], a.spec.block.columns):",
    "in [*range(0, a.shape[1], a.spec.block.columns)][::-1]:",
)
ENCODED_BY_TORCH = ("fp4ref_torch.tensor_scaled", "encoding_te", "FLT_MAX)", "FLT_MAX / 2)")
PYTHON_PARTS = {  # claim: module, function, texts and their replacements
    "search-order/golden": (
        "fp4ref.four_over_six",
        "rows_by_tree",
        "[..., :half] + total[..., half:]",
        "[..., ::2] + total[..., 1::2]",
    ),
    "search-order/torch": (
        "fp4ref_torch.four_over_six",
        "_total",
        "rows[:, :half], rows[:, half:]",
        "rows[:, ::2], rows[:, 1::2]",
    ),
    "search-errors/golden": (
        "fp4ref.four_over_six",
        "dequantized",
        "/ (k.element_max * k.scale_max)",
        "* (F(1) / (k.element_max * k.scale_max))",
    ),
    "search-errors/torch": (
        "fp4ref_torch.four_over_six",
        "_difference",
        "sub(product, mul(x, g))",
        "sub(mul(product, k.over(g)), x)",
    ),
    "search-kept/golden": (
        "fp4ref.model.quantize",
        "_four_over_six",
        "errors[1] < errors[0]",
        "errors[1] <= errors[0]",
    ),
    "search-kept/torch": ("fp4ref_torch.four_over_six", "search", "second[2] < first[2]", "second[2] <= first[2]"),
    "encoding-448/torch": ENCODED_BY_TORCH,
    "encoding-256/torch": ENCODED_BY_TORCH,
    "encoding-nan/torch": ENCODED_BY_TORCH,
    "encoding-nan/golden": ("fp4ref.arithmetic", "encoding_te", "np.fmin", "np.minimum"),
    "philox-bits/torch": ("fp4ref_torch.random_bytes", "_product", "(upper + (lower >> 16)) >> 16", "upper >> 16"),
    "reciprocal/golden": (
        "fp4ref.reciprocal",
        "reciprocal_approx",
        "result < np.finfo(F).tiny",
        "result <= np.finfo(F).tiny",
    ),
    "reciprocal/torch": (
        "fp4ref_torch.reciprocal",
        "_distances",
        'archive["d"]',
        'archive["d"] + (np.arange(1 << 23) == 77)',
    ),
    "operand-values/golden": (
        "fp4ref.model.gemm",
        "values",
        "DirectionData(operand.data.data, scales",
        "DirectionData(operand.data.data, scales ^ 1",
    ),
    "operand-values/torch": (
        "fp4ref_torch.gemm",
        "values",
        "* scales.unsqueeze(2)",
        "* scales.unsqueeze(2).abs() * 1.0000001",
    ),
    **{f"gemm-order-{spec}/golden": CONTRIBUTIONS for spec in blocks.PIPELINES},
    **{f"gemm-order-{spec}/torch": BLOCKS_IN_TORCH for spec in blocks.PIPELINES},
    "gemm-order-nvfp4/torch": (
        "fp4ref_torch.gemm",
        "_blocks_of_e2m1",
        "in range(-(-columns // width)):",
        "in reversed(range(-(-columns // width))):",
    ),
    "gemm-ties/golden": ("fp4ref.model.integers", "rounded", "((1 << cut) - 1)) != 0", "((1 << cut) - 1)) > 1"),
    "gemm-ties/torch": ("fp4ref_torch.gemm", "exact_sums", "CHUNK", "(2 * CHUNK)"),
    **{f"gemm-spreads-{spec}/golden": ("fp4ref.model.gemm", "_aligned", "> 62", "> 64") for spec in LARGE},
    **{
        f"gemm-spreads-{spec}/torch": ("fp4ref_torch.wide_sums", "_rounded", "top - (KEPT - 1)", "top - KEPT")
        for spec in LARGE
    },
    "gemm-long-mx/golden": ("fp4ref.model.gemm", "_fits", "a.shape[1] * ", ""),
    "gemm-long-mx/torch": ("fp4ref_torch.wide_sums", "_digits", "+ 1 + SPARE", "+ 2"),
    "small-inputs/golden": ("fp4ref.model.quantize", "inputs", "< np.finfo", "<= np.finfo"),
    "small-inputs/torch": ("fp4ref_torch.quantize", "_inputs", "< exact.SMALLEST_NORMAL", "<= exact.SMALLEST_NORMAL"),
    **{
        f"past-largest-{spec}/golden": (
            "fp4ref.formats.codec",
            "Codec.encode",
            "_decision(values)",
            "_decision(np.clip(values, -5, 5))",
        )
        for spec in past_largest.CASES
    },
    **{
        f"past-largest-{spec}/torch": (
            "fp4ref_torch.codecs",
            "_index",
            "codec.rounding.value)",
            "codec.rounding.value).clamp(max=form.codes - 2)",
        )
        for spec in past_largest.CASES
    },
    "amax-places/golden": ("fp4ref.model.quantize", "largest", "np.isnan(magnitude)] = 0", "np.isnan(magnitude)] = 4"),
    "amax-places/torch": ("fp4ref_torch.quantize", "largest", "word > exact.INFINITY", "word > exact.NAN"),
    "spare-nibbles/torch": ("fp4ref_torch.codecs", "pack", "(codes, (0, 1))", "(codes, (0, 1), value=7)"),
    "spare-nibbles/golden": ("fp4ref.packing", "pack", "|= own << shift", "|= own | own << 4"),
    "search-far/golden": ("fp4ref.model.quantize", "_four_over_six", "errors[1] < errors[0]", "errors[1] <= errors[0]"),
    "search-far/torch": ("fp4ref_torch.four_over_six", "search", "second[2] < first[2]", "second[2] <= first[2]"),
    "nan-signs/golden": ("fp4ref.model.quantize", "made_nan", "reversed(operands)", "operands"),
    "nan-signs/torch": ("fp4ref_torch.exact", "with_signed_nan", "reversed(operands)", "operands"),
    "product-alpha/golden": (
        "fp4ref.model.epilogue",
        "total_alpha",
        "F(F(alpha * F(a.data.amax[0])) * F(b.data.amax[0]))",
        "F(alpha * F(F(a.data.amax[0]) * F(b.data.amax[0])))",
    ),
    "product-alpha/torch": (
        "fp4ref_torch.gemm",
        "_alpha",
        "exact.mul(exact.mul(alpha.to(a.data.amax.device), a.data.amax), b.data.amax)",
        "exact.mul(alpha, exact.mul(a.data.amax, b.data.amax))",
    ),
    "stochastic-expectation/golden": ("fp4ref.formats.codec", "Codec.expectation", "total / 256", "total / 255"),
    **{
        f"hadamard-masks{which}/golden": (
            "fp4ref.hadamard",
            "sign_vector",
            "np.arange(POINTS)",
            "np.arange(POINTS)[::-1]",
        )
        for which in ("", "-inverse")
    },
    **{
        f"hadamard-masks{which}/torch": ("fp4ref_torch.hadamard", "_signed", "signs >> point", "signs >> (15 - point)")
        for which in ("", "-inverse")
    },
    "hadamard-zeros/golden": ("fp4ref.hadamard", "butterfly", " + F(0)", ""),
    "hadamard-zeros-inverse/golden": ("fp4ref.hadamard", "butterfly", " + F(0)", ""),
    "hadamard-zeros/torch": (
        "fp4ref_torch.hadamard",
        "_butterfly",
        "torch.where(exact.is_zero(sums), 0.0, sums)",
        "sums",
    ),
    "hadamard-zeros-inverse/torch": (
        "fp4ref_torch.hadamard",
        "_butterfly",
        "torch.where(exact.is_zero(sums), 0.0, sums)",
        "sums",
    ),
    **{
        f"special-blocks-{spec}/golden": (
            "fp4ref.model.quantize",
            "largest",
            "np.isnan(magnitude)",
            "~np.isfinite(magnitude)",
        )
        for spec in special_blocks.SPECS
    },
    **{
        f"special-blocks-{spec}/torch": (
            "fp4ref_torch.quantize",
            "largest",
            "word > exact.INFINITY",
            "word >= exact.INFINITY",
        )
        for spec in special_blocks.SPECS
    },
    "stochastic-rows/golden": (
        "fp4ref.formats.codec",
        "Codec._stochastic",
        "step * random_bits / 256",
        "step * random_bits[::-1] / 256",
    ),
    "stochastic-rows/torch": (
        "fp4ref_torch.codecs",
        "_moved",
        "random_bits.to(torch.float32)",
        "random_bits.flip(-1).to(torch.float32)",
    ),
    "pieces/golden": ("fp4ref.model.quantize", "_of_rows", "amax[rows]", "amax[: rows.stop - rows.start]"),
    "pieces/torch": ("fp4ref_torch.quantize", "part_of", "else values[rows]", "else values[rows].flip(0)"),
    **{
        f"quantize-{spec}-bfloat16/golden": ("fp4ref.packing", "pack", "|= own << shift", "|= (own & 31) << shift")
        for spec in six_bit_calls.CODECS
    },
    **{
        f"dequantize-{spec}/golden": (
            "fp4ref.packing",
            "unpack",
            "second << (8 - shift) & mask",
            "second << (8 - shift) & mask // 2",
        )
        for spec in six_bit_calls.CODECS
    },
    **{
        f"quantize-{spec}-bfloat16/torch": (
            "fp4ref_torch.codecs",
            "_pack_four_in_three",
            "groups[..., 3] << 18",
            "(groups[..., 3] & 31) << 18",
        )
        for spec in six_bit_calls.CODECS
    },
    **{
        f"dequantize-{spec}/torch": ("fp4ref_torch.codecs", "_unpack_four_in_three", ">> shift & 63", ">> shift & 31")
        for spec in six_bit_calls.CODECS
    },
}
QUICK = (
    "search-kept/golden",
    "encoding-nan/golden",
    "gemm-ties/golden",
    "hadamard-zeros/torch",
    "product-alpha/golden",
)


def plant(patch, module, function, *texts):
    """Replace texts of a function, everywhere that it is known by its name."""
    owner = importlib.import_module(module)
    *of, name = function.split(".")
    home = getattr(owner, of[0]) if of else owner
    right = getattr(home, name)
    source = textwrap.dedent(inspect.getsource(right))
    source = source[source.index("def ") :]  # without decorators
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        assert old in source
        source = source.replace(old, new)
    made: dict[str, object] = {}
    exec(f"from __future__ import annotations\n{source}", vars(owner), made)
    wrong = made[name]
    if of:
        patch.setattr(home, name, wrong)
        return
    for known in [m for key, m in sys.modules.items() if key.partition(".")[0] in {"fp4ref", "fp4ref_torch"}]:
        if vars(known).get(name) is right:
            patch.setattr(known, name, wrong)
    if four_over_six.RULES.get(name) is not None:
        patch.setitem(four_over_six.RULES, name, wrong)


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.release) for name in PYTHON_PARTS],
)
def test_a_mistake_in_a_python_part_is_refuted(name, monkeypatch):
    if name.endswith("/torch"):
        pytest.importorskip("torch")
    assert name in claims()
    with monkeypatch.context() as patch:
        plant(patch, *PYTHON_PARTS[name])
        assert decided(name).witness


@pytest.mark.rule("FOS-8")
@pytest.mark.parametrize("order", addition_trees.ORDERS)
def test_every_other_order_has_other_sums(order):
    """Probes of blocks of several rows and columns tell every two orders apart."""
    others = [name for name in addition_trees.ORDERS if name != order]
    assert all((addition_trees.sums(order, 4, 16) != addition_trees.sums(name, 4, 16)).any() for name in others)


def test_a_subject_without_a_certificate_needs_a_reason(monkeypatch, rules_of_the_checkout):
    index = rules_of_the_checkout
    assert concerned.gaps(index) == []
    assert dict.fromkeys(concerned.lacking(index)).keys() == concerned.reasons().keys()
    first, *others = concerned.REASONS
    monkeypatch.setattr(concerned, "REASONS", others)
    assert f"rule {first.rules[0]}: no certificate for {first.subject}" in concerned.gaps(index)[0]
    unneeded = first._replace(rules=("BLK-2",))
    monkeypatch.setattr(concerned, "REASONS", (*concerned.REASONS, first, unneeded))
    assert concerned.gaps(index) == [f"rule BLK-2: the reason for no certificate for {first.subject} is not needed"]


def test_all_that_the_package_imports_to_compute_bytes_is_the_golden_model():
    """No folder of it is listed anywhere: a new one counts as soon as it is imported."""
    files = concerned.places()[concerned.ClaimSubject.GOLDEN]
    for path in ("formats/codec", "layout/strides", "arithmetic_engines", "model/gemm", "hadamard", "spec"):
        assert f"fp4ref/{path}.py" in files
    assert not [
        path for path in files if path.startswith(("fp4ref/conformance", "fp4ref/te", "fp4ref/cli", "fp4ref/api"))
    ]
