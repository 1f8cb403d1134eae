"""Writing the witnesses that are found: `python -m fp4ref.conformance.families.write_found`.

To be run after an arithmetic or a profile has changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families.found import PATH, to_arrays
from fp4ref.conformance.families.witnesses import searched
from fp4ref.specs import STANDARD

if __name__ == "__main__":
    arrays: dict[str, NDArray[Any]] = {}
    for spec in STANDARD:
        for dtype in INPUT_DTYPES:
            arrays |= to_arrays(spec, dtype, searched(spec, dtype))
    np.savez_compressed(PATH, **arrays)  # type: ignore[arg-type]
