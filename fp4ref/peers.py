"""Specifications of other public quantizers: data, and at most one arithmetic each.

Rules: PRO-1, PRO-2, PRO-3.
"""

from typing import Any

from fp4ref import arithmetic as ar
from fp4ref import arithmetic_peers as ap
from fp4ref import four_over_six as fos
from fp4ref.catalogue import PROFILES
from fp4ref.formats import CUDA_E2M1, E2M1, E4M3, E5M2, E8M0, Codec, Rounding, Sign
from fp4ref.spec import Amax, Block, FourOverSix, Granularity, Metric, Spec, Subnormals
from fp4ref.specs import MXFP4, MXFP8_E4M3, NVFP4, NVFP4_FAST, NVFP4_RHT

RECORDED = "recorded on a CPU, torch 2.13; NaN and Inf up to the sign of NaN"
READ = "read from source, not run on Blackwell"
APPROXIMATE = "read from source; reciprocal table measured on SM90, whether SM100 uses the same is unverified"

# Codecs. CUDA drops the sign of NaN; torch and XLA keep it.
ZERO_NAN = Codec(format=E2M1, sign=Sign.NEGATIVE, nan=(0, 0))
BELOW_ZERO_E2M1 = Codec(format=E2M1, sign=Sign.NEGATIVE, nan=(7, 7))
DOWN_E2M1 = Codec(format=E2M1, rounding=Rounding.DOWN, sign=Sign.NEGATIVE, nan=(0, 0))
XLA_E2M1 = Codec(format=E2M1, nan=(8, 8))
TORCH_E4M3 = Codec(format=E4M3, nan=(0x7F, 0xFF))
TORCH_E5M2 = Codec(format=E5M2, nan=(0x7F, 0xFF))
COMPRESSED_E8M0 = Codec(format=E8M0, rounding=Rounding.UP, nan=(0x7F, 0x7F), overflow=0x7F)
XLA_E8M0 = Codec(format=E8M0, rounding=Rounding.UP, nan=(0xFF, 0xFF), overflow=0xFF)

NONE, ROW = Granularity.NONE, Granularity.ROW
TORCH_NVFP4 = NVFP4.replace(name="torch", scale=TORCH_E4M3, amax=Amax.PROPAGATE_NAN)
TORCH_MX = MXFP8_E4M3.replace(name="torch", element=TORCH_E4M3, amax=Amax.PROPAGATE_NAN)


def peer(base: Spec, name: str, source: str = RECORDED, **changes: Any) -> Spec:
    """Register a peer's profile, derived from another."""
    return PROFILES.register(base.replace(name=name, **changes), source)


# torchao's E2M1 encoder works on bits: a NaN ends as code 3 unless its payload is long, see the arithmetic
TORCHAO_E2M1 = Codec(format=E2M1, nan=(3, 11))
EAGER = "recorded on a CPU, torch 2.13 in eager mode; NaN and Inf up to the sign of NaN"
SNAPSHOT = f"{EAGER}; the development snapshot of 2026-08-21"
RELEASE = f"{EAGER}; the release 0.18.0"
_two = peer(TORCH_NVFP4, "torchao.nvfp4_2lvl", EAGER, arithmetic=ap.TORCHAO, element=TORCHAO_E2M1)
peer(_two, "torchao.nvfp4_1lvl", EAGER, global_scale=NONE)
MX_ELEMENTS = {
    "mxfp4": TORCHAO_E2M1,
    "mxfp8_e4m3": TORCH_E4M3,
    "mxfp8_e5m2": TORCH_E5M2,
}
for _name, _element in MX_ELEMENTS.items():
    for _mode, _arithmetic in (
        ("floor", ar.OCP_FLOOR),
        ("ceil", ar.OCP_CEIL),
        ("even", ar.OCP_EVEN),
        ("rceil", ar.OCP_RCEIL),
    ):
        peer(TORCH_MX, f"torchao.{_name}_{_mode}", SNAPSHOT, element=_element, arithmetic=_arithmetic)
    for _mode, _arithmetic in ap.TORCHAO_MX.items():
        peer(TORCH_MX, f"torchao.{_name}_{_mode}_0_18", RELEASE, element=_element, arithmetic=_arithmetic)
    peer(TORCH_MX, f"gfloat.{_name}", element=_element, arithmetic=ar.OCP_FLOOR)
    for _mode, _arithmetic in ap.MICROXCALING.items():
        _codec = CUDA_E2M1 if _element.format is E2M1 else _element
        peer(TORCH_MX, f"microxcaling.{_name}_{_mode}", element=_codec, arithmetic=_arithmetic)

peer(TORCH_NVFP4, "modelopt.nvfp4", arithmetic=ap.MODELOPT, element=BELOW_ZERO_E2M1)
peer(
    TORCH_MX,
    "modelopt.mxfp4",
    arithmetic=ap.MODELOPT_MX,
    element=Codec(format=E2M1, rounding=Rounding.DOWN, sign=Sign.NOT_POSITIVE, nan=(8, 8)),
    scale=Codec(format=E8M0, rounding=Rounding.UP, nan=(0, 0)),
)
peer(TORCH_NVFP4, "compressed_tensors.nvfp4", arithmetic=ap.COMPRESSED_TENSORS, element=ZERO_NAN)
_mx = peer(TORCH_MX, "compressed_tensors.mxfp8", arithmetic=ap.COMPRESSED_TENSORS_MX, scale=COMPRESSED_E8M0)
peer(_mx, "compressed_tensors.mxfp4", element=ZERO_NAN)
peer(TORCH_MX, "deepgemm.mxfp8_ue8m0", arithmetic=ap.DEEPGEMM)
peer(
    TORCH_MX,
    "deepgemm.mxfp4_ue8m0",
    arithmetic=ap.DEEPGEMM,
    element=Codec(format=E2M1, rounding=Rounding.DOWN, sign=Sign.NONZERO, nan=(0, 0)),
)

# fouroversix: a magnitude that rounds to 8 is packed as code 8, which is -0
_six = peer(
    TORCH_NVFP4,
    "fouroversix.nvfp4_static_6",
    arithmetic=ap.FOUROVERSIX,
    element=Codec(format=E2M1, sign=Sign.NEGATIVE, nan=(11, 11), overflow=8),
)
peer(_six, "fouroversix.nvfp4_static_4", element_max=4)
peer(_six, "fouroversix.nvfp4_2d_static_6", block=Block(16, 16))
for _name, _metric in (("mse", Metric.SQUARED), ("mae", Metric.ABSOLUTE), ("abs_max", Metric.LARGEST)):
    _search = FourOverSix(metric=_metric, scale_max=256, total=fos.halves)
    peer(_six, f"fouroversix.nvfp4_{_name}", four_over_six=_search)
_mx = peer(TORCH_MX, "fouroversix.mxfp4_static_6", arithmetic=ap.FOUROVERSIX_MX, element=ZERO_NAN)
peer(_mx, "fouroversix.mxfp4_static_4", element_max=4)

# flashinfer's Python references
peer(TORCH_NVFP4, "flashinfer.ref_nvfp4", arithmetic=ap.FLASHINFER, element=ZERO_NAN)
peer(TORCH_MX, "flashinfer.ref_mxfp4", arithmetic=ap.FLASHINFER_MX, element=ZERO_NAN)
_te = peer(TORCH_NVFP4, "flashinfer.ref_nvfp4_te", arithmetic=ar.TE, element=BELOW_ZERO_E2M1)
peer(_te, "flashinfer.ref_nvfp4_te_pertoken", global_scale=ROW)
for _metric in (Metric.ABSOLUTE, Metric.SQUARED):
    for _top in (448, 256):
        for _name, _difference in (("strict", fos.dequantized_by_reciprocal), ("fast", fos.scaled_units)):
            _search = FourOverSix(metric=_metric, scale_max=_top, difference=_difference, total=fos.sequential)
            peer(
                _te,
                f"flashinfer.ref_4over6_{_metric}_{_top}_{_name}",
                arithmetic=ar.TE_DIVISION,
                four_over_six=_search,
            )
peer(TORCH_NVFP4, "flashinfer.trace_nvfp4", arithmetic=ap.FLASHINFER_TRACE, element=DOWN_E2M1)
_mx = peer(TORCH_MX, "flashinfer.trace_mxfp8", arithmetic=ap.FLASHINFER_TRACE_MX)
peer(_mx, "flashinfer.trace_mxfp4", element=DOWN_E2M1)

# XLA on a CPU flushes subnormals and drops NaN in maxima
XLA: dict[str, Any] = {"amax": Amax.IGNORE_NAN, "subnormals": Subnormals.FLUSH}
peer(TORCH_NVFP4, "jax.nvfp4", arithmetic=ap.JAX, element=XLA_E2M1, **XLA)
peer(TORCH_MX, "jax.mxfp8", arithmetic=ap.JAX_MX, scale=XLA_E8M0, **XLA)
peer(TORCH_NVFP4, "qwix.nvfp4", arithmetic=ap.QWIX, element=XLA_E2M1, global_scale=NONE, **XLA)
_mx = peer(TORCH_MX, "qwix.mxfp8", arithmetic=ap.QWIX_MX, scale=XLA_E8M0, **XLA)
peer(_mx, "qwix.mxfp4", element=XLA_E2M1)

# Transformer Engine's own variants
peer(
    NVFP4,
    "te.python_reference",
    "recorded on a CPU; -0 and NaN read from source",
    arithmetic=ap.TE_PYTHON,
    element=ZERO_NAN,
    amax=Amax.PROPAGATE_NAN,
)
peer(
    NVFP4_RHT,
    "te.rht_fused",
    READ,
    arithmetic=ap.TE_RHT_FUSED,
    amax=Amax.PROPAGATE_IN_BLOCK,
)
peer(NVFP4_FAST, "te.fast_math_1d", READ)
peer(MXFP8_E4M3, "te.mxfp8_cast_only", READ, arithmetic=ar.RCEIL_CAST_ONLY)
peer(NVFP4, "te.cpp_test_oracle", READ, arithmetic=ap.TE_ORACLE)

# Kernels with the approximate reciprocal
_kernel = peer(NVFP4, "vllm.nvfp4_kernel", APPROXIMATE, arithmetic=ap.KERNEL)
peer(_kernel, "qutlass.nvfp4_abs_max_kernel", APPROXIMATE)
peer(NVFP4, "flashinfer.nvfp4_kernel", APPROXIMATE, arithmetic=ap.KERNEL_BY_AMAX)
peer(MXFP4, "flashinfer.mxfp4_kernel", APPROXIMATE, arithmetic=ap.KERNEL_MXFP4)
peer(MXFP8_E4M3, "flashinfer.mxfp8_kernel", APPROXIMATE, arithmetic=ap.KERNEL_MXFP8)
peer(NVFP4, "cutlass.nvfp4_epilogue", APPROXIMATE, arithmetic=ap.CUTLASS, amax=Amax.PROPAGATE_NAN)
