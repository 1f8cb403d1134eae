"""Run one adapter: `python run_peer.py ADAPTER INPUTS.npz OUTPUTS.npz`, in the environment of its peer."""

import importlib
import sys

import ml_dtypes  # noqa: F401 - registers bfloat16
import numpy as np


def main(adapter, inputs, outputs):
    """Quantize every input with every profile of the adapter; what a peer refuses is left out.

    A profile's function returns bytes (data, scales), a dict {"values": ...} for a peer that has no bytes, or None.
    """
    peer, results = importlib.import_module(adapter), {}
    with np.load(inputs) as archive:
        for key in archive.files:
            _, dtype, block = key.split("/")
            if dtype not in peer.TYPES:
                continue
            x = archive[key].view(dtype)
            for name, quantize in peer.PROFILES.items():
                if (16 if "nvfp4" in name else 32) == int(block):
                    found = quantize(x)
                    if isinstance(found, tuple):
                        found = dict(zip(("data", "scales"), found, strict=True))
                    results |= {f"{key}/{name}/{part}": array for part, array in (found or {}).items()}
    np.savez(outputs, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
