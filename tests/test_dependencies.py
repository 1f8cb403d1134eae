from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fp4ref
from trees import tree

PACKAGE = Path(fp4ref.__file__).parent
CHECKOUT = Path(__file__).parents[1]

# A module imports from its own floor or a lower one, and never in a circle. A package stands for what is in it.
ARITHMETICS = ("arithmetic_peers", "arithmetic_peers_mx", "arithmetic_xla", "arithmetic_engines")
FLOORS = {
    1: (
        "errors",
        "modules",
        "processors",
        "names",
        "json_text",
        "formats",
        "packing",
        "hadamard",
        "reciprocal",
        "philox",
        "remembered",
        "source_files",
        "interrupts",
    ),
    2: (
        *("arithmetic", "arithmetic_checked", *ARITHMETICS, "four_over_six", "layout", "packed_records", "packings"),
        *("files", "spec_root", "spec_json"),
    ),
    3: ("spec", "promise"),
    4: (
        *("casts", "catalogue", "specs", "peers", "peers_engines", "quantized"),
        *("arrays", "memory", "registry", "operands", "relayouts", "stored"),
    ),
    5: (
        "model",
        "api",
        "arguments",
        "given",
        "plans",
        "moves",
        "repeats",
        "random_source",
        "generators",
        "analysis",
        "kernels",
        "multiply",
        "groups",
        "theorems",
        "",
    ),
    6: ("conformance", "checkpoints", "proof", "rules", "standard", "diagrams", "te", "torch_modules", "explorer"),
    7: ("cli", "__main__", "testing", "strategies"),
}
FLOOR = {name: floor for floor, names in FLOORS.items() for name in names}

# The rooms of the kit. A room imports from lower floors only.
ROOMS = {
    1: ("oracle", "families", "dumps"),
    2: ("explain", "subjects"),
    3: ("vectors", "run", "mistakes"),
    4: ("judge",),
    5: ("diagnosis",),
    6: ("verdict",),
    7: ("selfcheck",),
    8: ("reports",),
}
ROOM = {f"conformance.{name}": floor for floor, names in ROOMS.items() for name in names}

# The modules of the backends and the plugin, each package from its lowest floor up.
BACKENDS = {
    "backends/fp4ref_numerics": (("cache", "layouts", ""), ("products",)),
    "backends/fp4ref_cpu": (
        ("threads", "maps", "build"),
        ("native",),
        ("compiled", "jobs"),
        ("quantizing", "reading", "randoms", "turning", "columns"),
        ("bound", "gemm", "per_tensor"),
        ("blocks",),
        ("operations",),
        ("",),
    ),
    "backends/fp4ref_cuda": (
        ("recording", "compile", "demands"),
        ("buffers", "words"),
        ("launch", "plan", "kinds", "across"),
        ("checks", "host_numbers"),
        ("graphs", "maxima", "members", "cublas"),
        ("spaces",),
        ("programs",),
        (
            "moving",
            "reading",
            "products",
            "per_tensor",
            "block_codes",
            "histories",
            "columns",
            "randoms",
            "several",
            "shared_places",
        ),
        ("paths", "multiply", "gemm"),
        ("grouped", "bound"),
        ("operations",),
        ("",),
    ),
    "backends/fp4ref_torch": (
        ("exact", "layouts", "random_bytes"),
        ("codecs", "known", "hadamard", "reciprocal", "wide_sums"),
        ("powers_of_two", "tensor_scaled", "gemm"),
        ("arithmetic",),
        ("four_over_six",),
        ("quantize",),
        ("dequantize",),
        ("operations",),
        ("",),
    ),
    "plugins/fp4ref_pytest": (("",),),
}

# The golden model. Only what registers it as a backend (its package and `backend`) knows more of fp4ref.
MODEL = {
    *FLOORS[1],
    "arithmetic",
    "arithmetic_checked",
    *ARITHMETICS,
    "four_over_six",
    "layout",
    "spec",
    "spec_json",
    "promise",
}
MODEL |= {"catalogue", "specs", "peers", "peers_engines", "quantized", "operands", "model"}
DECLARES_BACKEND = {"model", "model.backend"}

THIRD_PARTY = {
    "cli": {"numpy", "ml_dtypes", "click", "rich"},
    "conformance": {"numpy", "ml_dtypes", "rich"},
    "diagrams": {"numpy", "ml_dtypes", "drawsvg", "resvg_py"},
    "proof": {"numpy", "ml_dtypes", "fp4ref_cpu", "fp4ref_numerics", "fp4ref_torch", "fp4ref_cuda", "cuda"},  # subjects
    "te": {"numpy", "torch"},
    "torch_modules": {"torch"},
    "testing": {"rich"},
}
HEADERS = {
    "cli.header": {"fp4ref_numerics", "click"},  # writes what that package holds
    "conformance.run.recent": {"fp4ref_numerics"},  # the place of the user's cache
}
FOR_TESTS = {name: {"numpy", "ml_dtypes", "hypothesis"} for name in ("strategies", "conformance.families.strategies")}
TYPES_ONLY = {"typing_extensions"}  # under `if TYPE_CHECKING`: type checkers bring it
LAZY_ONLY = {"torch", "z3", "cvc5"}  # optional: imported inside a function, by a caller who has it already


def module_name(path: Path) -> str:
    """'model.quantize'; '' is the package fp4ref itself."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if "_spec" not in path.parts}


@cache
def imported(module: str, *, lazy: bool = True) -> frozenset[str]:
    """Dotted names that a module imports; those inside functions only if lazy."""
    names: set[str] = set()
    pending: list[ast.AST] = [tree(MODULES[module])]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not lazy:
            continue
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            only = [part for part in node.body if getattr(part, "module", None) in TYPES_ONLY]
            pending += [part for part in (*node.body, *node.orelse) if part not in only]
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            parent = (node.module or "").removeprefix("fp4ref").lstrip(".")
            for alias in node.names:
                child = f"{parent}.{alias.name}".lstrip(".")
                names.add(f"fp4ref.{child}" if is_ours(node.module) and child in MODULES else str(node.module))
        pending += ast.iter_child_nodes(node)
    return frozenset(names)


def is_ours(name: str | None) -> bool:
    return name is not None and name.partition(".")[0] == "fp4ref"


def ours(module: str, *, lazy: bool = True) -> set[str]:
    return {name.removeprefix("fp4ref").lstrip(".") for name in imported(module, lazy=lazy) if is_ours(name)}


def unit(module: str) -> str:
    return module.partition(".")[0]


def room(module: str) -> str:
    """Return the room of a module of the kit: 'conformance.judge'."""
    return ".".join(module.split(".")[:2])


def test_imports_no_higher_floor() -> None:
    assert {*map(unit, MODULES)} <= FLOOR.keys(), "give every module a floor in FLOORS"
    assert not [(m, t) for m in MODULES for t in ours(m) if FLOOR[unit(t)] > FLOOR[unit(m)]]


def test_a_room_imports_from_lower_floors() -> None:
    kit = {module for module in MODULES if module.startswith("conformance.")}
    assert {*map(room, kit)} <= ROOM.keys(), "give every module of the kit a room in ROOMS"
    others = [(m, t) for m in kit for t in ours(m) if t.startswith("conformance.") and room(t) != room(m)]
    assert len(others) > 300
    assert not [(m, t) for m, t in others if ROOM[room(t)] >= ROOM[room(m)]]


@pytest.mark.parametrize("package", BACKENDS)
def test_a_backend_imports_from_lower_floors(package: str) -> None:
    floors = {name: floor for floor, names in enumerate(BACKENDS[package]) for name in names}
    paths = {path.stem.removeprefix("__init__"): path for path in CHECKOUT.glob(f"{package}/*.py")}
    assert paths.keys() == floors.keys(), "give every module a floor in BACKENDS"
    top = Path(package).name
    for name, path in paths.items():
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] != top:
                continue
            inner = str(node.module).partition(".")[2]
            targets = [inner] if inner else [alias.name if alias.name in floors else "" for alias in node.names]
            assert all(floors[target] < floors[name] for target in targets), f"{name} imports {targets}"


BACKENDS_IMPORT = {*itertools.chain(*(FLOORS[floor] for floor in range(1, 5))), "arguments"}


def test_a_backend_imports_values_and_the_registry() -> None:
    paths = [*CHECKOUT.glob("backends/*/*.py")]
    assert len(paths) > 40
    for path in paths:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and is_ours(node.module):
                parent = str(node.module).partition(".")[2]
                units = {unit(parent)} if parent else {alias.name for alias in node.names}
                assert units <= BACKENDS_IMPORT, path


@pytest.mark.parametrize(
    ("title", "floors"), [("fp4ref/", FLOORS), ("fp4ref/conformance/", ROOMS)], ids=["house", "kit"]
)
def test_the_picture_in_contributing(title: str, floors: dict[int, tuple[str, ...]]) -> None:
    text = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    picture = text.partition(f"\n{title}\n")[2].partition("\n\n")[0].partition("\n```")[0]
    drawn = {int(line[:2]): line.partition("|")[2] for line in picture.splitlines()}
    assert [*drawn] == [*reversed(floors)]
    for floor, names in floors.items():
        assert {*drawn[floor].partition("   ")[0].split()} == {*names} - {""}


def test_class_names_are_unique() -> None:
    names = [
        node.name
        for path in [*MODULES.values(), *CHECKOUT.glob("backends/*/*.py"), *CHECKOUT.glob("plugins/*/*.py")]
        for node in tree(path).body
        if isinstance(node, ast.ClassDef)
    ]
    assert len(names) > 600
    assert not {name for name in names if names.count(name) > 1}


# Modules may have this many lines. Longer ones are tables.
LINES = 300
TABLES = {"fp4ref/arithmetic_peers.py"}


def test_modules_are_short() -> None:
    paths = [path for root in ("fp4ref", "backends", "plugins") for path in (CHECKOUT / root).rglob("*.py")]
    assert len(paths) > 300
    lines = {
        path.relative_to(CHECKOUT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in paths
    }
    assert lines.keys() >= TABLES
    assert {name for name, count in lines.items() if count > LINES} <= TABLES


def test_imports_make_no_circle() -> None:
    graph = {m: {t for t in ours(m) if t != m} for m in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_units_of_a_floor_make_no_circle() -> None:
    graph = {name: {unit(t) for m in MODULES if unit(m) == name for t in ours(m)} - {name} for name in FLOOR}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_model_imports_numpy_and_itself() -> None:
    modules = [module for module in MODULES if unit(module) in MODEL]
    assert len(modules) > 30
    for module in modules:
        foreign = {n for n in imported(module) if not is_ours(n) and n.partition(".")[0] not in sys.stdlib_module_names}
        assert foreign <= {"numpy", "numpy.typing", "ml_dtypes"}, module
        if module not in DECLARES_BACKEND:
            assert {unit(target) for target in ours(module)} <= MODEL, module


def test_third_party_imports() -> None:
    for module in MODULES:
        allowed = FOR_TESTS.get(module) or HEADERS.get(module) or THIRD_PARTY.get(unit(module), {"numpy", "ml_dtypes"})
        foreign = {name.partition(".")[0] for name in imported(module)} - set(sys.stdlib_module_names) - {"fp4ref"}
        assert foreign <= allowed | LAZY_ONLY, module
        assert module in FOR_TESTS or not ours(module) & set(FOR_TESTS), module
        assert not {n.partition(".")[0] for n in imported(module, lazy=False)} & (LAZY_ONLY - allowed), module


@pytest.mark.parametrize(
    "statement",
    [
        "import fp4ref",
        "from fp4ref.cli import main",
        "import fp4ref, numpy; fp4ref.quantize(numpy.ones((2, 16), 'f'), 'nvfp4')",
    ],
)
def test_importing_loads_no_optional_library(statement: str) -> None:
    code = f"import sys; {statement}; print(*sorted({{n.partition('.')[0] for n in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(run.stdout.split()) & {"torch", "cuda", "cupy", "jax", "pytest", "hypothesis", "safetensors"}


@pytest.mark.parametrize(
    "pattern", ["tests/**/__init__.py", "docs/**/__init__.py", "backends/__init__.py", "spec/**/*.py"]
)
def test_folders_are_no_packages(pattern: str) -> None:
    assert not [*CHECKOUT.glob(pattern)]  # a checkout's root is on the path, so a package there would be importable
