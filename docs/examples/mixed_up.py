"""Write mixed_up.npz: a tensor and its NVFP4 bytes, with scales that a kernel left in rows."""

import numpy as np

import fp4ref

x = np.random.default_rng(0).standard_normal((256, 512), np.float32)
q = fp4ref.quantize(x, "nvfp4", scale_layout="linear_padded")
np.savez("mixed_up.npz", x=x, data=q.row.data, scales=q.row.scales, amax=q.row.amax)
