"""The setting of a benchmark: the device, its driver and clocks, the commit, versions and the date."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import torch

import fp4ref

VARIABLE = "FP4REF_COMMIT"  # the commit of a copy without its history


def first_line(command: list[str]) -> str:
    """Return the first line that a command prints; "unknown" where it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def setting(device: str = "cuda") -> dict[str, str]:
    """Return the facts that numbers of a device of torch depend on, by name."""
    here = {
        "commit": os.environ.get(VARIABLE) or first_line(["git", "rev-parse", "--short=8", "HEAD"]),
        "torch": torch.__version__,
        "fp4ref": fp4ref.__version__,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    if device != "cuda":
        return {"device": f"{os.cpu_count()} processors", **here}
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem,clocks.max.sm", "--format=csv,noheader"]
    name = {"device": torch.cuda.get_device_name(), "driver, clocks of SM and memory, highest of SM": first_line(query)}
    return {**name, **here, "cuda": str(torch.version.cuda)}


LOAD = "load in the last 1, 5, 15 minutes"


def load() -> str:
    """Return the load of the machine; nothing where the system has no such number."""
    return ", ".join(f"{each:.1f}" for each in os.getloadavg()) if hasattr(os, "getloadavg") else ""


def write(path: Path, results: Any, device: str = "cuda", **more: Any) -> None:
    """Write results as JSON, with their setting. more: what else they depend on, or are compared with."""
    path.write_text(json.dumps({"setting": setting(device), **more, "results": results}, indent=1) + "\n")
