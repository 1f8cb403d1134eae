"""gfloat: the block formats of OCP by its default scale, one block after the other."""

import numpy as np
from gfloat import compute_scale_amax, encode_block
from gfloat.formats import (
    format_info_mxfp4_e2m1,
    format_info_mxfp6_e2m3,
    format_info_mxfp6_e3m2,
    format_info_mxfp8_e4m3,
    format_info_mxfp8_e5m2,
)
from six_bits import packed

TYPES = ("float32", "bfloat16", "float16")
MOST = 1 << 13  # elements of a tensor: it takes microseconds for each


def _quantizer(form):
    def run(x):
        if x.size > MOST or (form.etype.k < 8 and np.isnan(x.astype(np.float32)).any()):
            return None  # it raises for a NaN where the format has none
        codes = []
        for block in x.astype(np.float64).reshape(-1, 32):
            scale = compute_scale_amax(form.etype.emax, block)
            codes.append(list(encode_block(form, scale, block / scale)))
        every = np.uint8(codes)
        data = every[:, 1:].reshape(len(x), -1)
        pack = {4: lambda codes: codes[:, 0::2] | codes[:, 1::2] << 4, 6: packed, 8: lambda codes: codes}[form.etype.k]
        return pack(data), every[:, 0].reshape(len(x), -1)

    return run


PROFILES = {
    "gfloat.mxfp4": _quantizer(format_info_mxfp4_e2m1),
    "gfloat.mxfp6_e2m3": _quantizer(format_info_mxfp6_e2m3),
    "gfloat.mxfp6_e3m2": _quantizer(format_info_mxfp6_e3m2),
    "gfloat.mxfp8_e4m3": _quantizer(format_info_mxfp8_e4m3),
    "gfloat.mxfp8_e5m2": _quantizer(format_info_mxfp8_e5m2),
}
