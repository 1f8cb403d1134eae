"""The conventions of modelopt and compressed-tensors, and what several conventions share. Rules: CKP-28."""

from __future__ import annotations

from dataclasses import replace

from fp4ref.checkpoints.convention import CONVENTIONS, FLOATS, Convention, Direction, ScaleWay, StoredRole
from fp4ref.formats import E2M1, E4M3

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


def add(value: Convention, source: str) -> Convention:
    """Register a convention of this project, and return it."""
    return CONVENTIONS.register(value, source)


MODELOPT_SOURCE = "Model-Optimizer a2fbac7ba (2026-08-21), and exports of modelopt 0.47.0"
MODELOPT_NVFP4 = add(
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
add(
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
MODELOPT_MXFP4 = add(
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
MODELOPT_MXFP8 = add(
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
MODELOPT_FP8 = add(
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
CT_NVFP4 = add(
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
CT_MXFP4 = add(
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
CT_MXFP8 = add(
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
CT_FP8 = add(
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
