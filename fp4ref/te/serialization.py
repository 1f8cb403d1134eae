"""The classes that a checkpoint of quantized weights names, so that torch.load reads it without executing code."""

from __future__ import annotations

from torch.serialization import add_safe_globals

from fp4ref.te import float8_tensor
from fp4ref.te.dtypes import DType
from fp4ref.te.float8_block_quantizer import Float8BlockQuantizer
from fp4ref.te.float8_block_tensor import Float8BlockwiseQTensor, Float8BlockwiseQTensorStorage
from fp4ref.te.float8_quantizer import Float8CurrentScalingQuantizer, Float8Quantizer
from fp4ref.te.float8_tensor import Float8Tensor, Float8TensorStorage
from fp4ref.te.hybrid_quantizer import HybridQuantizer, IdentityQuantizer
from fp4ref.te.hybrid_tensor import HybridQuantizedTensor, HybridQuantizedTensorStorage
from fp4ref.te.identity_tensor import IdentityTensor, IdentityTensorStorage
from fp4ref.te.mxfp8_quantizer import MXFP8Quantizer
from fp4ref.te.mxfp8_tensor import MXFP8Tensor, MXFP8TensorStorage
from fp4ref.te.nvfp4_quantizer import NVFP4Quantizer
from fp4ref.te.nvfp4_storage import NVFP4TensorStorage
from fp4ref.te.nvfp4_tensor import NVFP4Tensor
from fp4ref.te.tensor import rebuild

TENSORS = (
    *(Float8BlockwiseQTensor, Float8Tensor, MXFP8Tensor, NVFP4Tensor),
    *(HybridQuantizedTensor, IdentityTensor),
)
STORAGES = (
    *(Float8BlockwiseQTensorStorage, Float8TensorStorage, MXFP8TensorStorage, NVFP4TensorStorage),
    *(HybridQuantizedTensorStorage, IdentityTensorStorage),
)
QUANTIZERS = (
    *(Float8BlockQuantizer, Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer),
    *(HybridQuantizer, IdentityQuantizer),
)


def allow_safe_loading() -> None:
    """Let torch.load(weights_only=True) read quantized tensors."""
    earlier = [
        (each, f"{float8_tensor.__name__}.{each.__name__}") for each in (Float8CurrentScalingQuantizer, Float8Quantizer)
    ]
    add_safe_globals([rebuild, DType, *TENSORS, *STORAGES, *QUANTIZERS, *earlier])
