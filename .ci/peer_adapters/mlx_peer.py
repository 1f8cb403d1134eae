"""MLX on a CPU."""

import mlx.core as mx
import numpy as np

TYPES = ("float32", "float16", "bfloat16")
FORMS = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}


def _quantizer(mode):
    group, bits = FORMS[mode]

    def quantize(x):
        if x.size % 32:
            return None  # it refuses such a tensor of nvfp4
        array = mx.array(x.astype(np.float32)).astype(getattr(mx, x.dtype.name))
        words, scales = mx.quantize(array, group_size=group, bits=bits, mode=mode)
        return np.array(words).view(np.uint8).reshape(len(x), -1), np.array(scales)

    return quantize


PROFILES = {f"mlx.{mode}": _quantizer(mode) for mode in FORMS}
