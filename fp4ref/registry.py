"""Backends: what they declare, how they are found, and which one serves a call.

A backend registers through the entry-point group `fp4ref.backends`, ours exactly as a third party's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, Protocol

from fp4ref.errors import BackendError
from fp4ref.formats import E2M1, E4M3, E5M2, E8M0, Codec, Format, Rounding, Sign
from fp4ref.layout import LINEAR, STANDARD_LAYOUTS, Layout
from fp4ref.quantized import DIRECTIONS, Direction, DirectionChoice
from fp4ref.remembered import OnlySame, Same
from fp4ref.spec import Spec

GROUP = "fp4ref.backends"
PRODUCTS: dict[str, str] = {mode: f"gemm_{mode}" for mode in ("exact", "blockwise", "fast")}  # operations by mode


@dataclass(frozen=True, slots=True)
class Call:
    """A call without its arrays: everything that a backend needs in order to accept or refuse it.

    spec: None where no specification is needed; of `a` in a product, where `spec_b` is that of `b`.
    source, to: NumPy names of the types of the quantized tensor, and of the result of `dequantize` and products.
    device: where its arrays are stored, "cpu" or "cuda". shape: rows and columns of the tensor's matrix, of the scales
    that `to_layout` moves, of random bytes, or of the product; None asks about every shape.
    splits: rows of each member of a group. layout: of the scales; `layout_b` of those of `b`; target: the layout that
    scales are moved to.
    flag: True if a flag on a device decides whether anything is written. out: True if the caller gives the buffers.

    Rules: CNF-5.
    """

    operation: str
    spec: Spec | None = None
    source: str = "float32"
    direction: DirectionChoice = "row"
    to: str = "float32"
    _: KW_ONLY
    layout: Layout = LINEAR
    device: str = "cpu"
    shape: tuple[int, int] | None = None
    splits: tuple[int, ...] | None = None
    target: Layout | None = None
    spec_b: Spec | None = None
    layout_b: Layout | None = None
    inverse_hadamard: bool = False
    flag: bool = False
    out: bool = False

    @property
    def specs(self) -> tuple[Spec, ...]:
        """Every specification that the call names."""
        return tuple(spec for spec in (self.spec, self.spec_b) if spec is not None)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Every layout that the call names."""
        return tuple(form for form in (self.layout, self.layout_b, self.target) if form is not None)

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """The codecs of elements and scales of all specifications."""
        return tuple(codec for spec in self.specs for codec in (spec.element, spec.scale))

    @property
    def formats(self) -> tuple[Format, ...]:
        """The formats of elements and scales of all specifications."""
        return tuple(codec.format for codec in self.codecs)

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that the call computes, rows first."""
        return DIRECTIONS if self.direction == "both" else (self.direction,)

    @property
    def multiplies(self) -> bool:
        """True for products, which read only formats, blocks and global scales of their specifications."""
        return self.operation in PRODUCTS.values()

    @property
    def required(self) -> Spec:
        """The specification of an operation that has one."""
        assert self.spec is not None, f"{self.operation} without a specification"
        return self.spec

    @property
    def sizes(self) -> tuple[int, int]:
        """The shape of a call that is made, not asked about."""
        assert self.shape is not None, f"{self.operation} without a shape"
        return self.shape

    @property
    def encoded(self) -> tuple[int, int]:
        """Rows and columns of the matrix whose bytes one direction holds: the column direction is turned."""
        rows, columns = self.sizes
        return (columns, rows) if self.direction == "column" else (rows, columns)


class Declared(Protocol):
    """A value with a name, which compares by its settings."""

    @property
    def name(self) -> str:
        """The name under which messages speak of it."""


STANDARD_FORMATS = (E2M1, E4M3, E5M2, E8M0)
STANDARD_ROUNDINGS = (Rounding.EVEN, Rounding.DOWN, Rounding.AWAY, Rounding.TRUNCATE, Rounding.UP, Rounding.STOCHASTIC)
STANDARD_SIGNS = (Sign.BIT, Sign.NEGATIVE, Sign.NOT_POSITIVE, Sign.NONZERO)


def everything(call: Call) -> list[str]:
    """Return no reason against any call."""
    return []


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The declaration of a backend, read before it is loaded.

    load: imports what the operations need; ImportError, OSError or BackendError say why it cannot run.
    operations: names of functions of the loaded module; see CONTRIBUTING for their signatures.
    formats, layouts: those that it serves, as values; None serves all. Other operations are never handed to it.
    roundings, signs: the picks of codecs that it computes. A pick that is new in this project is refused until the
    backend declares it; None serves all. Products read no picks.
    unsupported: further reasons against a call, none if it is served. devices: where its arrays are stored.
    speed: among backends that can serve a call, the largest wins.
    flags: True if its functions that quantize take `noop`, a flag that stays on the device unread.
    irregular: of the rules LAY-19 to LAY-21, by which offsets are not a sum over the axes, those that it serves.

    Rules: CNF-5.
    """

    name: str
    load: Callable[[], ModuleType]
    operations: tuple[str, ...]
    formats: tuple[Format, ...] | None = STANDARD_FORMATS
    layouts: tuple[Layout, ...] | None = STANDARD_LAYOUTS
    roundings: tuple[Rounding, ...] | None = STANDARD_ROUNDINGS
    signs: tuple[Sign, ...] | None = STANDARD_SIGNS
    unsupported: Callable[[Call], list[str]] = everything
    devices: tuple[str, ...] = ("cpu",)
    speed: int = 0
    flags: bool = False
    irregular: tuple[str, ...] = ()

    def reasons(self, call: Call) -> list[str]:
        """Return the reasons why this backend cannot serve a call; none if it can. Rules: CNF-5."""
        found = []
        if call.operation not in self.operations:
            found.append(f"no operation {call.operation}")
        if call.device not in self.devices:
            found.append(f"an array on {call.device}, not on {' or '.join(self.devices)}")
        if call.flag and not self.flags:
            found.append("no flag on a device")
        return found or self.unserved(call)

    def unserved(self, call: Call) -> list[str]:
        """Return the reasons against the values that a call names, on whatever device; none if all are served.

        Rules: CNF-5, E2M1-6.
        """
        found = _unlisted("format", call.formats, self.formats) + _unlisted("layout", call.layouts, self.layouts)
        for codec in () if call.multiplies else call.codecs:
            picks = (("rounding", codec.rounding, self.roundings), ("sign", codec.sign, self.signs))
            unread = ((kind, pick, read) for kind, pick, read in picks if read is not None and pick not in read)
            found += [f"{kind} {pick}, not one of {', '.join(read)}" for kind, pick, read in unread]
        for form in call.layouts:
            odd = form.form.irregularities.items()
            found += [f"layout {form.name} with {words}" for rule, words in odd if rule not in self.irregular]
        return found or self.unsupported(call)  # asked only about values that the declaration lists


def _unlisted(kind: str, wanted: Iterable[Declared], listed: Collection[Declared] | None) -> list[str]:
    """Return a reason for every value that is not one of those listed; None lists all."""
    others = [] if listed is None else [value for value in wanted if value not in listed]
    if not others:
        return []
    names = [value.name for value in listed or ()]
    more = {True: " with other settings", False: ""}
    said = (f"{kind} {value.name}{more[value.name in names]}, not one of {', '.join(names)}" for value in others)
    return list(dict.fromkeys(said))


@lru_cache
def backends() -> dict[str, Backend]:
    """Every registered backend, by name; nothing is loaded but its declaration."""
    from importlib.metadata import entry_points  # imported here, for it takes time and a process may need no backend

    return {entry.name: entry.load() for entry in entry_points(group=GROUP)}


_keys: dict[int, Same] = {}


def registered() -> Same:
    """Return the key for what is remembered of the backends that are registered now."""
    now = backends()
    found = _keys.get(id(now))
    if found is None:
        found = _keys[id(now)] = OnlySame(now)  # which keeps them alive, so that no others get their identity
    return found


@lru_cache
def _loaded(name: str) -> ModuleType | str:
    """Return the backend's operations, or the reason why it cannot run."""
    try:
        return backends()[name].load()
    except (ImportError, OSError, BackendError) as error:
        return str(error).splitlines()[0]


def get(name: str) -> ModuleType:
    """Return the operations of a named backend; BackendError states why it cannot run. Rules: CNF-5."""
    if name not in backends():
        raise BackendError("backend", f"unknown name {name!r}", f"one of {', '.join(sorted(backends()))}", "CNF-5")
    module = _loaded(name)
    if isinstance(module, str):
        raise BackendError(f"backend {name}", f"unavailable: {module}", rule="CNF-5")
    return module


def available() -> list[tuple[str, str | None]]:
    """Names of all backends, fastest first, each with the reason why it cannot run, or None."""
    return [(b.name, reason if isinstance(reason := _loaded(b.name), str) else None) for b in _fastest_first()]


def _fastest_first() -> list[Backend]:
    return sorted(backends().values(), key=lambda backend: -backend.speed)


def choose(call: Call, name: str | None) -> Callable[..., Any]:
    """Return the function that serves a call: the named backend's, or the fastest one's that can serve it.

    Never a silent fallback: a named backend that cannot serve the call is an error.

    Rules: CNF-5, CNF-84.
    """
    return _function(_chosen(call, name, registered()), call.operation)


def binder(call: Call, name: str | None) -> Callable[..., Any] | None:
    """Return the function `bind_OPERATION` of the backend that `choose` finds, or None if it has none.

    It takes a call and its arrays, and returns a function of other arrays of their kind, which checks nothing; or None.
    """
    found: Callable[..., Any] | None = getattr(_chosen(call, name, registered()), f"bind_{call.operation}", None)
    return found


@lru_cache(maxsize=4096)
def _chosen(call: Call, name: str | None, registered: Same) -> ModuleType:
    if name is not None:
        module = get(name)
        reasons = backends()[name].reasons(call)
        if reasons:
            raise BackendError(f"{call.operation} on backend {name}", "; ".join(reasons), "another backend", "CNF-5")
        return module
    refused: list[str] = []
    for candidate in _fastest_first():
        reasons = candidate.reasons(call)  # before it is loaded, which can take a while
        loaded = "; ".join(reasons) or _loaded(candidate.name)
        if not isinstance(loaded, str):
            return loaded
        refused.append(f"{candidate.name}: {loaded}")
    raise BackendError(call.operation, f"no backend for it ({' | '.join(refused)})", rule="CNF-5")


def leads(call: Call) -> bool:
    """Return True if `choose` finds the fastest backend for the call's device: no other one is asked before it."""
    there = (each for each in _fastest_first() if call.device in each.devices)
    first = next((each for each in there if not isinstance(_loaded(each.name), str)), None)
    return first is not None and not first.reasons(call)


def offers(call: Call, name: str | None) -> bool:
    """Return True if `choose` finds a backend for a call that few can serve."""
    return _offered(call, name, registered())


@lru_cache(maxsize=4096)
def _offered(call: Call, name: str | None, registered: Same) -> bool:
    try:
        choose(call, name)
    except BackendError:
        return False
    return True


def _function(module: ModuleType, operation: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(module, operation)
    return function
