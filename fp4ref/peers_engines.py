"""Specifications of inference engines and kernel libraries: ggml, MLX, triton_kernels, vLLM, aiter, Quark, Comfy.

Rules: PRO-1, PRO-2, PRO-3, PRO-4.
"""

from fp4ref import arithmetic_engines as ae
from fp4ref import arithmetic_peers as ap
from fp4ref.formats import CUDA_E2M1, E2M1, E2M3, E3M2, E4M3, E8M0, GGML_UE4M3, Codec, Rounding, Sign
from fp4ref.peers import (
    CPU,
    INFINITE_E8M0,
    NONE,
    PAYLOAD,
    TORCH_E4M3,
    TORCH_E5M2,
    TORCH_MX,
    TORCH_NVFP4,
    TORCHAO_E2M1,
    ZERO_NAN,
    not_a_function,
    peer,
    read,
    recorded,
)
from fp4ref.promise import Claim
from fp4ref.spec import Amax, Granularity

# A search for the nearest listed value: a tie goes to the one listed first, and zero is listed without a sign.
LISTED_E2M1 = Codec(format=E2M1, rounding=Rounding.DOWN, sign=Sign.NONZERO, nan=(0, 0), infinity=0)
SIGNED_NAN_E2M1 = Codec(format=E2M1, nan=(7, 15))
SATURATED_E4M3 = Codec(format=E4M3, nan=(0x7E, 0xFE))

# llama.cpp
GGML = recorded("d99724f2", how=f"{CPU}, gcc -O2 -ffp-contract=off; float32 input")
_ggml = peer(TORCH_MX, "ggml.mxfp4", GGML, arithmetic=ae.GGML, element=LISTED_E2M1, amax=Amax.IGNORE_NAN)
peer(
    TORCH_NVFP4,
    "ggml.nvfp4",
    GGML,
    arithmetic=ae.GGML_NVFP4,
    element=LISTED_E2M1,
    scale=GGML_UE4M3,
    global_scale=NONE,
    amax=Amax.IGNORE_NAN,
)
peer(_ggml, "gguf.mxfp4", recorded("0.19.0", how=f"{CPU}, NumPy; float32 input"), amax=Amax.PROPAGATE_NAN)

# MLX
MLX = recorded("0.32.4", how="mlx-cpu (x86-64)")
peer(TORCH_MX, "mlx.mxfp4", MLX, arithmetic=ae.MLX, element=LISTED_E2M1)
peer(TORCH_MX, "mlx.mxfp8", MLX, arithmetic=ae.MLX_FP8, element=SATURATED_E4M3)
peer(
    TORCH_NVFP4,
    "mlx.nvfp4",
    MLX,
    arithmetic=ae.MLX_NVFP4,
    element=LISTED_E2M1,
    scale=SATURATED_E4M3,
    global_scale=NONE,
)
peer(TORCH_NVFP4, "mlx.nvfp4_global", MLX, arithmetic=ae.MLX_NVFP4_GLOBAL, element=LISTED_E2M1, scale=SATURATED_E4M3)
METAL = read(
    "0.32.4", how="fp_quantize in the Metal sources of its wheel; not run on Apple's GPUs, which may flush subnormals"
)
_metal = peer(TORCH_MX, "mlx.mxfp8_metal", METAL, arithmetic=ae.MLX_METAL, element=SATURATED_E4M3, scale=INFINITE_E8M0)
peer(_metal, "mlx.mxfp4_metal", METAL, element=CUDA_E2M1)
_metal = peer(
    TORCH_NVFP4,
    "mlx.nvfp4_metal",
    METAL,
    arithmetic=ae.MLX_METAL,
    element=CUDA_E2M1,
    scale=SATURATED_E4M3,
    global_scale=NONE,
)
peer(_metal, "mlx.nvfp4_global_metal", METAL, arithmetic=ae.MLX_METAL_GLOBAL, global_scale=Granularity.TENSOR)

# triton_kernels, the torch reference; with torch 2.13 its clamp at 448 changes nothing
TRITON = recorded("018a674")
for _name, _element in (("mxfp4", SIGNED_NAN_E2M1), ("mxfp8_e4m3", TORCH_E4M3), ("mxfp8_e5m2", TORCH_E5M2)):
    for _mode, _arithmetic in (("up", ae.TRITON_UP), ("down", ae.TRITON_DOWN)):
        peer(
            TORCH_MX,
            f"triton_kernels.{_name}_{_mode}",
            TRITON,
            element=_element,
            scale=INFINITE_E8M0,
            arithmetic=_arithmetic,
        )
for _mode in ("up", "nearest"):
    peer(
        TORCH_NVFP4,
        f"triton_kernels.nvfp4_{_mode}",
        TRITON,
        element=SIGNED_NAN_E2M1,
        arithmetic=ae.TRITON_NVFP4,
        global_scale=NONE,
    )

# vLLM's emulation and the reference of its tests
VLLM = recorded("0.33.0")
peer(TORCH_NVFP4, "vllm.ref_nvfp4_emulation", VLLM, arithmetic=ae.VLLM, element=ZERO_NAN)
peer(TORCH_NVFP4, "vllm.tests_ref_nvfp4", VLLM, arithmetic=ap.FLASHINFER, element=ZERO_NAN)
peer(
    TORCH_MX,
    "vllm.ref_mxfp8",
    VLLM,
    arithmetic=ae.VLLM_MX,
    scale=Codec(format=E8M0, rounding=Rounding.UP, nan=(0, 0)),
)

# AMD
for _mode, _arithmetic in ae.AITER.items():
    _commit = "e4048607"
    _promise = recorded(_commit, nan=PAYLOAD) if _mode == "even" else recorded(_commit)  # a carry changes payloads
    peer(TORCH_MX, f"aiter.mxfp4_{_mode}", _promise, arithmetic=_arithmetic, element=TORCHAO_E2M1)
# Quark returns values; its scales stay in float32, and may be smaller than any byte of E8M0.
NO_CODE = Claim(False, "the peer returns values that no code or byte of the format holds")
TINY_SCALE = Claim(True, "where a block's scale is at least 2^-127, the smallest of E8M0")
QUARK_ELEMENTS = {
    "mxfp4": Codec(format=E2M1, sign=Sign.NONZERO, nan=(7, 7)),
    "mxfp6_e2m3": Codec(format=E2M3, sign=Sign.NONZERO, nan=(0x1F, 0x1F)),
    "mxfp6_e3m2": Codec(format=E3M2, sign=Sign.NONZERO, nan=(0x1F, 0x1F)),
    "mxfp8_e4m3": TORCH_E4M3,
    "mxfp8_e5m2": TORCH_E5M2,
}
for _name, _element in QUARK_ELEMENTS.items():
    for _mode, _arithmetic in ae.QUARK.items():
        _promise = recorded("0.13", finite=TINY_SCALE, nan=NO_CODE, infinite=NO_CODE)
        peer(
            TORCH_MX,
            f"quark.{_name}_{_mode}",
            recorded("0.13") if _mode == "even" else _promise,
            arithmetic=_arithmetic,
            element=_element,
        )

# comfy-kitchen, the eager backend
COMFY = recorded("0.2.40", nan=not_a_function("a NaN tensor's payloads, and so its codes, depend on the loop"))
peer(TORCH_NVFP4, "comfy_kitchen.nvfp4", COMFY, arithmetic=ae.COMFY, element=TORCHAO_E2M1)
peer(TORCH_MX, "comfy_kitchen.mxfp8", recorded("0.2.40"), arithmetic=ae.COMFY_MX)
