"""The conventions of this project's files and of Transformer Engine's buffers. Rules: CKP-28."""

from __future__ import annotations

from dataclasses import replace

from fp4ref.checkpoints.configuration import Configuration, Facts
from fp4ref.checkpoints.convention import Convention, Direction, ScaleWay, StoredRole
from fp4ref.checkpoints.conventions_base import BYTES, ITSELF, ONE_FLOAT, add
from fp4ref.checkpoints.declarations import attributes_under, write_attributes
from fp4ref.formats import E2M1
from fp4ref.layout import LAYOUTS, LINEAR_PADDED, TILED_128X4, Layout
from fp4ref.spec import SPEC_VERSION

TE_SOURCE = "TransformerEngine d0067d0da (2026-08-22), whose buffers these are; it pickles them, and names no file"
TE_KEY = "transformer_engine"  # of the metadata of a safetensors file


def te_layout(convention: Convention, facts: Facts) -> Layout:
    """Return tiles if the scales were swizzled for a GEMM, else rows padded to tiles."""
    return TILED_128X4 if facts.get("with_gemm_swizzled_scales") else convention.layout


TE_NVFP4 = add(
    Convention(
        name="te.nvfp4",
        element="e2m1",
        scale="e4m3",
        block=(1, 16),
        stem="{module}.weight",
        codes=StoredRole(".rowwise_data", BYTES, own=True),
        scales=StoredRole(".rowwise_scale_inv", BYTES, own=True),
        global_scale=StoredRole(".amax_rowwise", ONE_FLOAT, own=True, shape=(1,)),
        others=(".columnwise_data", ".columnwise_scale_inv", ".amax_columnwise"),
        layout=LINEAR_PADDED,
        layout_of=te_layout,
        global_direction=ITSELF,
        declared=("e2m1, e4m3, 448",),
        specs=("nvfp4", "nvfp4-2d"),
        configuration=Configuration(
            own=True, marks=(TE_KEY,), attributes=attributes_under(TE_KEY), write=write_attributes(TE_KEY)
        ),
    ),
    TE_SOURCE,
)
add(
    replace(
        TE_NVFP4,
        name="te.mxfp8",
        element="e4m3",
        scale="e8m0",
        block=(1, 32),
        global_scale=None,
        codes_per_item=1,
        others=(".columnwise_data", ".columnwise_scale_inv"),
        global_direction=Direction(),
        declared=("e4m3, e8m0",),
        specs=("mxfp8-e4m3",),
    ),
    TE_SOURCE,
)
OWN_SOURCE, OWN_KEY = "this standard", "fp4ref"


def named_layout(convention: Convention, facts: Facts) -> Layout:
    """Return the registered layout that a tensor's metadata names."""
    return LAYOUTS.get(str(facts.get("scale_layout")), convention.layout)


OWN_NVFP4 = add(
    Convention(
        name="fp4ref.nvfp4",
        element="e2m1",
        scale="e4m3",
        block=(1, 16),
        stem="{module}.weight",
        codes=StoredRole(".row.data", BYTES, own=True),
        scales=StoredRole(".row.scales", BYTES, own=True),
        global_scale=StoredRole(".row.amax", ONE_FLOAT, needed=False, own=True, shape=(1,)),
        others=(".x", ".row.random_bits", ".column.data", ".column.scales", ".column.amax", ".column.random_bits"),
        layout_of=named_layout,
        global_direction=ITSELF,
        declared=("e2m1, e4m3, 448",),
        specs=("nvfp4", "nvfp4-4over6", "nvfp4-2d"),
        configuration=Configuration(
            own=True,
            marks=(OWN_KEY,),
            attributes=attributes_under(OWN_KEY),
            write=write_attributes(OWN_KEY, spec_version=SPEC_VERSION),
        ),
    ),
    OWN_SOURCE,
)
add(
    replace(
        OWN_NVFP4,
        name="fp4ref.nvfp4-256",
        global_direction=Direction(ScaleWay.AMAX, E2M1.max * 256),
        declared=("e2m1, e4m3, 256",),
        specs=("fouroversix.nvfp4_mse", "fouroversix.nvfp4_mae"),
    ),
    OWN_SOURCE,
)
OWN_MXFP4 = add(
    replace(
        OWN_NVFP4,
        name="fp4ref.mxfp4",
        scale="e8m0",
        block=(1, 32),
        global_scale=None,
        global_direction=Direction(),
        declared=("e2m1, e8m0",),
        specs=("mxfp4",),
    ),
    OWN_SOURCE,
)
add(
    replace(
        OWN_MXFP4,
        name="fp4ref.mxfp8",
        element="e4m3",
        codes_per_item=1,
        declared=("e4m3, e8m0",),
        specs=("mxfp8-e4m3",),
    ),
    OWN_SOURCE,
)
