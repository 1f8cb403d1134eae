"""The pytest plugin of fp4ref. It imports fp4ref only when a test or an option asks for it.

Fixtures: `assert_conforms`, `fp4ref_case`. Options: --fp4ref-level, --fp4ref-family, --fp4ref-require, --fp4ref-xfail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fp4ref.testing import ExpectedFailures

MARKER = "fp4ref_cases(spec, families=None, level=None): run the test once per aimed case, the fixture fp4ref_case"
EXPECTED: pytest.StashKey[ExpectedFailures] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the conformance kit."""
    group = parser.getgroup("fp4ref", "conformance of FP4 and FP8 kernels")
    group.addoption("--fp4ref-level", type=int, choices=(1, 2), default=1, help="1: seconds; 2: exhaustive.")
    group.addoption("--fp4ref-family", action="append", metavar="NAME", help="Only these families of cases.")
    group.addoption(
        "--fp4ref-require",
        action="append",
        metavar="FAMILIES|all",
        help="assert_conforms fails unless a case of each of these families was compared; separated by commas.",
    )
    group.addoption(
        "--fp4ref-xfail",
        metavar="FILE",
        help="Cases that are known to fail, one a line: KERNEL SPEC CASE REASON; fp4ref.testing describes the format.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and read the file of expected failures."""
    config.addinivalue_line("markers", MARKER)
    path = config.getoption("--fp4ref-xfail")
    if path is not None:
        from fp4ref.errors import Fp4Error
        from fp4ref.testing import read_expected_failures

        try:
            config.stash[EXPECTED] = read_expected_failures(path)
        except (Fp4Error, OSError) as error:
            raise pytest.UsageError(str(error)) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each case of the marker's specification."""
    if "fp4ref_case" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("fp4ref_cases")
    if marker is None:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: fp4ref_case needs @pytest.mark.fp4ref_cases(SPEC)")
    from fp4ref.errors import Fp4Error
    from fp4ref.testing import cases

    settings = _settings(metafunc.config) | {name: value for name, value in marker.kwargs.items() if value is not None}
    try:
        found = list(cases(*marker.args, **settings))
    except Fp4Error as error:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: {error}") from None
    metafunc.parametrize("fp4ref_case", found, ids=[case.id for case in found])


def _settings(config: pytest.Config) -> dict[str, Any]:
    return {"level": config.getoption("--fp4ref-level"), "families": config.getoption("--fp4ref-family")}


@pytest.fixture
def assert_conforms(pytestconfig: pytest.Config) -> Callable[..., Any]:
    """`fp4ref.testing.assert_conforms` with the options of the command line; arguments of the call go first."""
    from fp4ref import testing

    options = _settings(pytestconfig) | {
        "expected_failures": pytestconfig.stash.get(EXPECTED, None),
        "require": pytestconfig.getoption("--fp4ref-require") or (),
    }

    def checked(kernel: Any, spec: Any, **settings: Any) -> Any:
        __tracebackhide__ = True
        return testing.assert_conforms(kernel, spec, **(options | settings))

    return checked
