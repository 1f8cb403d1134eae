"""The conventions of the field, with what they were read from. Rules: CKP-28."""

from __future__ import annotations

from dataclasses import replace

from fp4ref.checkpoints.convention import FLOATS, Convention, Direction, ScaleWay, StoredRole
from fp4ref.checkpoints.conventions_nvidia import (
    BYTES,
    E4M3_SCALES,
    E8M0_BYTES,
    FP8_SCALE,
    FULL,
    FULL_SCALE,
    MODELOPT_FP8,
    MODELOPT_MXFP8,
    MODELOPT_NVFP4,
    ONE_FLOAT,
    WEIGHT,
    add,
)
from fp4ref.layout import TILED_128X4
from fp4ref.packings import HIGH_FIRST, PACKINGS

GPT_OSS = add(
    Convention(
        name="gpt-oss.mxfp4",
        element="e2m1",
        scale="e8m0",
        block=(1, 32),
        codes=StoredRole("_blocks", BYTES),
        scales=StoredRole("_scales", BYTES),
        others=("_bias",),
        split=True,
        declared=("mxfp4",),
        specs=("torchao.mxfp4_floor", "mxfp4"),
    ),
    "gpt-oss 7b58334 (2026-07-24), transformers 5.23.0",
)
add(
    replace(
        GPT_OSS,
        name="gpt-oss.original",
        codes=StoredRole(".blocks", BYTES),
        scales=StoredRole(".scales", BYTES),
        others=(),
    ),
    "gpt-oss 7b58334 (2026-07-24)",
)
TORCHAO_SOURCE = "torchao 36027d82d (2026-08-21), and exports of torchao 0.18.0"
TORCHAO_NVFP4 = add(
    Convention(
        name="torchao.nvfp4",
        element="e2m1",
        scale="e4m3",
        block=(1, 16),
        codes=StoredRole("_qdata", BYTES),
        scales=StoredRole("_scale", E4M3_SCALES),
        global_scale=StoredRole("_per_tensor_scale", ONE_FLOAT, needed=False),
        input_scale=StoredRole("_act_per_tensor_scale", ONE_FLOAT, needed=False),
        global_direction=FULL_SCALE,
        input_direction=FULL_SCALE,
        zero_block=(0x08, 0),
        declared=("nvfp4tensor",),
        specs=("torchao.nvfp4_2lvl", "torchao.nvfp4_1lvl"),
        per_tensor_layout=True,
    ),
    TORCHAO_SOURCE,
)
TORCHAO_MXFP4 = add(
    replace(
        TORCHAO_NVFP4,
        name="torchao.mxfp4",
        zero_block=(0, 0),
        scale="e8m0",
        block=(1, 32),
        scales=StoredRole("_scale", ("F8_E8M0",)),
        global_scale=None,
        input_scale=None,
        global_direction=Direction(),
        input_direction=Direction(),
        declared=("mxtensor",),
        specs=("torchao.mxfp4_rceil_0_18", "torchao.mxfp4_floor_0_18", "torchao.mxfp4_rceil", "torchao.mxfp4_floor"),
    ),
    TORCHAO_SOURCE,
)
add(
    replace(
        TORCHAO_MXFP4,
        name="torchao.mxfp8",
        element="e4m3",
        codes=StoredRole("_qdata", ("F8_E4M3",)),
        codes_per_item=1,
        specs=("torchao.mxfp8_e4m3_rceil_0_18", "torchao.mxfp8_e4m3_floor_0_18", "torchao.mxfp8_e4m3_rceil"),
    ),
    TORCHAO_SOURCE,
)
COMFY_SOURCE = "comfy-kitchen 7d86acf (2026-08-21), and exports of comfy-kitchen 0.2.40"
add(
    replace(
        MODELOPT_NVFP4,
        name="comfy.nvfp4",
        others=(".comfy_quant", ".bias"),
        packing=HIGH_FIRST,
        layout=TILED_128X4,
        multiples=(16, 16),
        zero_block=(0, 0),
        declared=("nvfp4",),
        fused=(),
        specs=("nvfp4",),
        static_input=False,
    ),
    COMFY_SOURCE,
)
add(
    replace(MODELOPT_FP8, name="comfy.fp8", declared=("float8_e4m3fn", "fp8"), others=(".comfy_quant", ".bias")),
    COMFY_SOURCE,
)
add(
    replace(
        MODELOPT_MXFP8,
        name="comfy.mxfp8",
        layout=TILED_128X4,
        scales=StoredRole(".weight_scale", E8M0_BYTES),
        others=(".comfy_quant", ".bias"),
        multiples=(32, 32),
    ),
    COMFY_SOURCE,
)
DEEPSEEK_SOURCE = "DeepSeek-V3 9b4e978 (2025-08-28); the fourth version from its issue threads"
DEEPSEEK = add(
    Convention(
        name="deepseek.fp8",
        element="e4m3",
        scale="",
        block=(128, 128),
        codes=StoredRole(WEIGHT, ("F8_E4M3",)),
        scales=StoredRole(".weight_scale_inv", ("F32", "BF16", "F8_E8M0", "U8")),
        input_scale=StoredRole(".input_scale", FLOATS, needed=False),
        codes_per_item=1,
        input_direction=FP8_SCALE,
        declared=("fp8",),
    ),
    DEEPSEEK_SOURCE,
)
add(
    replace(DEEPSEEK, name="deepseek.fp8-scale", scales=StoredRole(".scale", ("F32", "BF16", "F8_E8M0", "U8"))),
    DEEPSEEK_SOURCE,
)
add(
    replace(DEEPSEEK, name="deepseek.fp8-tensor", block=(0, 0), scales=StoredRole(".weight_scale", FLOATS)),
    "AutoFP8 and others that declare quant_method fp8",
)
add(
    Convention(
        name="deepseek.fp4",
        element="e2m1",
        scale="e8m0",
        block=(1, 32),
        codes=StoredRole(WEIGHT, ("U8", "I8", "F4")),
        scales=StoredRole(".scale", E8M0_BYTES),
        declared=("fp4",),
        specs=("mxfp4",),
    ),
    DEEPSEEK_SOURCE,
)
add(
    replace(
        MODELOPT_MXFP8, name="deepseek.mxfp8", scales=StoredRole(".weight_scale_inv", E8M0_BYTES), declared=("mxfp8",)
    ),
    "issue threads on MiniMax-M3",
)
MLX_SOURCE = "mlx 846d17622 (2026-08-22), and exports of mlx 0.32.4"
MLX_NVFP4 = add(
    Convention(
        name="mlx.nvfp4",
        element="e2m1",
        scale="e4m3",
        block=(1, 16),
        codes=StoredRole(WEIGHT, ("U32",)),
        scales=StoredRole(".scales", BYTES),
        global_scale=StoredRole(".global_scale", ONE_FLOAT, needed=False),
        global_direction=Direction(ScaleWay.AMAX, FULL),
        codes_per_item=8,
        zero_block=(0, 0),
        no_negative_zero=True,
        declared=("nvfp4",),
    ),
    MLX_SOURCE,
)
MLX_MXFP4 = add(
    replace(
        MLX_NVFP4,
        name="mlx.mxfp4",
        scale="e8m0",
        block=(1, 32),
        global_scale=None,
        global_direction=Direction(),
        zero_block=(0x7F, 0),
        declared=("mxfp4",),
    ),
    MLX_SOURCE,
)
add(
    replace(
        MLX_MXFP4,
        name="mlx.mxfp8",
        element="e4m3",
        codes_per_item=4,
        no_negative_zero=False,
        declared=("mxfp8",),
    ),
    MLX_SOURCE,
)
GGUF_SOURCE = "ggml as copied in other repositories; gguf 0.19.0 was run"
GGUF_MXFP4 = add(
    Convention(
        name="gguf.mxfp4",
        element="e2m1",
        scale="e8m0",
        block=(1, 32),
        codes=StoredRole(WEIGHT, ("MXFP4",)),
        codes_per_item=1,
        struct=True,
        packing=PACKINGS["ggml.mxfp4_data"],
        declared=("mxfp4",),
        specs=("torchao.mxfp4_floor",),
    ),
    GGUF_SOURCE,
)
add(
    replace(
        GGUF_MXFP4,
        name="gguf.nvfp4",
        scale="e4m3",
        block=(1, 16),
        codes=StoredRole(WEIGHT, ("NVFP4",)),
        packing=PACKINGS["ggml.nvfp4_data"],
        global_scale=StoredRole(".scale", ONE_FLOAT, needed=False),
        input_scale=StoredRole(".input_scale", ONE_FLOAT, needed=False),
        global_direction=FULL_SCALE,
        input_direction=FULL_SCALE,
        declared=("nvfp4",),
        specs=("nvfp4",),
    ),
    GGUF_SOURCE,
)
