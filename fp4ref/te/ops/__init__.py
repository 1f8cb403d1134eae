"""Operations that `Sequential` chains, with the names and the numbers of the operation fuser that is emulated."""

from fp4ref.te.absent import absent as _absent
from fp4ref.te.ops.activations import (
    GEGLU,
    GELU,
    GLU,
    QGEGLU,
    QGELU,
    ClampedSwiGLU,
    ReGLU,
    ReLU,
    ScaledClampedQGeGLU,
    ScaledSiTUGLU,
    ScaledSReLU,
    ScaledSwiGLU,
    SiLU,
    SiTUGLU,
    SReGLU,
    SReLU,
    SwiGLU,
)
from fp4ref.te.ops.collectives import AllGather, AllReduce, ReduceScatter
from fp4ref.te.ops.elementwise import (
    AddExtraInput,
    Bias,
    ConstantScale,
    Dropout,
    Identity,
    MakeExtraOutput,
    Reshape,
)
from fp4ref.te.ops.grouped import GroupedLinearOperation as GroupedLinear
from fp4ref.te.ops.linear import BasicLinear
from fp4ref.te.ops.linear_operation import LinearOperation as Linear
from fp4ref.te.ops.norms import L2NormalizationOperation as L2Normalization
from fp4ref.te.ops.norms import LayerNormOperation as LayerNorm
from fp4ref.te.ops.norms import RMSNormOperation as RMSNorm
from fp4ref.te.ops.operation import BasicOperation, FusibleOperation, OperationContext
from fp4ref.te.ops.quantize import Quantize
from fp4ref.te.ops.sequential import Sequential

__all__ = [
    "GEGLU",
    "GELU",
    "GLU",
    "QGEGLU",
    "QGELU",
    "AddExtraInput",
    "AllGather",
    "AllReduce",
    "BasicLinear",
    "BasicOperation",
    "Bias",
    "ClampedSwiGLU",
    "ConstantScale",
    "Dropout",
    "FusibleOperation",
    "GroupedLinear",
    "Identity",
    "L2Normalization",
    "LayerNorm",
    "Linear",
    "MakeExtraOutput",
    "OperationContext",
    "Quantize",
    "RMSNorm",
    "ReGLU",
    "ReLU",
    "ReduceScatter",
    "Reshape",
    "SReGLU",
    "SReLU",
    "ScaledClampedQGeGLU",
    "ScaledSReLU",
    "ScaledSiTUGLU",
    "ScaledSwiGLU",
    "Sequential",
    "SiLU",
    "SiTUGLU",
    "SwiGLU",
]

# Names of the original's module that are not emulated: the fusions that users write, whose operations get the
# quantizers and the contexts of neighbours.
_NOT_EMULATED = (
    *("FusedOperation", "fused", "fuser"),
    *("register_backward_fusion", "register_forward_backward_fusion", "register_forward_fusion"),
)


def __getattr__(name: str) -> type:
    """Return a class that raises by name when it is used, for a name that is not emulated. Rules: TEL-39."""
    if name in _NOT_EMULATED:
        return _absent(f"ops.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
