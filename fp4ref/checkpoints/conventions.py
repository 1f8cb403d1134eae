"""The conventions of the field: importing this module registers all of them. Rules: CKP-28."""

from __future__ import annotations

from fp4ref.checkpoints import (
    conventions_compressed,
    conventions_engines,
    conventions_modelopt,
    conventions_own,
    conventions_released,
    conventions_torch,
)

__all__ = [
    "conventions_compressed",
    "conventions_engines",
    "conventions_modelopt",
    "conventions_own",
    "conventions_released",
    "conventions_torch",
]
