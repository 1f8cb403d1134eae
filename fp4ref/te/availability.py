"""Which recipes the emulated device runs. Nothing here looks at the machine: the arithmetic is ours."""

from __future__ import annotations

from typing import Any

from fp4ref.te.capability import get_device_compute_capability
from fp4ref.te.errors import SettingError
from fp4ref.te.recipe import MXFP8BlockScaling


def check_fp8_support() -> tuple[bool, str]:
    """Return True if per-tensor FP8 runs, with the reason if not."""
    return _at_least((8, 9), "FP8")


def check_mxfp8_support() -> tuple[bool, str]:
    """Return True if MXFP8 runs, with the reason if not."""
    if get_device_compute_capability() >= (12, 0):
        return False, "MXFP8 is not available on compute capability 12.0 and above."
    return _at_least((10, 0), "MXFP8")


def check_nvfp4_support() -> tuple[bool, str]:
    """Return True if NVFP4 runs, with the reason if not."""
    return _at_least((10, 0), "NVFP4")


def check_fp8_block_scaling_support() -> tuple[bool, str]:
    """Return True if FP8 block scaling runs, with the reason if not."""
    return _at_least((9, 0), "FP8 block scaling")


CHECKS = {  # what a recipe says that it is, and what a device has to run
    "nvfp4": check_nvfp4_support,
    "mxfp8": check_mxfp8_support,
    "float8_per_tensor_scaling": check_fp8_support,
    "float8_block_scaling": check_fp8_block_scaling_support,
}


def is_fp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Return True if the emulated device runs per-tensor FP8; with the reason if it does not."""
    return check_fp8_support() if return_reason else check_fp8_support()[0]


def is_mxfp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Return True if the emulated device runs MXFP8; with the reason if it does not."""
    return check_mxfp8_support() if return_reason else check_mxfp8_support()[0]


def is_nvfp4_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Return True if the emulated device runs NVFP4; with the reason if it does not."""
    return check_nvfp4_support() if return_reason else check_nvfp4_support()[0]


def is_fp8_block_scaling_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Return True if the emulated device runs FP8 block scaling; with the reason if it does not."""
    return check_fp8_block_scaling_support() if return_reason else check_fp8_block_scaling_support()[0]


def get_default_recipe() -> Any:
    """Return the recipe of an `autocast` without one: MXFP8."""
    return MXFP8BlockScaling()


get_default_fp8_recipe = get_default_recipe  # its former name


def check_recipe_support(recipe: Any) -> None:
    """Raise SettingError, with the reason, unless the emulated device runs the recipe."""
    for asked, check in CHECKS.items():
        if getattr(recipe, asked)():
            supported, reason = check()
            break
    else:
        supported, reason = recipe.custom(), "not emulated"
    if not supported:
        raise SettingError("autocast", f"{type(recipe).__name__}: {reason}", "an emulated recipe on a capable device")


def _at_least(capability: tuple[int, int], name: str) -> tuple[bool, str]:
    if get_device_compute_capability() >= capability:
        return True, ""
    return False, f"Device compute capability {capability[0]}.{capability[1]} or higher required for {name} execution."


class Availability:
    """The same questions as methods, with the reason if the answer is no."""

    @classmethod
    def is_fp8_available(cls) -> tuple[bool, str]:
        """Return True if per-tensor FP8 runs."""
        return check_fp8_support()

    @classmethod
    def is_mxfp8_available(cls) -> tuple[bool, str]:
        """Return True if MXFP8 runs."""
        return check_mxfp8_support()

    @classmethod
    def is_nvfp4_available(cls) -> tuple[bool, str]:
        """Return True if NVFP4 runs."""
        return check_nvfp4_support()

    @classmethod
    def is_fp8_block_scaling_available(cls) -> tuple[bool, str]:
        """Return True if FP8 block scaling runs."""
        return check_fp8_block_scaling_support()
