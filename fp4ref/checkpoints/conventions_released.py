"""The conventions of models that are released quantized: gpt-oss and DeepSeek. Rules: CKP-28."""

from __future__ import annotations

from dataclasses import replace

from fp4ref.checkpoints.configuration import SECTION, TRANSFORMERS, Configuration
from fp4ref.checkpoints.convention import FLOATS, Convention, Direction, Misread, StoredRole
from fp4ref.checkpoints.conventions_base import BYTES, E8M0_BYTES, FP8_SCALE, WEIGHT, add
from fp4ref.checkpoints.conventions_modelopt import MODELOPT_MXFP8
from fp4ref.checkpoints.declarations import write_deepseek, write_method

GPT_OSS = add(
    Convention(
        name="gpt-oss.mxfp4",
        element="e2m1",
        scale="e8m0",
        block=(1, 32),
        codes=StoredRole("_blocks", BYTES, own=True),
        scales=StoredRole("_scales", BYTES),
        others=("_bias",),
        split=True,
        declared=("mxfp4",),
        specs=("torchao.mxfp4_floor", "mxfp4"),
        turned=True,
        misread=Misread(frozenset({0xFF}), "0xFF is 2^128"),
        configuration=Configuration(
            methods=("mxfp4",),
            section=SECTION,
            required=True,
            excludes="modules_to_not_convert",
            named=TRANSFORMERS,
            write=write_method("mxfp4"),
        ),
    ),
    "gpt-oss 7b58334 (2026-07-24), transformers 5.23.0",
)
add(
    replace(
        GPT_OSS,
        name="gpt-oss.original",
        codes=StoredRole(".blocks", BYTES, own=True),
        scales=StoredRole(".scales", BYTES),
        others=(),
        turned=False,
        configuration=replace(GPT_OSS.configuration, required=False),
    ),
    "gpt-oss 7b58334 (2026-07-24)",
)
DEEPSEEK_SOURCE = "DeepSeek-V3 9b4e978 (2025-08-28); the fourth version from its issue threads"
DEEPSEEK = add(
    Convention(
        name="deepseek.fp8",
        element="e4m3",
        scale="",
        block=(128, 128),
        codes=StoredRole(WEIGHT, ("F8_E4M3",)),
        scales=StoredRole(".weight_scale_inv", ("F32", "BF16", "F8_E8M0", "U8"), own=True),
        input_scale=StoredRole(".input_scale", FLOATS, needed=False),
        codes_per_item=1,
        input_direction=FP8_SCALE,
        declared=("fp8",),
        configuration=Configuration(
            methods=("fp8", "mxfp8"),
            section=SECTION,
            excludes="modules_to_not_convert",
            named=TRANSFORMERS,
            experts="expert_dtype",
            write=write_deepseek,
        ),
    ),
    DEEPSEEK_SOURCE,
)
add(
    replace(DEEPSEEK, name="deepseek.fp8-scale", scales=StoredRole(".scale", ("F32", "BF16", "F8_E8M0", "U8"))),
    DEEPSEEK_SOURCE,
)
add(
    replace(
        DEEPSEEK,
        name="deepseek.fp8-tensor",
        block=(0, 0),
        scales=StoredRole(".weight_scale", FLOATS),
        variant_of=DEEPSEEK.name,
    ),
    "AutoFP8 and others that declare quant_method fp8",
)
add(
    replace(
        DEEPSEEK,
        name="deepseek.fp4",
        element="e2m1",
        scale="e8m0",
        block=(1, 32),
        codes=StoredRole(WEIGHT, ("U8", "I8", "F4")),
        scales=StoredRole(".scale", ("F8_E8M0", "U8"), own=True),
        input_scale=None,
        codes_per_item=2,
        input_direction=Direction(),
        declared=("fp4",),
        specs=("mxfp4",),
    ),
    DEEPSEEK_SOURCE,
)
add(
    replace(
        MODELOPT_MXFP8,
        name="deepseek.mxfp8",
        scales=StoredRole(".weight_scale_inv", E8M0_BYTES, own=True),
        declared=("mxfp8",),
        configuration=DEEPSEEK.configuration,
    ),
    "issue threads on MiniMax-M3; the configuration as sglang's loader reads it (2026-09)",
)
