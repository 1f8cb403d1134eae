"""Transformer Engine's low-precision PyTorch interface, emulated on any torch device, with the bits of the standard.

Needs torch: `pip install 'fp4ref[torch]'`.
"""

try:
    import torch as _torch
except ImportError as error:
    raise ImportError("fp4ref.te needs torch: pip install 'fp4ref[torch]'") from error

from fp4ref.te import debug, ops, optimizers, recipe
from fp4ref.te.absent import absent as _absent
from fp4ref.te.alias import install_alias, uninstall_alias
from fp4ref.te.alias_names import NOT_EMULATED as _NOT_EMULATED
from fp4ref.te.attention import DotProductAttention, MultiheadAttention, RotaryPositionEmbedding
from fp4ref.te.capability import emulate_device, get_device_compute_capability
from fp4ref.te.cast import dequantize, quantize
from fp4ref.te.checkpoint import checkpoint
from fp4ref.te.convert import convert
from fp4ref.te.cross_entropy import parallel_cross_entropy
from fp4ref.te.distributed import gather_along_first_dim
from fp4ref.te.dtypes import DType
from fp4ref.te.float8_block_quantizer import Float8BlockQuantizer
from fp4ref.te.float8_block_tensor import Float8BlockwiseQTensor, Float8BlockwiseQTensorStorage
from fp4ref.te.float8_quantizer import Float8CurrentScalingQuantizer, Float8Quantizer
from fp4ref.te.float8_tensor import Float8Tensor, Float8TensorStorage
from fp4ref.te.freed_memory import keep_freed_memory as _keep_freed_memory
from fp4ref.te.gemm import general_gemm, generic_gemm
from fp4ref.te.graph import make_graphed_callables
from fp4ref.te.grouped import group_quantize, split_quantize
from fp4ref.te.grouped_gemm import general_grouped_gemm, general_grouped_gemm_for_grouped_tensor
from fp4ref.te.grouped_tensor import GroupedTensor
from fp4ref.te.hadamard import get_random_sign_mask_for_rht, get_rht_matrix, get_sign_from_vector
from fp4ref.te.hybrid_quantizer import HybridQuantizer, IdentityQuantizer
from fp4ref.te.hybrid_tensor import HybridQuantizedTensor, HybridQuantizedTensorStorage
from fp4ref.te.identity_tensor import IdentityTensor, IdentityTensorStorage
from fp4ref.te.loading import LoadedCheckpoint, load_quantized
from fp4ref.te.module.grouped_linear import GroupedLinear
from fp4ref.te.module.layernorm_linear import LayerNormLinear
from fp4ref.te.module.layernorm_mlp import LayerNormMLP
from fp4ref.te.module.linear import Linear
from fp4ref.te.module.norm_modules import LayerNorm, RMSNorm
from fp4ref.te.module.padding import Fp8Padding, Fp8Unpadding
from fp4ref.te.mxfp8_quantizer import MXFP8Quantizer
from fp4ref.te.mxfp8_tensor import MXFP8Tensor, MXFP8TensorStorage
from fp4ref.te.nvfp4_quantizer import NVFP4Quantizer, quantize_nvfp4
from fp4ref.te.nvfp4_storage import NVFP4TensorStorage
from fp4ref.te.nvfp4_tensor import NVFP4Tensor
from fp4ref.te.offload import get_cpu_offload_context, mark_not_offload
from fp4ref.te.permutation import (
    moe_permute,
    moe_permute_and_pad_with_probs,
    moe_permute_with_probs,
    moe_sort_chunks_by_index,
    moe_sort_chunks_by_index_with_probs,
    moe_unpermute,
)
from fp4ref.te.quantization import (
    autocast,
    fp8_autocast,
    fp8_model_init,
    get_align_size_for_quantization,
    get_default_recipe,
    is_fp8_available,
    is_fp8_block_scaling_available,
    is_mxfp8_available,
    is_nvfp4_available,
    quantized_model_init,
)
from fp4ref.te.quantizer import Quantizer
from fp4ref.te.random_states import CudaRNGStatesTracker
from fp4ref.te.recipe_base import Format
from fp4ref.te.serialization import allow_safe_loading as _allow_safe_loading
from fp4ref.te.storage import prepare_for_saving, restore_from_func_ctx, restore_from_saved
from fp4ref.te.swizzle import swizzle_scales_for_gemm_
from fp4ref.te.tensor import QuantizedTensor
from fp4ref.te.transformer import TransformerLayer

del _torch
_allow_safe_loading()


def __getattr__(name: str) -> type:
    """Return a class that raises by name when it is used, for a name that is not emulated. Rules: TEL-39."""
    if name in _NOT_EMULATED:
        return _absent(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_keep_freed_memory()

__all__ = [
    "CudaRNGStatesTracker",
    "DType",
    "DotProductAttention",
    "Float8BlockQuantizer",
    "Float8BlockwiseQTensor",
    "Float8BlockwiseQTensorStorage",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "Float8Tensor",
    "Float8TensorStorage",
    "Format",
    "Fp8Padding",
    "Fp8Unpadding",
    "GroupedLinear",
    "GroupedTensor",
    "HybridQuantizedTensor",
    "HybridQuantizedTensorStorage",
    "HybridQuantizer",
    "IdentityQuantizer",
    "IdentityTensor",
    "IdentityTensorStorage",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "LoadedCheckpoint",
    "MXFP8Quantizer",
    "MXFP8Tensor",
    "MXFP8TensorStorage",
    "MultiheadAttention",
    "NVFP4Quantizer",
    "NVFP4Tensor",
    "NVFP4TensorStorage",
    "QuantizedTensor",
    "Quantizer",
    "RMSNorm",
    "RotaryPositionEmbedding",
    "TransformerLayer",
    "autocast",
    "checkpoint",
    "convert",
    "debug",
    "dequantize",
    "emulate_device",
    "fp8_autocast",
    "fp8_model_init",
    "gather_along_first_dim",
    "general_gemm",
    "general_grouped_gemm",
    "general_grouped_gemm_for_grouped_tensor",
    "generic_gemm",
    "get_align_size_for_quantization",
    "get_cpu_offload_context",
    "get_default_recipe",
    "get_device_compute_capability",
    "get_random_sign_mask_for_rht",
    "get_rht_matrix",
    "get_sign_from_vector",
    "group_quantize",
    "install_alias",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
    "load_quantized",
    "make_graphed_callables",
    "mark_not_offload",
    "moe_permute",
    "moe_permute_and_pad_with_probs",
    "moe_permute_with_probs",
    "moe_sort_chunks_by_index",
    "moe_sort_chunks_by_index_with_probs",
    "moe_unpermute",
    "ops",
    "optimizers",
    "parallel_cross_entropy",
    "prepare_for_saving",
    "quantize",
    "quantize_nvfp4",
    "quantized_model_init",
    "recipe",
    "restore_from_func_ctx",
    "restore_from_saved",
    "split_quantize",
    "swizzle_scales_for_gemm_",
    "uninstall_alias",
]
