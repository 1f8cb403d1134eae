from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref.catalogue import PROMISES
from fp4ref.formats import F
from fp4ref.model.quantize import quantize
from fp4ref.packing import unpack
from fp4ref.reciprocal import TABLE, reciprocal_approx
from fp4ref.spec import FourOverSix, Spec
from fp4ref.specs import OWN

DATA = Path(__file__).parent / "data"
with np.load(DATA / "te_nvfp4.npz") as archive:
    TE_CASES = archive["index"].tolist()
PEERS = sorted(set(fp4ref.profiles) - {spec.name for spec in OWN})
OLDER = {"modelopt.nvfp4": "modelopt.nvfp4@5a4242fa"}  # what these recordings are of, where a newer version differs
SHAPED = {("zeros.bf16", "jax.nvfp4"), ("zeros.fp32", "jax.nvfp4")}  # no promise: 0 / 0, in a tensor of 256 rows
INPUTS = [
    f"{kind}.{dtype}"
    for kind in ("mixed", "mxties", "normal", "normal_bf16", "scaleties", "ties", "tiny", "zeros")
    for dtype in ("bf16", "fp32")
]


@pytest.fixture(scope="module")
def te():
    with np.load(DATA / "te_nvfp4.npz") as archive:
        yield archive


@pytest.fixture(scope="module")
def peers():
    with np.load(DATA / "peers.npz") as archive:
        recorded = {}
        for key in archive.files:
            case, *rest = key.split("/")
            recorded.setdefault((case, rest[0]), {})[rest[-1]] = archive[key]
        yield recorded


def te_spec(option: str) -> Spec:
    if not option.startswith("46"):
        return {
            "1d": fp4ref.NVFP4, "2d": fp4ref.NVFP4_2D, "row": fp4ref.NVFP4_ROW_SCALED, "rht": fp4ref.NVFP4_RHT,
        }[option]  # fmt: skip
    *_, metric, scale_max = parts = option.split("_")
    return fp4ref.NVFP4_4OVER6.replace(
        name=option,
        four_over_six=FourOverSix(metric=metric, scale_max=int(scale_max)),
        block=(16, 16) if "2d" in parts else (1, 16),
        global_scale="row" if "row" in parts else "tensor",
    )


@pytest.mark.rule("PRO-1", "PRO-3", "BLK-3", "BLK-4", "BLK-7", "BLK-8", "GLB-2", "GLB-5", "HAD-1", "HAD-2", "HAD-4")
@pytest.mark.rule("FOS-1", "FOS-2", "FOS-3", "FOS-5", "FOS-6")
@pytest.mark.parametrize("case", TE_CASES)
def test_transformer_engines_python_reference(case, te):
    option, _, dtype = case.split("/")
    x = te[f"{case}/x"]
    x = x.view(ml_dtypes.bfloat16) if dtype == "bf16" else x
    specs = [te_spec(option)] + [fp4ref.profiles["te.python_reference"]] * (option == "1d")
    for spec in specs:
        for direction, suffix in (("row", ""), ("column", "_t")):
            q = quantize(x, spec, direction)
            assert q.data.tobytes() == te[f"{case}/codes{suffix}"].tobytes(), (spec.name, direction)
            assert q.scales.tobytes() == te[f"{case}/scales{suffix}"].tobytes(), (spec.name, direction)
            assert q.amax.tobytes() == te[f"{case}/amax{suffix}"].tobytes(), (spec.name, direction)


def test_there_are_201_cases():
    assert len(TE_CASES) == len(set(TE_CASES)) == 201


def peer_input(recorded: dict, case: str) -> np.ndarray:
    x = recorded[case, "x"]["x"]
    return x.astype(ml_dtypes.bfloat16) if case.endswith(".bf16") else x


@pytest.mark.rule("PRO-1", "PRO-3", "MXS-1", "MXS-2", "MXS-3", "MXS-4", "E2M1-6", "NUM-5")
@pytest.mark.parametrize("case", INPUTS)
def test_recorded_peers(case, peers):
    x = peer_input(peers, case)
    names = sorted(name for where, name in peers if where == case and name != "x")
    assert len(names) == 61
    wrong = []
    for name in names:
        if (case, name) in SHAPED:
            continue
        expected = peers[case, name]
        q = quantize(x, fp4ref.profiles[OLDER.get(name, name)])
        data = expected["packed"] if "packed" in expected else expected["codes"]
        if q.data.tobytes() != data.tobytes() or q.scales.tobytes() != expected["scales"].tobytes():
            wrong.append((name, int((q.data != data).sum()), int((q.scales != expected["scales"]).sum())))
    assert not wrong


def test_every_recorded_peer_is_a_profile(peers):
    assert {case for case, _ in peers} == set(INPUTS)
    assert len(INPUTS) * 61 == sum(name != "x" for _, name in peers) == 976


@pytest.mark.rule("PRO-1", "PRO-3", "E2M1-6", "NUM-2")
def test_torchaos_special_values():
    checked = 0
    with np.load(DATA / "torchao_special.npz") as recorded:
        for key in recorded.files:
            case, name, part = key.rsplit("/", 2)
            if part != "packed":
                continue
            x = recorded[f"{case}/x"].astype(ml_dtypes.bfloat16 if ".bf16/" in key else F)
            amax = None if case.endswith("/own") else recorded[f"{case}/amax"]
            q = quantize(x, fp4ref.profiles[name], amax=amax)
            assert q.data.tobytes() == recorded[key].tobytes(), key
            scales, wanted = q.scales, recorded[f"{case}/{name}/scales"]
            assert ((scales == wanted) | (scales & wanted & 0x7F == 0x7F)).all(), key  # NaN of either sign
            checked += 1
    assert checked == 94


@pytest.mark.rule("PRO-1", "PRO-3", "BLK-3", "BLK-4", "E2M1-2")
@pytest.mark.parametrize("case", INPUTS)
def test_flashinfers_exact_reference_is_nvfp4_but_for_minus_zero(case, peers):
    x, expected = peer_input(peers, case), peers[case, "flashinfer.ref_nvfp4_te"]
    q = quantize(x, fp4ref.NVFP4)
    assert np.array_equal(q.scales, expected["scales"])
    ours, theirs = (unpack(data, x.shape[1], fp4ref.E2M1) for data in (q.data, expected["packed"]))
    minus_zero = (x.astype(F) == 0) & np.signbit(x.astype(F))
    assert np.array_equal(ours != theirs, minus_zero)
    assert set(ours[minus_zero]) <= {8}
    assert set(theirs[minus_zero]) <= {0}


@pytest.mark.rule("PRO-2")
def test_profiles_that_nobody_recorded_say_so():
    for name in PEERS:
        uses_reciprocal = name.split(".")[0] in {"qutlass", "cutlass"} or name.endswith("_kernel")
        source = fp4ref.profiles.source(name)
        assert source.startswith(("recorded: ", "read from source: ")), name
        assert ("SM90" in source) == uses_reciprocal, name
        assert PROMISES[name].finite.holds == source.startswith("recorded"), name


@pytest.mark.rule("PRO-3")
def test_orders_of_operations_differ_on_the_recorded_inputs(peers):
    names = ["torchao.nvfp4_2lvl", "modelopt.nvfp4", "compressed_tensors.nvfp4", "fouroversix.nvfp4_static_6"]
    names += ["flashinfer.ref_nvfp4", "flashinfer.ref_nvfp4_te", "flashinfer.trace_nvfp4", "jax.nvfp4"]
    seen = {
        tuple(quantize(peer_input(peers, case), fp4ref.profiles[name]).data.tobytes() for case in INPUTS)
        for name in names
    }
    assert len(seen) == len(names)


@pytest.mark.rule("APX-1")
def test_approximate_reciprocal_is_the_measured_table():
    mantissas = np.arange(1 << 23, dtype=np.uint32)
    x = (mantissas | 0x3F800000).view(F)
    nearest = (1 / x.astype(np.float64)).astype(F)
    distance = reciprocal_approx(x).view(np.int32) - nearest.view(np.int32)
    with np.load(TABLE) as archive:
        assert np.array_equal(distance, archive["d"])
    assert (np.bincount(distance + 1) / (1 << 23)).round(4).tolist() == [0.0447, 0.8679, 0.0875]


@pytest.mark.rule("APX-1")
def test_approximate_reciprocal_of_special_numbers():
    table = [
        (6.0, 1 / 6), (448.0, 1 / 448), (2688.0, 1 / 2688), (1.0, 1.0), (-2.0, -0.5), (0.0, np.inf), (-0.0, -np.inf),
        (2.0**-127, np.inf), (-(2.0**-149), -np.inf), (2.0**-126, 2.0**126), (2.0**127, 0.0), (-(2.0**127), -0.0),
        (2.0**126, 2.0**-126), (np.inf, 0.0), (-np.inf, -0.0),
    ]  # fmt: skip
    got = reciprocal_approx(np.array([x for x, _ in table], F))
    assert got.tobytes() == np.array([y for _, y in table], F).tobytes()
    assert np.isnan(reciprocal_approx(np.array([np.nan], F))).all()


@pytest.mark.rule("APX-1")
@pytest.mark.parametrize("exponent", [-126, -3, 1, 100, 125])
def test_approximate_reciprocal_does_not_depend_on_the_exponent(exponent):
    x = (np.arange(1, 1 << 23, 997, dtype=np.uint32) | 0x3F800000).view(F)
    scaled = np.ldexp(x, exponent)
    assert reciprocal_approx(scaled).tobytes() == np.ldexp(reciprocal_approx(x), -exponent).tobytes()


@pytest.mark.rule("PRO-1", "PRO-3", "E2M1-6", "NUM-2")
def test_recorded_releases():
    checked = 0
    with np.load(DATA / "releases.npz") as recorded:
        for key in recorded.files:
            if not key.endswith("/data"):
                continue
            case, name, _ = key.split("/")
            x, spec = recorded[f"{case}/x"], fp4ref.profiles[name]
            q = quantize(x.astype(ml_dtypes.bfloat16) if case.endswith(".bf16") else x, spec)
            scales = recorded[f"{case}/{name}/scales"]
            judged = np.ones(scales.shape, np.bool_)
            if name.startswith("compressed_tensors"):  # it casts NaN to an integer, which is not defined
                judged = ~np.isnan(x.reshape(*scales.shape, 32)).any(axis=2)
            assert (q.scales == scales)[judged].all(), key
            codes, wanted = (unpack(data, x.shape[1], spec.element.format) for data in (q.data, recorded[key]))
            sign = 1 << (spec.element.format.bits - 1)
            of_nan = ~np.isfinite(x) & np.isin(codes | sign, [code | sign for code in spec.element.nan])
            same = (codes == wanted) | (of_nan & (codes | sign == wanted | sign))
            assert same[np.repeat(judged, 32, axis=1)].all(), key
            checked += 1
    assert checked == 2 * 2 * 14
