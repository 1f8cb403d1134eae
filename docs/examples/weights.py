"""Write weights.npz: two matrices that stand for the weights of a model, one of them with outliers."""

import numpy as np

x = np.random.default_rng(0).standard_normal((64, 256), np.float32)
np.savez("weights.npz", attention=x * np.float32(0.02), mlp=x**3)
