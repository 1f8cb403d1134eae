"""The conventions of the field, with what they were read from. Rules: CKP-28."""

from __future__ import annotations

from dataclasses import replace

from fp4ref.checkpoints.convention import CONVENTIONS, FLOATS, Convention, Direction, ScaleWay, StoredRole
from fp4ref.formats import E2M1, E4M3
from fp4ref.layout import TILED_128X4
from fp4ref.packings import HIGH_FIRST, PACKINGS

FULL = E2M1.max * E4M3.max  # 2688: the amax of a tensor whose global scale is 1
FULL_SCALE = Direction(ScaleWay.MULTIPLIER, FULL)
DIVISOR = Direction(ScaleWay.DIVISOR, FULL)
FP8_SCALE = Direction(ScaleWay.MULTIPLIER, E4M3.max)
FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("wq", "wk", "wv"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("wq_a", "wkv_a_with_mqa"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("to_q", "to_k", "to_v"),
)
E4M3_SCALES, BYTES, E8M0_BYTES = ("F8_E4M3",), ("U8",), ("U8", "F8_E8M0")
ONE_FLOAT = ("F32",)
AWQ = (".pre_quant_scale", ".svdquant_lora_a", ".svdquant_lora_b", ".lora_a", ".lora_b")
WEIGHT = ".weight"


def _add(value: Convention, source: str) -> Convention:
    return CONVENTIONS.register(value, source)


MODELOPT_SOURCE = "Model-Optimizer a2fbac7ba (2026-08-21), and exports of modelopt 0.47.0"
MODELOPT_NVFP4 = _add(
    Convention(
        name="modelopt.nvfp4",
        element="e2m1",
        scale="e4m3",
        block=(1, 16),
        codes=StoredRole(WEIGHT, BYTES),
        scales=StoredRole(".weight_scale", E4M3_SCALES),
        global_scale=StoredRole(".weight_scale_2", ONE_FLOAT),
        input_scale=StoredRole(".input_scale", ONE_FLOAT, needed=False),
        others=AWQ,
        global_direction=FULL_SCALE,
        input_direction=FULL_SCALE,
        zero_block=(0x38, 0),
        declared=("nvfp4", "nvfp4_awq", "nvfp4_svd", "w4a16_nvfp4"),
        fused=FUSED,
        specs=("modelopt.nvfp4", "nvfp4"),
        static_input=True,
    ),
    MODELOPT_SOURCE,
)
_add(
    replace(
        MODELOPT_NVFP4,
        name="modelopt.w4a8_nvfp4_fp8",
        block=(1, 32),
        global_direction=FP8_SCALE,
        input_direction=FP8_SCALE,
        declared=("w4a8_nvfp4_fp8",),
        specs=(),
    ),
    MODELOPT_SOURCE,
)
MODELOPT_MXFP4 = _add(
    Convention(
        name="modelopt.mxfp4",
        element="e2m1",
        scale="e8m0",
        block=(1, 32),
        codes=StoredRole(WEIGHT, BYTES),
        scales=StoredRole(".weight_scale", BYTES),
        input_scale=StoredRole(".input_scale", ONE_FLOAT, needed=False),
        others=AWQ,
        input_direction=FP8_SCALE,
        zero_block=(0, 8),
        declared=("mxfp4", "w4a8_mxfp4_fp8"),
        specs=("modelopt.mxfp4",),
    ),
    MODELOPT_SOURCE,
)
MODELOPT_MXFP8 = _add(
    Convention(
        name="modelopt.mxfp8",
        element="e4m3",
        scale="e8m0",
        block=(1, 32),
        codes=StoredRole(WEIGHT, ("F8_E4M3",)),
        scales=StoredRole(".weight_scale", BYTES),
        codes_per_item=1,
        zero_block=(0, 0),
        declared=("mxfp8",),
        specs=("torchao.mxfp8_e4m3_rceil", "mxfp8-e4m3"),
    ),
    MODELOPT_SOURCE,
)
MODELOPT_FP8 = _add(
    Convention(
        name="modelopt.fp8",
        element="e4m3",
        scale="",
        block=(0, 0),
        codes=StoredRole(WEIGHT, ("F8_E4M3",)),
        scales=StoredRole(".weight_scale", FLOATS),
        input_scale=StoredRole(".input_scale", ONE_FLOAT, needed=False),
        others=AWQ,
        codes_per_item=1,
        input_direction=FP8_SCALE,
        declared=("fp8", "fp8_per_channel_per_token", "fp8_pb_wo", "fp8_pb_real"),
    ),
    MODELOPT_SOURCE,
)
CT_SOURCE = "compressed-tensors ac8e2ba8 (2026-08-06), and exports of llmcompressor 0.14.0.1"
CT_OTHERS = (".weight_zero_point", ".weight_shape")
CT_NVFP4 = _add(
    Convention(
        name="compressed-tensors.nvfp4",
        element="e2m1",
        scale="e4m3",
        block=(1, 16),
        codes=StoredRole(".weight_packed", BYTES),
        scales=StoredRole(".weight_scale", E4M3_SCALES),
        global_scale=StoredRole(".weight_global_scale", ONE_FLOAT),
        input_scale=StoredRole(".input_global_scale", ONE_FLOAT, needed=False),
        global_direction=DIVISOR,
        input_direction=DIVISOR,
        zero_block=(0x20, 0),
        declared=("nvfp4-pack-quantized",),
        fused=FUSED,
        specs=("compressed_tensors.nvfp4", "nvfp4"),
        static_input=True,
    ),
    CT_SOURCE,
)
CT_MXFP4 = _add(
    Convention(
        name="compressed-tensors.mxfp4",
        element="e2m1",
        scale="e8m0",
        block=(1, 32),
        codes=StoredRole(".weight_packed", BYTES),
        scales=StoredRole(".weight_scale", BYTES),
        zero_block=(0, 0),
        declared=("mxfp4-pack-quantized",),
        specs=("compressed_tensors.mxfp4",),
    ),
    CT_SOURCE,
)
CT_MXFP8 = _add(
    Convention(
        name="compressed-tensors.mxfp8",
        element="e4m3",
        scale="e8m0",
        block=(1, 32),
        codes=StoredRole(WEIGHT, ("F8_E4M3",)),
        scales=StoredRole(".weight_scale", BYTES),
        codes_per_item=1,
        zero_block=(0, 0),
        declared=("mxfp8-quantized",),
        specs=("compressed_tensors.mxfp8",),
    ),
    CT_SOURCE,
)
CT_FP8 = _add(
    Convention(
        name="compressed-tensors.fp8",
        element="e4m3",
        scale="",
        block=(0, 0),
        codes=StoredRole(WEIGHT, ("F8_E4M3",)),
        scales=StoredRole(".weight_scale", FLOATS),
        input_scale=StoredRole(".input_scale", FLOATS, needed=False),
        others=CT_OTHERS,
        codes_per_item=1,
        input_direction=FP8_SCALE,
        declared=("float-quantized", "naive-quantized"),
    ),
    CT_SOURCE,
)
GPT_OSS = _add(
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
_add(
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
TORCHAO_NVFP4 = _add(
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
TORCHAO_MXFP4 = _add(
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
_add(
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
_add(
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
_add(
    replace(MODELOPT_FP8, name="comfy.fp8", declared=("float8_e4m3fn", "fp8"), others=(".comfy_quant", ".bias")),
    COMFY_SOURCE,
)
_add(
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
DEEPSEEK = _add(
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
_add(
    replace(DEEPSEEK, name="deepseek.fp8-scale", scales=StoredRole(".scale", ("F32", "BF16", "F8_E8M0", "U8"))),
    DEEPSEEK_SOURCE,
)
_add(
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
_add(
    replace(
        MODELOPT_MXFP8, name="deepseek.mxfp8", scales=StoredRole(".weight_scale_inv", E8M0_BYTES), declared=("mxfp8",)
    ),
    "issue threads on MiniMax-M3",
)
MLX_SOURCE = "mlx 846d17622 (2026-08-22), and exports of mlx 0.32.4"
MLX_NVFP4 = _add(
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
MLX_MXFP4 = _add(
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
_add(
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
GGUF_MXFP4 = _add(
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
_add(
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
