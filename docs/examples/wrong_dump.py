"""Write wrong.npz: a tensor and its NVFP4 bytes by a program that packs the high nibble first."""

import numpy as np

import fp4ref

x = np.random.default_rng(0).standard_normal((64, 128), np.float32)
q = fp4ref.quantize(x, "nvfp4")
np.savez("wrong.npz", x=x, data=q.row.data << 4 | q.row.data >> 4, scales=q.row.scales, amax=q.row.amax)
