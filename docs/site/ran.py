"""The directive `ran`: commands of fp4ref and scripts, run while the site is built, each with what it prints."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from click.testing import CliRunner
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from fp4ref.cli import main

PARTS = 16  # about as many as Sphinx makes of all pages
WIDTH = 96  # columns of a block of code on a desktop
RULE = re.compile(r'href="#([A-Z][A-Z0-9]*-\d+)"')
STATUS = re.compile(r"  # exit status (\d)$")


class Ran(SphinxDirective):
    """Commands, one a line, with `# exit status 1` behind one that ends so. They run in a copy of the examples.

    keep: a report that they write, which becomes a page of the site's first folder, with links to the pages of rules.
    needs: programs and Python modules; where one is not installed, the page shows the commands and says so.
    """

    has_content = True
    option_spec: ClassVar = {"keep": directives.unchanged_required, "needs": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return the commands and their output as one terminal."""
        needed = self.options.get("needs", "").split()
        if missing := [one for one in needed if not (shutil.which(one) or find_spec(one))]:
            commands = "\n".join(f"$ {STATUS.sub('', line)}" for line in self.content)
            return self._terminal(f"{commands}\n(not run: no {missing[0]} where these pages were built)")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(Path(self.env.srcdir) / "examples", folder, dirs_exist_ok=True)
            inside = str(Path(folder).resolve()) + os.sep
            said = [self._output(line, folder).replace(inside, "") for line in self.content]
            if name := self.options.get("keep"):
                page = (Path(folder) / name).read_text("utf-8")
                page = RULE.sub(lambda found: f'href="rule/{found[1].lower()}.html"', page)
                (Path(self.env.srcdir).parent / "explorer" / name).write_text(page, "utf-8")
        return self._terminal("\n\n".join(said))

    @staticmethod
    def _terminal(text: str) -> list[nodes.Node]:
        block = nodes.literal_block("", text)
        block["language"] = "text"
        block.rawsource = text
        return [block]

    def _output(self, line: str, folder: str) -> str:
        command = STATUS.sub("", line)
        expected = int((STATUS.findall(line) or [0])[0])
        if not command.startswith("fp4ref ") or " | " in command:
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            settings = {**os.environ, "PATH": path, "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
            script = ["sh", "-c", command]
            found = subprocess.run(script, cwd=folder, check=False, capture_output=True, text=True, env=settings)
            if found.returncode != expected:
                raise self.error(f"{command}: exit status {found.returncode}, need {expected}\n{found.stderr}")
            return f"$ {command}\n{found.stdout}".rstrip()
        runner = CliRunner(env={"COLUMNS": str(WIDTH), "NO_COLOR": "1"})
        with chdir(folder):
            result = runner.invoke(main, shlex.split(command)[1:])
        if result.exit_code != expected:
            raise self.error(f"{command}: exit status {result.exit_code}, need {expected}\n{result.output}")
        return f"$ {command}\n{result.stdout.rstrip()}"


def spread(app: Any, env: Any, names: list[str]) -> None:
    """Order the pages so that those with many commands are in different parts, of which a process reads one at a time.

    In the order of their names, most such pages are in the part that is read last, while other processes wait.
    """
    commands = {name: Path(env.doc2path(name)).read_text("utf-8").count("```{ran}") for name in names}
    names.sort(key=lambda name: (commands[name], name))
    names[:] = [name for first in range(PARTS) for name in names[first::PARTS]]


def setup(app: Any) -> dict[str, Any]:
    """Connect the hooks for Sphinx."""
    app.add_directive("ran", Ran)
    app.connect("env-before-read-docs", spread)
    return {"parallel_read_safe": True}
