"""Fail unless a wheel holds exactly the expected top-level names, and the files that code alone would miss."""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile

wheel = Path(sys.argv[1])
INFO = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
TOP = {"fp4ref", "fp4ref_cpu", "fp4ref_cuda", "fp4ref_numerics", "fp4ref_pytest", "fp4ref_torch", INFO}
NEEDED = {f"{name}/py.typed" for name in TOP - {INFO}}
NEEDED |= {"fp4ref/conformance/reports/page.html"}
NEEDED |= {"fp4ref/data/rcp_approx_ftz_sm90.npz", f"{INFO}/licenses/LICENSE"}
NEEDED |= {"fp4ref_numerics/include/fp4ref/fp4ref.h", "fp4ref_cpu/csrc/quantize.h", "fp4ref_cuda/kernels/rows.cu"}

names = ZipFile(wheel).namelist()
top = {name.partition("/")[0] for name in names}
missing = sorted(NEEDED - set(names))
stray = [name for name in names if name.endswith((".pyc", ".so")) or "__pycache__" in name]
chapters = [name for name in names if name.startswith("fp4ref/_spec/") and name.endswith(".md")]
if top != TOP or missing or stray or not chapters:
    sys.exit(f"{wheel.name}: top-level {sorted(top)}, missing {missing}, stray {stray}, {len(chapters)} chapters")
print(f"{len(names)} files, {len(chapters)} chapters, top-level {', '.join(sorted(top))}")
