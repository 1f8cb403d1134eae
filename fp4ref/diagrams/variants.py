"""Files that `--all` writes beside one per figure: a figure with other options, and the rules that it shows then."""

from __future__ import annotations

from typing import Any

from fp4ref import relayouts
from fp4ref.diagrams.field_figures import FIELD
from fp4ref.specs import MXFP4, MXFP6_E2M3, MXFP8_E4M3, NVFP4_2D, NVFP4_RHT, NVFP4_ROW_SCALED, STANDARD

EXAMPLE: dict[str, Any] = {"shape": (300, 288), "element": (37, 130)}

# Name, figure, options.
VARIANTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("blocks-2d", "blocks", {"spec": NVFP4_2D}),
    ("directions-hadamard", "directions", {"spec": NVFP4_RHT}),
    ("hierarchy-row-scaled", "hierarchy", {"spec": NVFP4_ROW_SCALED}),
    ("hierarchy-mx", "hierarchy", {"spec": MXFP4}),
    ("packing-6-bit", "packing", {"spec": MXFP6_E2M3}),
    ("packing-8-bit", "packing", {"spec": MXFP8_E4M3}),
    ("mma-fragments-8-bit", "mma-fragments", {"spec": MXFP8_E4M3}),
    ("gemm-hadamard", "gemm", {"spec": NVFP4_RHT}),
    ("blocks-element", "blocks", EXAMPLE),
    ("packing-element", "packing", EXAMPLE),
    ("tiled_128x4-element", "tiled_128x4", EXAMPLE),
    ("tiled_8x4-element", "tiled_8x4", {"shape": (20, 160), "element": (13, 100)}),
    ("linear-tiled-element", "linear-tiled", {"shape": (160, 256), "element": (37, 130)}),
    *((f"pipeline-{spec.name}", "pipeline", {"spec": spec}) for spec in STANDARD),
    ("pipeline-nvfp4-rht-column", "pipeline", {"spec": NVFP4_RHT, "direction": "column"}),
    *((f"memory-{name}", "memory", {"layout": relayouts.named(name)}) for name in FIELD),
)

# Rules that a variant shows instead of all those of its figure.
SHOWN: dict[str, tuple[str, ...]] = {
    "blocks-2d": ("BLK-7", "LAY-10"),
    "directions-hadamard": ("HAD-4", "BLK-8"),
    "hierarchy-row-scaled": ("GLB-5", "GLB-1"),
    "hierarchy-mx": ("GLB-6", "DEQ-2"),
    "packing-6-bit": ("PACK-4", "PACK-5"),
    "packing-8-bit": ("PACK-3",),
    "gemm-hadamard": ("GEM-10", "GEM-1"),
    "memory-low_first": ("PACK-7", "PACK-1"),
    "memory-vllm.marlin_fp4": ("PACK-9", "PACK-7"),
    "memory-rocm.gfx950_32x8": ("LAY-18", "LAY-13"),
}
