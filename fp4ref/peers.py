"""Specifications of other public quantizers: data, and at most one arithmetic each.

Each is registered with a promise: the versions that it models, how that was checked, and for which inputs it holds.

Rules: PRO-1, PRO-2, PRO-3, PRO-4.
"""

from collections.abc import Iterable
from typing import Any

from fp4ref import arithmetic as ar
from fp4ref import arithmetic_peers as ap
from fp4ref import arithmetic_peers_mx as mx
from fp4ref import arithmetic_xla as xla
from fp4ref import four_over_six as fos
from fp4ref.catalogue import register_profile
from fp4ref.formats import CUDA_E2M1, E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, OCP_INT8, Codec, Rounding, Sign
from fp4ref.promise import Checked, Claim, Promise
from fp4ref.spec import Amax, Block, FourOverSix, Granularity, Metric, Spec, Subnormals
from fp4ref.specs import MXFP4, MXFP8_E4M3, MXFP8_E5M2, NVFP4, NVFP4_FAST, NVFP4_RHT

CPU = "on a CPU (x86-64)"
TORCH = f"{CPU}, torch 2.13"
EAGER = f"{TORCH} in eager mode"
READ = "not run on Blackwell"
HOPPER = "not run on Hopper; scales as bytes of E8M0, where the implementation stores float32"
APPROXIMATE = "reciprocal table measured on SM90, whether SM100 uses the same is unverified"

# Codecs. CUDA drops the sign of NaN; torch and XLA keep it.
ZERO_NAN = Codec(format=E2M1, sign=Sign.NEGATIVE, nan=(0, 0))
BELOW_ZERO_E2M1 = Codec(format=E2M1, sign=Sign.NEGATIVE, nan=(7, 7))
DOWN_E2M1 = Codec(format=E2M1, rounding=Rounding.DOWN, sign=Sign.NEGATIVE, nan=(0, 0))
XLA_E2M1 = Codec(format=E2M1, nan=(8, 8))
TORCHAO_E2M1 = Codec(format=E2M1, nan=(3, 11))  # it works on bits: a NaN ends as 3 unless its payload is long
# A magnitude that rounds to 8 is packed as code 8, which is -0; infinity becomes NaN on the way.
SIX_E2M1 = Codec(format=E2M1, sign=Sign.NEGATIVE, nan=(3, 11), overflow=8, infinity=11)
TORCH_E4M3 = Codec(format=E4M3, nan=(0x7F, 0xFF))
TORCH_E5M2 = Codec(format=E5M2, nan=(0x7F, 0xFF))
INFINITE_E8M0 = Codec(format=E8M0, rounding=Rounding.UP, nan=(0xFF, 0xFF), infinity=0xFF)

NONE, ROW = Granularity.NONE, Granularity.ROW
TORCH_NVFP4 = NVFP4.replace(name="torch", scale=TORCH_E4M3, amax=Amax.PROPAGATE_NAN)
TORCH_MX = MXFP8_E4M3.replace(name="torch", element=TORCH_E4M3, amax=Amax.PROPAGATE_NAN)


def recorded(*versions: str, how: str = TORCH, least: float = 0.0, **claims: Claim) -> Promise:
    """Return the promise of a profile whose implementation was executed; it holds for what no claim excludes."""
    return Promise(versions=versions, checked=Checked.RECORDED, how=how, least=least, **claims)


def read(*versions: str, how: str = READ) -> Promise:
    """Return the promise of a profile whose source was read."""
    not_run = Claim(False, "read, not executed")
    return Promise(versions=versions, checked=Checked.READ, how=how, finite=not_run, nan=not_run, infinite=not_run)


def peer(base: Spec, name: str, promise: Promise, also: Iterable[str] = (), **changes: Any) -> Spec:
    """Register a peer's profile, derived from another; `also` are names that older files may hold."""
    return register_profile(base.replace(name=name, **changes), promise, also)


def not_a_function(what: str) -> Claim:
    """Return a refusal because the bytes are not a function of the values alone."""
    return Claim(False, f"the bytes depend on the tensor's shape: {what}")


# torchao
SNAPSHOT = recorded("36027d82", how=EAGER)
RELEASE = recorded("0.18.0", how=EAGER)
BOTH = recorded("36027d82", "0.18.0", how=EAGER)
RELEASE_NAN = recorded(
    "0.18.0",
    how=EAGER,
    nan=Claim(False, "the code depends on the payload of a NaN under a NaN scale, which differs by loop in bfloat16"),
)
PAYLOAD = Claim(False, "the code depends on the payload of the NaN that torch.max returns, which differs by loop")
_two = peer(
    TORCH_NVFP4,
    "torchao.nvfp4_2lvl",
    recorded("36027d82", "0.18.0", how=EAGER, nan=PAYLOAD),
    arithmetic=ap.TORCHAO,
    element=TORCHAO_E2M1,
)
peer(_two, "torchao.nvfp4_1lvl", BOTH, global_scale=NONE)
MX_ELEMENTS = {  # its codes of NaN in 4 and 6 bits are what is left of the exponent's bits
    "mxfp4": TORCHAO_E2M1,
    "mxfp6_e2m3": Codec(format=E2M3, nan=(0x0C, 0x2C)),
    "mxfp6_e3m2": Codec(format=E3M2, nan=(0x0E, 0x2E)),
    "mxfp8_e4m3": TORCH_E4M3,
    "mxfp8_e5m2": TORCH_E5M2,
}
SNAPSHOT_MX = {"floor": ar.OCP_FLOOR, "ceil": ar.OCP_CEIL, "even": mx.TORCHAO_CARRY, "rceil": ar.OCP_RCEIL}
ITS_INFINITY = Claim(False, "it gives an infinite block the scale 2^127, the profile a NaN")
NO_NAN = Claim(False, "it raises an error: the format has no NaN")
GFLOAT = {
    4: recorded("0.5.2", "b142762d", how=CPU, nan=NO_NAN, infinite=ITS_INFINITY),
    6: recorded("0.5.2", how=CPU, nan=NO_NAN, infinite=ITS_INFINITY),
    8: recorded("0.5.2", "b142762d", how=CPU, infinite=ITS_INFINITY),
}
MICROXCALING = recorded("7bc41952", how=f"{TORCH}; the peer returns values, from which codes and scales were found")
NO_NEGATIVE_ZERO = recorded("7bc41952", how=f"{TORCH}; the peer returns values, whose -0 has no code")
for _name, _element in MX_ELEMENTS.items():
    _bits = _element.format.bits
    for _mode, _arithmetic in mx.TORCHAO_MX.items():
        _promise = RELEASE if _bits == 8 or _mode == "rceil" else RELEASE_NAN
        _plain = f"torchao.{_name}_{_mode}"
        if _bits == 6:  # of the repository, nothing in 6 bits is recorded
            peer(TORCH_MX, _plain, _promise, element=_element, arithmetic=_arithmetic)
            continue
        peer(TORCH_MX, _plain, SNAPSHOT, element=_element, arithmetic=SNAPSHOT_MX[_mode])
        peer(TORCH_MX, f"{_plain}@0.18.0", _promise, [f"{_plain}_0_18"], element=_element, arithmetic=_arithmetic)
    peer(TORCH_MX, f"gfloat.{_name}", GFLOAT[_bits], element=_element, arithmetic=ar.OCP_FLOOR)
    for _mode, _arithmetic in mx.MICROXCALING.items():
        _codec = CUDA_E2M1 if _bits == 4 else _element
        peer(TORCH_MX, f"microxcaling.{_name}_{_mode}", MICROXCALING, element=_codec, arithmetic=_arithmetic)
for _mode, _arithmetic in mx.MICROXCALING.items():
    peer(TORCH_MX, f"microxcaling.mxint8_{_mode}", NO_NEGATIVE_ZERO, element=OCP_INT8, arithmetic=_arithmetic)

# modelopt
_new = peer(TORCH_NVFP4, "modelopt.nvfp4", recorded("0.47.0"), arithmetic=ap.MODELOPT, element=BELOW_ZERO_E2M1)
peer(_new, "modelopt.nvfp4@0.40.0", recorded("0.40.0", "5a4242fa"), arithmetic=ap.MODELOPT_UNCLAMPED)
peer(
    TORCH_MX,
    "modelopt.mxfp4",
    recorded("0.47.0", "5a4242fa"),
    arithmetic=mx.MODELOPT_MX,
    element=Codec(format=E2M1, rounding=Rounding.DOWN, sign=Sign.NOT_POSITIVE, nan=(8, 8)),
    scale=Codec(format=E8M0, rounding=Rounding.UP, nan=(0, 0)),
)
peer(TORCH_MX, "modelopt.mxfp8", recorded("0.47.0"), arithmetic=mx.MODELOPT_MXFP8)

# compressed-tensors
COMPRESSED_NAN = not_a_function("torch's loops return different NaNs, which are then cast to integers")
peer(
    TORCH_NVFP4,
    "compressed_tensors.nvfp4",
    recorded("0.20.0", "ac8e2ba8"),
    arithmetic=ap.COMPRESSED_TENSORS,
    element=ZERO_NAN,
)
COMPRESSED = recorded("0.20.0", nan=COMPRESSED_NAN)
_mx = peer(
    TORCH_MX,
    "compressed_tensors.mxfp8",
    COMPRESSED,
    arithmetic=mx.COMPRESSED_TENSORS_MX,
    scale=Codec(format=E8M0, rounding=Rounding.UP, nan=(0x7F, 0x7F), infinity=0x7F),
)
_positive_zero = Codec(format=E4M3, sign=Sign.NEGATIVE, nan=(0x7F, 0xFF))
peer(_mx, "compressed_tensors.mxfp8_zero_point", COMPRESSED, element=_positive_zero)
peer(_mx, "compressed_tensors.mxfp4", COMPRESSED, element=ZERO_NAN)

# DeepGEMM
DEEPGEMM = recorded("54e22612")
peer(TORCH_MX, "deepgemm.mxfp8_ue8m0", DEEPGEMM, arithmetic=mx.DEEPGEMM)
peer(
    TORCH_MX,
    "deepgemm.mxfp4_ue8m0",
    DEEPGEMM,
    arithmetic=mx.DEEPGEMM,
    element=Codec(format=E2M1, rounding=Rounding.DOWN, sign=Sign.NONZERO, nan=(0, 0)),
)

# fouroversix: five rules, each for blocks of 1x16 and of 16x16
SIX = recorded("dadfad69", "1.0.5")
for _prefix, _block, _total in (("", Block(1, 16), fos.halves), ("2d_", Block(16, 16), fos.lanes)):
    _six = peer(
        TORCH_NVFP4,
        f"fouroversix.nvfp4_{_prefix}static_6",
        SIX,
        arithmetic=ap.FOUROVERSIX,
        element=SIX_E2M1,
        block=_block,
    )
    peer(_six, f"fouroversix.nvfp4_{_prefix}static_4", SIX, element_max=4)
    for _name, _metric in (("mse", Metric.SQUARED), ("mae", Metric.ABSOLUTE), ("abs_max", Metric.LARGEST)):
        _search = FourOverSix(metric=_metric, scale_max=256, total=_total)
        peer(_six, f"fouroversix.nvfp4_{_prefix}{_name}", SIX, four_over_six=_search)
for _version, _suffix, _arithmetic in (
    ("dadfad69", "", mx.FOUROVERSIX_MX),
    ("1.0.5", "@1.0.5", mx.FOUROVERSIX_MX_UNGUARDED),
):
    for _name, _top in (("static_6", None), ("static_4", 4)):
        peer(
            TORCH_MX,
            f"fouroversix.mxfp4_{_name}{_suffix}",
            recorded(_version),
            arithmetic=_arithmetic,
            element=SIX_E2M1,
            scale=INFINITE_E8M0,
            element_max=_top,
        )

# flashinfer's Python references
FLASHINFER = recorded("fb28d724")
peer(TORCH_NVFP4, "flashinfer.ref_nvfp4", FLASHINFER, arithmetic=ap.FLASHINFER, element=ZERO_NAN)
peer(
    TORCH_MX,
    "flashinfer.ref_mxfp4",
    FLASHINFER,
    arithmetic=mx.FLASHINFER_MX,
    element=ZERO_NAN,
    scale=INFINITE_E8M0,
)
_te = peer(TORCH_NVFP4, "flashinfer.ref_nvfp4_te", FLASHINFER, arithmetic=ap.TE_PYTHON, element=ZERO_NAN)
peer(_te, "flashinfer.ref_nvfp4_te_pertoken", FLASHINFER, global_scale=ROW)
for _metric in (Metric.ABSOLUTE, Metric.SQUARED):
    for _top in (448, 256):
        for _name, _difference in (("strict", fos.dequantized_by_reciprocal), ("fast", fos.scaled_units)):
            _search = FourOverSix(metric=_metric, scale_max=_top, difference=_difference, total=fos.sequential)
            peer(
                _te,
                f"flashinfer.ref_4over6_{_metric}_{_top}_{_name}",
                FLASHINFER,
                arithmetic=ap.TE_PYTHON_DIVISION,
                four_over_six=_search,
            )
peer(TORCH_NVFP4, "flashinfer.trace_nvfp4", FLASHINFER, arithmetic=ap.FLASHINFER_TRACE, element=DOWN_E2M1)
_mx = peer(TORCH_MX, "flashinfer.trace_mxfp8", FLASHINFER, arithmetic=mx.FLASHINFER_TRACE_MX)
peer(_mx, "flashinfer.trace_mxfp4", FLASHINFER, element=DOWN_E2M1)

# XLA on a CPU flushes subnormal numbers
SHAPED = not_a_function("XLA's maximum keeps NaN in small tensors and drops it in large ones")
XLA_CPU = "XLA on a CPU, tensors of up to 64 rows"
JAX = recorded("0.10.2", how=XLA_CPU, nan=SHAPED)
TINY = "where amax / 2688 is at least 2^-126; below, 0 * Inf arises, and the bytes depend on the tensor's shape"
JAX_NVFP4 = recorded(
    "0.10.2",
    how=XLA_CPU,
    finite=Claim(True, TINY),
    nan=SHAPED,
    infinite=not_a_function("Inf / Inf is a NaN, as above"),
    least=2688 * 2.0**-126,
)
XLA: dict[str, Any] = {"subnormals": Subnormals.FLUSH}
peer(TORCH_NVFP4, "jax.nvfp4", JAX_NVFP4, arithmetic=xla.JAX, element=XLA_E2M1, **XLA)
_mx = peer(TORCH_MX, "jax.mxfp8", JAX, arithmetic=xla.JAX_MX, scale=INFINITE_E8M0, **XLA)
QWIX = recorded("aa623acb", how=XLA_CPU, nan=SHAPED)
QWIX_BOTH = recorded("aa623acb", "0.1.8", how=XLA_CPU, nan=SHAPED)
peer(TORCH_NVFP4, "qwix.nvfp4", QWIX_BOTH, arithmetic=xla.QWIX, element=XLA_E2M1, global_scale=NONE, **XLA)
for _promise, _suffix, _arithmetic in (
    (QWIX, "", xla.QWIX_MX),
    (recorded("0.1.8", how=f"{XLA_CPU} and more than one block", nan=SHAPED), "@0.1.8", xla.QWIX_CEIL),
):
    peer(_mx, f"qwix.mxfp8{_suffix}", _promise, arithmetic=_arithmetic)
    peer(_mx, f"qwix.mxfp4{_suffix}", _promise, arithmetic=_arithmetic, element=XLA_E2M1)

# Transformer Engine's own variants
TE = "d0067d0d"
_reference = peer(
    NVFP4,
    "te.python_reference",
    recorded(TE),
    arithmetic=ap.TE_PYTHON,
    element=ZERO_NAN,
    amax=Amax.PROPAGATE_NAN,
)
peer(_reference, "te.python_reference_2d", recorded(TE), block=Block(16, 16))
peer(_reference, "te.python_reference_row", recorded(TE), global_scale=ROW)
for _metric in (Metric.ABSOLUTE, Metric.SQUARED):
    for _top in (448, 256):
        _search = FourOverSix(metric=_metric, scale_max=_top, total=fos.sequential)
        _name = f"te.python_reference_4over6_{_metric}_{_top}"
        _changes: dict[str, Any] = {"arithmetic": ap.TE_PYTHON_DIVISION, "four_over_six": _search}
        peer(_reference, _name, recorded(TE), **_changes)
        peer(_reference, f"{_name}_2d", recorded(TE), **_changes, block=Block(16, 16))
        peer(_reference, f"{_name}_row", recorded(TE), **_changes, global_scale=ROW)
peer(NVFP4_RHT, "te.rht_fused", read(TE), arithmetic=ap.TE_RHT_FUSED, amax=Amax.PROPAGATE_IN_BLOCK)
peer(NVFP4_FAST, "te.fast_math_1d", read(TE))
peer(MXFP8_E4M3, "te.mxfp8_cast_only", read(TE), arithmetic=ar.RCEIL_CAST_ONLY)
peer(NVFP4, "te.cpp_test_oracle", read(TE), arithmetic=ap.TE_ORACLE)
_blocks = peer(MXFP8_E4M3, "te.fp8_block", read(TE, how=HOPPER), arithmetic=mx.TE_BLOCKS, block=Block(1, 128))
peer(_blocks, "te.fp8_block_e5m2", read(TE, how=HOPPER), element=MXFP8_E5M2.element)
peer(_blocks, "te.fp8_block_2d", read(TE, how=HOPPER), block=Block(128, 128))
ONE_SCALE = read(TE, how="not run on a GPU; it stores codes and one over g, and no block scales, which are all 1")
for _suffix, _form in ("", MXFP8_E4M3), ("_e5m2", MXFP8_E5M2):
    _one = NVFP4.replace(block=Block(1, 128), arithmetic=ap.TE_FP8_CURRENT, element=_form.element)
    peer(_one, f"te.fp8_current{_suffix}", ONE_SCALE)
    peer(_one, f"te.fp8_rows{_suffix}", ONE_SCALE, global_scale=ROW)
    peer(_one, f"te.fp8_delayed{_suffix}", ONE_SCALE, arithmetic=ap.TE_FP8_DELAYED)

# Kernels with the approximate reciprocal
_kernel = peer(NVFP4, "vllm.nvfp4_kernel", read("2026-08", how=APPROXIMATE), arithmetic=ap.KERNEL)
peer(_kernel, "qutlass.nvfp4_abs_max_kernel", read("e74319e3", how=APPROXIMATE))
_kernels = read("fb28d724", how=APPROXIMATE)
peer(NVFP4, "flashinfer.nvfp4_kernel", _kernels, arithmetic=ap.KERNEL_BY_AMAX)
peer(MXFP4, "flashinfer.mxfp4_kernel", _kernels, arithmetic=ap.KERNEL_MXFP4)
peer(MXFP8_E4M3, "flashinfer.mxfp8_kernel", _kernels, arithmetic=ap.KERNEL_MXFP8)
peer(
    NVFP4,
    "cutlass.nvfp4_epilogue",
    read("7107b055", how=APPROXIMATE),
    arithmetic=ap.CUTLASS,
    amax=Amax.PROPAGATE_NAN,
)
