"""fp4ref: the executable specification of block-scaled 4-bit to 8-bit formats (NVFP4, MXFP4, MXFP6, MXFP8)."""

from typing import Any

from fp4ref import interrupts as _interrupts  # first, for the imports below
from fp4ref import peers as _peers  # registers the profiles
from fp4ref import peers_engines as _engines  # and those of engines
from fp4ref.analysis import ErrorStatistics, error_statistics
from fp4ref.api import dequantize, quantize, to_layout
from fp4ref.arithmetic import Arithmetic, register_arithmetic
from fp4ref.catalogue import PROFILES as profiles
from fp4ref.catalogue import register
from fp4ref.errors import (
    BackendError,
    DomainError,
    DTypeError,
    FileError,
    Fp4Error,
    LayoutError,
    ShapeError,
    UnknownNameError,
)
from fp4ref.formats import E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, INT8, UE4M3, UE5M3, Codec, Format, Rounding, Sign
from fp4ref.four_over_six import register_rule
from fp4ref.generators import MAPS as random_maps
from fp4ref.generators import RandomMap
from fp4ref.groups import quantize_grouped
from fp4ref.kernels import Declaration, kernel
from fp4ref.layout import LAYOUTS, Layout, swizzle_index, swizzle_offset
from fp4ref.multiply import gemm, gemm_grouped
from fp4ref.operands import AlphaRule
from fp4ref.packings import PACKINGS, repack
from fp4ref.philox import philox4x32
from fp4ref.quantized import DirectionData, Directions, Group, Quantized
from fp4ref.random_source import random_bits
from fp4ref.spec import (
    SPEC_VERSION,
    Amax,
    Block,
    FourOverSix,
    Granularity,
    Hadamard,
    Metric,
    Spec,
    Subnormals,
    from_json,
)
from fp4ref.specs import (
    MXFP4,
    MXFP4_2D,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8_2D,
    MXFP8_E4M3,
    MXFP8_E5M2,
    MXINT8,
    NVFP4,
    NVFP4_2D,
    NVFP4_2D_SR,
    NVFP4_4OVER6,
    NVFP4_FAST,
    NVFP4_FAST_SR,
    NVFP4_RHT,
    NVFP4_RHT_SR,
    NVFP4_ROW_SCALED,
    NVFP4_SR,
)

del _peers


def __getattr__(name: str) -> Any:
    """Read the version when it is asked for: to find it takes a tenth of the time of importing fp4ref."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fp4ref")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"


__all__ = [
    "E2M1",
    "E2M3",
    "E3M2",
    "E4M3",
    "E5M2",
    "E8M0",
    "INT8",
    "LAYOUTS",
    "MXFP4",
    "MXFP4_2D",
    "MXFP6_E2M3",
    "MXFP6_E3M2",
    "MXFP8_2D",
    "MXFP8_E4M3",
    "MXFP8_E5M2",
    "MXINT8",
    "NVFP4",
    "NVFP4_2D",
    "NVFP4_2D_SR",
    "NVFP4_4OVER6",
    "NVFP4_FAST",
    "NVFP4_FAST_SR",
    "NVFP4_RHT",
    "NVFP4_RHT_SR",
    "NVFP4_ROW_SCALED",
    "NVFP4_SR",
    "PACKINGS",
    "SPEC_VERSION",
    "UE4M3",
    "UE5M3",
    "AlphaRule",
    "Amax",
    "Arithmetic",
    "BackendError",
    "Block",
    "Codec",
    "DTypeError",
    "Declaration",
    "DirectionData",
    "Directions",
    "DomainError",
    "ErrorStatistics",
    "FileError",
    "Format",
    "FourOverSix",
    "Fp4Error",
    "Granularity",
    "Group",
    "Hadamard",
    "Layout",
    "LayoutError",
    "Metric",
    "Quantized",
    "RandomMap",
    "Rounding",
    "ShapeError",
    "Sign",
    "Spec",
    "Subnormals",
    "UnknownNameError",
    "dequantize",
    "error_statistics",
    "from_json",
    "gemm",
    "gemm_grouped",
    "kernel",
    "philox4x32",
    "profiles",
    "quantize",
    "quantize_grouped",
    "random_bits",
    "random_maps",
    "register",
    "register_arithmetic",
    "register_rule",
    "repack",
    "swizzle_index",
    "swizzle_offset",
    "to_layout",
]
