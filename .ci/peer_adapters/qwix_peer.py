"""Qwix: the public function that quantizes an array, on XLA's CPU."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from qwix._src.core.qarray import quantize_api
from rearranged import in_few_shapes

TYPES = ("float32", "bfloat16")


def _quantizer(form, block):
    kind = ml_dtypes.float8_e4m3fn if form == "nvfp4" else ml_dtypes.float8_e8m0fnu

    def run(x):
        made = quantize_api(jnp.asarray(x), form, channelwise_axes=[0], tiled_axes={1: block})
        codes, scales = np.asarray(made.qvalue), np.asarray(made.scale).astype(np.float32)
        wide = codes.view(np.uint8)
        data = wide[:, 0::2] | wide[:, 1::2] << 4 if codes.dtype == ml_dtypes.float4_e2m1fn else wide
        return data, scales.astype(kind).view(np.uint8)

    return lambda x: in_few_shapes(run, x, block)


PROFILES = {f"qwix.{form}": _quantizer(form, 16 if form == "nvfp4" else 32) for form in ("mxfp4", "mxfp8", "nvfp4")}
