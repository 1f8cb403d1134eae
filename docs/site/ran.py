"""The directive `ran`: commands of fp4ref and scripts, run while the site is built, each with what it prints."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from fp4ref.cli import main

WIDTH = 100
STATUS = re.compile(r"  # exit status (\d)$")


class Ran(SphinxDirective):
    """Commands, one a line, with `# exit status 1` behind one that ends so. They run in a copy of the examples."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the commands and their output as one terminal."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(Path(self.env.srcdir) / "examples", folder, dirs_exist_ok=True)
            said = [self._output(line, folder) for line in self.content]
        block = nodes.literal_block("", text := "\n\n".join(said))
        block["language"] = "text"
        block.rawsource = text
        return [block]

    def _output(self, line: str, folder: str) -> str:
        command = STATUS.sub("", line)
        if command.startswith("python "):
            script = [sys.executable, *shlex.split(command)[1:]]
            printed = subprocess.run(script, cwd=folder, check=True, capture_output=True, text=True).stdout
            return f"$ {command}\n{printed}".rstrip()
        runner = CliRunner(env={"COLUMNS": str(WIDTH), "NO_COLOR": "1"})
        with chdir(folder):
            result = runner.invoke(main, shlex.split(command)[1:])
        expected = int((STATUS.findall(line) or [0])[0])
        if result.exit_code != expected:
            raise self.error(f"{command}: exit status {result.exit_code}, need {expected}\n{result.output}")
        return f"$ {command}\n{result.output.rstrip()}"


def setup(app: Any) -> dict[str, Any]:
    """Connect the hooks for Sphinx."""
    app.add_directive("ran", Ran)
    return {"parallel_read_safe": True}
