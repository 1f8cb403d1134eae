"""Print constraints that pin every required dependency to its lower bound."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

if sys.version_info < (3, 13):  # the oldest NumPy has no wheels for later versions
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    print(*(line.replace(">=", "==") for line in project["dependencies"]), sep="\n")
