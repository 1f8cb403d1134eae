"""The conventions of torchao and Comfy. Rules: CKP-28."""

from __future__ import annotations

from dataclasses import replace

from fp4ref.checkpoints.configuration import Configuration, Facts
from fp4ref.checkpoints.convention import Convention, Direction, StoredRole
from fp4ref.checkpoints.conventions_base import BYTES, E4M3_SCALES, E8M0_BYTES, FULL_SCALE, ONE_FLOAT, add
from fp4ref.checkpoints.conventions_modelopt import MODELOPT_FP8, MODELOPT_MXFP8, MODELOPT_NVFP4
from fp4ref.checkpoints.declarations import (
    COMFY_METADATA,
    comfy_attributes,
    torchao_attributes,
    write_comfy,
    write_torchao,
)
from fp4ref.layout import TILED_128X4, Layout
from fp4ref.packings import HIGH_FIRST

TORCHAO_SOURCE = "torchao 36027d82d (2026-08-21), and exports of torchao 0.18.0"


def torchao_layout(convention: Convention, facts: Facts) -> Layout:
    """Return tiles if a tensor's metadata declares swizzled scales."""
    return TILED_128X4 if facts.get("is_swizzled_scales") else convention.layout


TORCHAO_NVFP4 = add(
    Convention(
        name="torchao.nvfp4",
        element="e2m1",
        scale="e4m3",
        block=(1, 16),
        stem="{module}._weight",
        codes=StoredRole("_qdata", BYTES, own=True),
        scales=StoredRole("_scale", E4M3_SCALES),
        global_scale=StoredRole("_per_tensor_scale", ONE_FLOAT, needed=False),
        input_scale=StoredRole("_act_per_tensor_scale", ONE_FLOAT, needed=False),
        global_direction=FULL_SCALE,
        input_direction=FULL_SCALE,
        zero_block=(0x08, 0),
        declared=("NVFP4Tensor",),
        specs=("torchao.nvfp4_2lvl", "torchao.nvfp4_1lvl", "nvfp4"),
        layout_of=torchao_layout,
        configuration=Configuration(
            methods=("torchao",),
            own=True,
            marks=("tensor_names",),
            listing="tensor_names",
            attributes=torchao_attributes,
            write=write_torchao,
        ),
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
        declared=("MXTensor",),
        specs=(
            "torchao.mxfp4_rceil_0_18",
            "torchao.mxfp4_floor_0_18",
            "torchao.mxfp4_rceil",
            "torchao.mxfp4_floor",
            "mxfp4",
        ),
    ),
    TORCHAO_SOURCE,
)
add(
    replace(
        TORCHAO_MXFP4,
        name="torchao.mxfp8",
        element="e4m3",
        codes=StoredRole("_qdata", ("F8_E4M3",), own=True),
        codes_per_item=1,
        specs=(
            "torchao.mxfp8_e4m3_rceil_0_18",
            "torchao.mxfp8_e4m3_floor_0_18",
            "torchao.mxfp8_e4m3_rceil",
            "mxfp8-e4m3",
        ),
    ),
    TORCHAO_SOURCE,
)
add(
    replace(
        TORCHAO_MXFP4,
        name="torchao.mxfp8_e5m2",
        element="e5m2",
        codes=StoredRole("_qdata", ("F8_E5M2",), own=True),
        codes_per_item=1,
        specs=("mxfp8-e5m2",),
    ),
    TORCHAO_SOURCE,
)
COMFY_SOURCE = "comfy-kitchen 7d86acf (2026-08-21), and exports of comfy-kitchen 0.2.40"
COMFY_OTHERS = (".comfy_quant", ".bias")
COMFY = Configuration(own=True, attributes=comfy_attributes, marks=(COMFY_METADATA, ".comfy_quant"), write=write_comfy)
add(
    replace(
        MODELOPT_NVFP4,
        name="comfy.nvfp4",
        others=COMFY_OTHERS,
        packing=HIGH_FIRST,
        layout=TILED_128X4,
        multiples=(16, 16),
        zero_block=(0, 0),
        declared=("nvfp4",),
        static_inputs=(),
        settings={},
        fused=(),
        specs=("nvfp4",),
        configuration=COMFY,
    ),
    COMFY_SOURCE,
)
add(
    replace(
        MODELOPT_FP8,
        name="comfy.fp8",
        declared=("float8_e4m3fn", "fp8"),
        static_inputs=(),
        settings={},
        others=COMFY_OTHERS,
        configuration=COMFY,
    ),
    COMFY_SOURCE,
)
add(
    replace(
        MODELOPT_MXFP8,
        name="comfy.mxfp8",
        layout=TILED_128X4,
        scales=StoredRole(".weight_scale", E8M0_BYTES),
        others=COMFY_OTHERS,
        multiples=(32, 32),
        declared=("mxfp8",),
        configuration=COMFY,
    ),
    COMFY_SOURCE,
)
