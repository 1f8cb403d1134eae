"""Write two dumps, each a tensor and its NVFP4 bytes: dump.npz is right, wrong.npz has the high nibble first."""

import numpy as np

import fp4ref

x = np.random.default_rng(0).standard_normal((256, 512), np.float32)
q = fp4ref.quantize(x, "nvfp4", scale_layout="tiled_128x4")
np.savez("dump.npz", x=x, data=q.row.data, scales=q.row.scales, amax=q.row.amax)

x = x[:64, :128]
q = fp4ref.quantize(x, "nvfp4")
np.savez("wrong.npz", x=x, data=q.row.data << 4 | q.row.data >> 4, scales=q.row.scales, amax=q.row.amax)
