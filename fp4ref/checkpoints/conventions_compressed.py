"""The conventions of compressed-tensors. Rules: CKP-28."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fp4ref.checkpoints.configuration import EXPRESSIONS, SECTION, Configuration
from fp4ref.checkpoints.convention import FLOATS, Direction, StoredRole
from fp4ref.checkpoints.conventions_base import BYTES, DIVISOR, FP8_SCALE, ONE_FLOAT, WEIGHT, add
from fp4ref.checkpoints.conventions_modelopt import MODELOPT_NVFP4
from fp4ref.checkpoints.declarations import write_compressed

CT_SOURCE = "compressed-tensors ac8e2ba8 (2026-08-06), and exports of llmcompressor 0.14.0.1"
CT_OTHERS = (".weight_zero_point", ".weight_shape")
COMPRESSED = Configuration(
    methods=("compressed-tensors",),
    section=SECTION,
    required=True,
    excludes="ignore",
    closed=True,
    named=EXPRESSIONS,
    grouped=True,
    kv_shape=(1,),
    ambiguous=True,
    write=write_compressed,
)


def _settings(
    bits: int,
    strategy: str,
    size: int | None,
    dynamic: Any,
    scales: str = "",
    *,
    weights: Mapping[str, Any] = MappingProxyType({}),
    inputs: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, dict[str, Any]]:
    """Return the settings that compressed-tensors gives weights and inputs in `config_groups`.

    weights, inputs: those in which the two differ.
    """
    common = {"num_bits": bits, "type": "float", "symmetric": True, "strategy": strategy, "group_size": size}
    if scales:
        common["scale_dtype"] = f"torch.{scales}"
    return {
        "weights": {**common, "dynamic": False, **weights},
        "input_activations": {**common, "dynamic": dynamic, **inputs},
    }


CT_NVFP4 = add(
    replace(
        MODELOPT_NVFP4,
        name="compressed-tensors.nvfp4",
        codes=StoredRole(".weight_packed", BYTES, own=True),
        global_scale=StoredRole(".weight_global_scale", ONE_FLOAT, own=True, shape=(1,)),
        input_scale=StoredRole(".input_global_scale", ONE_FLOAT, needed=False, own=True, shape=(1,)),
        others=(),
        global_direction=DIVISOR,
        input_direction=DIVISOR,
        zero_block=(0x20, 0),
        declared=("nvfp4-pack-quantized",),
        static_inputs=(),
        settings=_settings(4, "tensor_group", 16, "local", "float8_e4m3fn"),
        specs=("compressed_tensors.nvfp4", "nvfp4"),
        configuration=COMPRESSED,
    ),
    CT_SOURCE,
)
CT_MXFP4 = add(
    replace(
        CT_NVFP4,
        name="compressed-tensors.mxfp4",
        scale="e8m0",
        block=(1, 32),
        scales=StoredRole(".weight_scale", BYTES),
        global_scale=None,
        input_scale=None,
        global_direction=Direction(),
        input_direction=Direction(),
        zero_block=(0, 0),
        declared=("mxfp4-pack-quantized",),
        settings=_settings(4, "group", 32, True, "uint8"),
        fused=(),
        specs=("compressed_tensors.mxfp4", "mxfp4"),
    ),
    CT_SOURCE,
)
CT_MXFP8 = add(
    replace(
        CT_MXFP4,
        name="compressed-tensors.mxfp8",
        element="e4m3",
        codes=StoredRole(WEIGHT, ("F8_E4M3",)),
        codes_per_item=1,
        declared=("mxfp8-quantized",),
        settings=_settings(8, "group", 32, True, "uint8"),
        specs=("compressed_tensors.mxfp8", "mxfp8-e4m3"),
    ),
    CT_SOURCE,
)
CT_FP8 = add(
    replace(
        CT_MXFP8,
        name="compressed-tensors.fp8",
        scale="",
        block=(0, 0),
        scales=StoredRole(".weight_scale", FLOATS, shape=(1,)),
        input_scale=StoredRole(".input_scale", FLOATS, needed=False, shape=(1,)),
        others=CT_OTHERS,
        input_direction=FP8_SCALE,
        zero_block=None,
        declared=("float-quantized", "naive-quantized"),
        settings=_settings(8, "tensor", None, False),
        specs=(),
    ),
    CT_SOURCE,
)
CT_FP8_ROW = add(
    replace(
        CT_FP8,
        name="compressed-tensors.fp8-row",
        block=(1, 0),
        scales=StoredRole(".weight_scale", FLOATS, shape=(1,)),
        input_scale=None,
        input_direction=Direction(),
        settings=_settings(8, "channel", None, True, inputs={"strategy": "token"}),
    ),
    CT_SOURCE,
)
add(
    replace(
        CT_FP8_ROW,
        name="compressed-tensors.fp8-square",
        block=(128, 128),
        scales=StoredRole(".weight_scale", FLOATS),
        settings=_settings(
            8,
            "block",
            None,
            True,
            weights={"block_structure": [128, 128]},
            inputs={"strategy": "group", "group_size": 128},
        ),
    ),
    CT_SOURCE,
)
