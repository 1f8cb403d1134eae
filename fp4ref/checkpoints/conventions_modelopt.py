"""The conventions of modelopt. Rules: CKP-28."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fp4ref.checkpoints.configuration import HF_QUANT, SECTION, SUBSTRING, WILDCARD, Configuration
from fp4ref.checkpoints.convention import FLOATS, Convention, Direction, StoredRole
from fp4ref.checkpoints.conventions_base import (
    AWQ,
    BYTES,
    E4M3_SCALES,
    FP8_SCALE,
    FULL_SCALE,
    FUSED,
    ONE_FLOAT,
    WEIGHT,
    add,
)
from fp4ref.checkpoints.declarations import write_modelopt


def _numbers(bits: int, size: int = 0) -> dict[str, Any]:
    """Return the settings that modelopt gives weights and inputs in `config_groups`."""
    return {"dynamic": False, "num_bits": bits, "type": "float", **({"group_size": size} if size else {})}


MODELOPT_SOURCE = "Model-Optimizer a2fbac7ba (2026-08-21), and exports of modelopt 0.47.0"
MODELOPT = Configuration(
    methods=("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8"),
    section=SECTION,
    file=HF_QUANT,
    required=True,
    excludes="ignore",
    closed=True,
    readers={"vllm": SUBSTRING, "sglang": SUBSTRING, "tensorrt-llm": WILDCARD},
    grouped=True,
    kv_scales=(".k_proj.k_scale", ".v_proj.v_scale"),
    write=write_modelopt,
)
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
        declared=("NVFP4", "NVFP4_AWQ", "NVFP4_SVD", "W4A16_NVFP4"),
        static_inputs=("NVFP4", "NVFP4_AWQ"),
        settings={"weights": _numbers(4, 16), "input_activations": _numbers(4, 16)},
        fused=FUSED,
        specs=("modelopt.nvfp4", "nvfp4"),
        configuration=MODELOPT,
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
        declared=("W4A8_NVFP4_FP8",),
        static_inputs=("W4A8_NVFP4_FP8",),
        settings={},
        specs=(),
    ),
    MODELOPT_SOURCE,
)
add(
    replace(
        MODELOPT_NVFP4,
        name="modelopt.nvfp4-32",
        block=(1, 32),
        sized=True,
        settings={"weights": _numbers(4, 32), "input_activations": _numbers(4, 32)},
        specs=(),
    ),
    "exports of modelopt 0.47.0 by NVFP4_MLP_WEIGHT_ONLY_CFG",
)
MODELOPT_MXFP4 = add(
    replace(
        MODELOPT_NVFP4,
        name="modelopt.mxfp4",
        scale="e8m0",
        block=(1, 32),
        scales=StoredRole(".weight_scale", BYTES),
        global_scale=None,
        global_direction=Direction(),
        input_direction=FP8_SCALE,
        zero_block=(0, 8),
        declared=("mxfp4", "W4A8_MXFP4_FP8"),
        static_inputs=(),
        settings={},
        fused=(),
        specs=("modelopt.mxfp4", "mxfp4"),
    ),
    MODELOPT_SOURCE,
)
MODELOPT_MXFP8 = add(
    replace(
        MODELOPT_MXFP4,
        name="modelopt.mxfp8",
        element="e4m3",
        codes=StoredRole(WEIGHT, ("F8_E4M3",)),
        input_scale=None,
        others=(),
        codes_per_item=1,
        input_direction=Direction(),
        zero_block=(0, 0),
        declared=("MXFP8",),
        specs=("torchao.mxfp8_e4m3_rceil", "mxfp8-e4m3"),
    ),
    MODELOPT_SOURCE,
)
MODELOPT_FP8 = add(
    replace(
        MODELOPT_MXFP8,
        name="modelopt.fp8",
        scale="",
        block=(0, 0),
        scales=StoredRole(".weight_scale", FLOATS),
        input_scale=StoredRole(".input_scale", ONE_FLOAT, needed=False),
        others=AWQ,
        input_direction=FP8_SCALE,
        zero_block=None,
        declared=("FP8",),
        static_inputs=("FP8",),
        settings={"weights": _numbers(8), "input_activations": _numbers(8)},
        specs=(),
    ),
    MODELOPT_SOURCE,
)
MODELOPT_FP8_ROW = add(
    replace(
        MODELOPT_FP8,
        name="modelopt.fp8-row",
        block=(1, 0),
        input_scale=None,
        input_direction=Direction(),
        declared=("FP8_PER_CHANNEL_PER_TOKEN",),
        static_inputs=(),
        settings={},
    ),
    MODELOPT_SOURCE,
)
add(
    replace(
        MODELOPT_FP8_ROW,
        name="modelopt.fp8-square",
        block=(128, 128),
        scales=StoredRole(".weight_scale", FLOATS, shape=(1,)),
        declared=("fp8_pb_wo", "FP8_PB_REAL"),
    ),
    MODELOPT_SOURCE,
)
