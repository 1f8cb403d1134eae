"""The conventions of MLX and GGUF. Rules: CKP-28."""

from __future__ import annotations

from dataclasses import replace

from fp4ref.checkpoints.configuration import Configuration
from fp4ref.checkpoints.convention import Convention, Direction, Misread, StoredRole
from fp4ref.checkpoints.conventions_base import BYTES, FULL_SCALE, ITSELF, ONE_FLOAT, WEIGHT, add
from fp4ref.checkpoints.declarations import write_mlx
from fp4ref.packings import PACKINGS

MLX_SOURCE = "mlx 846d17622 (2026-08-22), and exports of mlx 0.32.4"
MLX_NVFP4 = add(
    Convention(
        name="mlx.nvfp4",
        element="e2m1",
        scale="e4m3",
        block=(1, 16),
        codes=StoredRole(WEIGHT, ("U32",)),
        scales=StoredRole(".scales", BYTES, own=True),
        global_scale=StoredRole(".global_scale", ONE_FLOAT, needed=False, shape=(1,)),
        global_direction=ITSELF,
        codes_per_item=8,
        zero_block=(0, 0),
        no_negative_zero=True,
        declared=("nvfp4",),
        specs=("nvfp4",),
        configuration=Configuration(section="quantization", required=True, write=write_mlx),
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
        specs=("mxfp4",),
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
        specs=("mxfp8-e4m3",),
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
        misread=Misread(frozenset({0xFF}), "0xFF is infinity"),
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
        misread=Misread(frozenset({0x7F, *range(0x80, 0x100)}), "UE4M3: the sign is ignored, NaN is 0"),
        global_scale=StoredRole(".scale", ONE_FLOAT, needed=False, shape=(1,)),
        input_scale=StoredRole(".input_scale", ONE_FLOAT, needed=False, shape=(1,)),
        global_direction=FULL_SCALE,
        input_direction=FULL_SCALE,
        declared=("nvfp4",),
        specs=("nvfp4",),
    ),
    GGUF_SOURCE,
)
