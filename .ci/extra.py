"""Print what an extra of pyproject.toml installs, for an environment that shall not have fp4ref itself."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
print(*project["optional-dependencies"][sys.argv[1]], sep="\n")
