"""compressed-tensors: what its compressors write for a weight, with dynamic scales."""

import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils.helpers import compute_dynamic_scales_and_zp, generate_gparam
from tensors import as_bytes, tensor

TYPES = ("float32", "bfloat16", "float16")


def _quantizer(compressor, bits, group, scale_dtype):
    strategy = "tensor_group" if group == 16 else "group"
    args = QuantizationArgs(
        num_bits=bits, type="float", strategy=strategy, group_size=group, symmetric=True, scale_dtype=scale_dtype
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=args)

    def quantize(x):
        weight = tensor(x)
        of_tensor = generate_gparam(weight.amin(), weight.amax()) if group == 16 else None
        scale, _ = compute_dynamic_scales_and_zp(weight, args, None, global_scale=of_tensor)
        state = {"weight": weight, "weight_scale": scale, "weight_global_scale": of_tensor}
        made = compressor.compress({name: part for name, part in state.items() if part is not None}, scheme)
        data = made["weight_packed"] if "weight_packed" in made else made["weight"]
        return as_bytes(data, len(x)), as_bytes(made["weight_scale"], len(x))

    return quantize


PROFILES = {
    "compressed_tensors.nvfp4": _quantizer(NVFP4PackedCompressor, 4, 16, torch.float8_e4m3fn),
    "compressed_tensors.mxfp4": _quantizer(MXFP4PackedCompressor, 4, 32, torch.uint8),
    "compressed_tensors.mxfp8": _quantizer(MXFP8QuantizationCompressor, 8, 32, torch.uint8),
}
