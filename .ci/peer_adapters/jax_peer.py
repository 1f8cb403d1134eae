"""JAX: the quantizer of its scaled products, on XLA's CPU."""

import jax.numpy as jnp
import numpy as np
from jax._src.cudnn.scaled_matmul_stablehlo import quantize
from jax.nn import get_scaled_dot_general_config
from rearranged import in_few_shapes

TYPES = ("float32", "bfloat16")


def _mxfp8(x):
    codes, scales = quantize(jnp.asarray(x)[None], get_scaled_dot_general_config("mxfp8"))
    return np.asarray(codes).view(np.uint8)[0], np.asarray(scales).view(np.uint8)[0]


def _nvfp4(x):
    array = jnp.asarray(x)[None]
    of_tensor = (jnp.max(jnp.abs(array)) / 2688).astype(np.float32)
    codes, scales = quantize(array, get_scaled_dot_general_config("nvfp4", of_tensor))
    flat = np.asarray(codes).view(np.uint8)[0]
    return flat[:, 0::2] | flat[:, 1::2] << 4, np.asarray(scales).view(np.uint8)[0]


PROFILES = {
    "jax.mxfp8": lambda x: in_few_shapes(_mxfp8, x, 32),
    "jax.nvfp4": lambda x: in_few_shapes(_nvfp4, x, 16) if x.dtype == np.float32 else None,
}
