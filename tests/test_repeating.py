from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from commands import GOOD, good
from fp4ref.cli import main
from fp4ref.conformance import families
from fp4ref.conformance.run.repeating import repeated
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.subjects import calling
from fp4ref.conformance.subjects.calling import Caller
from fp4ref.conformance.subjects.guards import host_bytes
from fp4ref.conformance.subjects.outcomes import FindingKind, Outcome
from fp4ref.conformance.subjects.subject import Declaration, Job, Output, golden, job_of
from fp4ref.testing import assert_conforms
from standard_rules import rows_of

NVFP4 = fp4ref.NVFP4


@pytest.mark.rule("CNF-67")
def test_a_call_that_changes_what_an_earlier_one_returned():
    buffers: dict[tuple[int, ...], tuple[np.ndarray, ...]] = {}

    def static(x):
        found = good(x)
        kept = buffers.setdefault(x.shape, found)
        for buffer, part in zip(kept, found, strict=True):
            buffer[...] = part
        return kept

    cases = list(families.cases(NVFP4, families=["normal"]))
    jobs = [job_of(case, Declaration(), golden(case)) for case in (cases[0], cases[0], cases[1], cases[2])]
    caller = Caller(static, Declaration())
    found = [caller.call(job, remember=True).finding for job in jobs]
    assert found[:2] == [None, None]
    assert {each.kind for each in found if each is not None} == {FindingKind.OVERWRITTEN}
    assert "bytes of data that an earlier call returned" in next(each for each in found if each is not None).text
    assert [Caller(static, Declaration()).call(job).finding for job in jobs] == [None] * len(jobs)


KERNELS = """
import itertools
import numpy as np

KEPT = {}
LARGEST = [np.float32(0)]
COUNT = itertools.count()

def cached_by_shape(x):
    return KEPT.setdefault(x.shape, good(x))

def scratch_is_not_cleared(x):
    LARGEST[0] = np.maximum(LARGEST[0], np.abs(x.astype(np.float32)).max(initial=0))
    q = fp4ref.quantize(x, "nvfp4", amax=np.array([LARGEST[0]]), backend="numpy")
    return q.row.data, q.row.scales, q.row.amax

def every_ninth_call(x):
    data, scales, amax = good(x)
    return data ^ (next(COUNT) // 2 % 9 == 8), scales, amax

def static_buffers(x):
    found = good(x)
    kept = KEPT.setdefault(x.shape, [part.copy() for part in found])
    for buffer, part in zip(kept, found):
        buffer[...] = part
    return tuple(kept)

OPERANDS = ("a_data", "a_scales", "a_amax", "b_data", "b_scales", "b_amax")

def whole(*parts):
    shape = len(parts[0]), parts[0].shape[1] * 2
    q = fp4ref.Quantized(fp4ref.NVFP4, shape, "float32", "linear", fp4ref.DirectionData(*parts))
    return fp4ref.dequantize(q, backend="numpy")

@fp4ref.kernel(operation="gemm", inputs=OPERANDS, outputs=("values",))
def remembers_a_product(*parts):
    product = whole(*parts[:3]) @ whole(*parts[3:]).T
    return KEPT.setdefault(product.shape, product)
"""


def verify(folder, name: str, *more: str) -> tuple[int, dict]:
    (folder / "kernels.py").write_text(GOOD + KERNELS)
    line = ["verify", "--kernel", f"{folder / 'kernels.py'}:{name}", "--spec", "nvfp4", "--json", *more]
    done = CliRunner().invoke(main, line)
    return done.exit_code, json.loads(done.stdout)


def kinds(record: dict) -> set[str]:
    return {found["kind"] for found in record["findings"]}


@pytest.mark.slow
@pytest.mark.rule("CNF-14")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("static_buffers", FindingKind.OVERWRITTEN),
        ("every_ninth_call", FindingKind.DEPENDS),
        pytest.param("cached_by_shape", FindingKind.DEPENDS, marks=pytest.mark.heavy),
        pytest.param("scratch_is_not_cleared", FindingKind.DEPENDS, marks=pytest.mark.heavy),
        pytest.param("remembers_a_product", FindingKind.DEPENDS, marks=pytest.mark.heavy),
    ],
)
def test_kernels_with_a_past(tmp_path, name, kind):
    few = ("powers",) if name == "remembers_a_product" else ("normal", "minus-zero")
    chosen = [word for family in few for word in ("--family", family)]
    status, record = verify(tmp_path, name, *chosen, "--repeat", "1")
    assert status == 1
    assert kinds(record) == {kind}, record["findings"]
    assert f"wrong: {kind} in " in record["headline"]
    if name == "static_buffers":
        assert verify(tmp_path, name, *chosen)[0] == 0


@pytest.mark.slow
@pytest.mark.rule("CNF-14")
def test_a_kernel_without_a_past_conforms_again(tmp_path):
    status, record = verify(tmp_path, "good", "--family", "normal", "--repeat", "2")
    assert (status, record["findings"], record["not_tried"]) == (0, [], 0)


def test_a_kernel_in_this_process_that_counts_its_calls():
    calls = []

    def counts(x):
        calls.append(1)
        data, scales, amax = good(x)
        return data ^ np.uint8(len(calls) > 20), scales, amax

    with pytest.raises(AssertionError, match="depends-on-earlier-calls in 6 of 6 cases"):
        assert_conforms(counts, "nvfp4", families=["normal"], repeat=1)


class Scripted:
    """A subject whose answers are given: by how often each job was called."""

    separate = True

    def __init__(self, answers):
        self.answers, self.made, self.fresh = answers, [], 0

    def outcome(self, make, *, remember):
        job = make()
        assert remember
        self.made.append(job.arguments["rows"])
        value = self.answers(job.arguments["rows"], self.made.count(job.arguments["rows"]))
        return Outcome(values=np.array([value], np.float32))

    def together(self, jobs):
        return [Outcome(values=np.array([self.answers(job.arguments["rows"], 9)], np.float32)) for job in jobs]

    def close(self):
        self.fresh += 1


@pytest.mark.example("CNF-67")
@pytest.mark.rule("CNF-14")
@pytest.mark.parametrize(
    ("answers", "device", "found"),
    [
        (lambda job, call: job, "cpu", [None, None, None]),
        (
            lambda job, call: job + (call == 2) * (job == 1),
            "cpu",
            [None, FindingKind.DEPENDS, None],
        ),  # reversed comes first
        (lambda job, call: job + (call == 3) * (job == 2), "cpu", [None, None, FindingKind.UNSTABLE]),
        (lambda job, call: job + (call >= 2) * (job == 2), "cpu", [None, None, FindingKind.UNSTABLE]),
        (lambda job, call: job + (call == 9), "cpu", [None, None, None]),
        (lambda job, call: job + (call == 9), "cuda", [FindingKind.CONCURRENT] * 3),
    ],
)
def test_what_a_difference_is_called(answers, device, found):
    kinds = [kind for kind, _ in rows_of("CNF-67")]
    assert kinds == [kind.value for kind in (FindingKind.UNSTABLE, FindingKind.DEPENDS, FindingKind.CONCURRENT)] + [
        FindingKind.OVERWRITTEN.value
    ]
    subject = Scripted(answers)
    declared = Declaration(arrays="torch", device=device)
    makers = [partial(Job, {"rows": number}, {"values": Output((1,), "float32")}) for number in range(3)]
    outcomes = list(repeated(subject, makers, declared, RunOptions(repeat=1)))
    assert subject.made == [0, 1, 2, 2, 1, 0, 0, 1, 2]
    assert [None if each.finding is None else each.finding.kind for each in outcomes] == found


@pytest.mark.rule("CNF-14", "CNF-131")
@pytest.mark.example("CNF-14", "CNF-131")
def test_orders_and_processes_of_repetitions():
    ((names, orders),) = rows_of("CNF-14")
    names, orders = names.split(", "), [order.split() for order in orders.split(", ")]
    for repetitions, processes in rows_of("CNF-131"):
        subject = Scripted(lambda job, call: job)
        makers = [partial(Job, {"rows": at}, {"values": Output((1,), "float32")}) for at in range(len(names))]
        options = RunOptions(repeat=int(repetitions))
        list(repeated(subject, makers, Declaration(), options))
        assert [names[at] for at in subject.made] == [
            name for order in [*orders[:1], *orders[1:] * int(repetitions)] for name in order
        ]
        assert 1 + subject.fresh == int(processes)


@pytest.mark.rule("CNF-67")
@pytest.mark.rule("LAY-37")
@pytest.mark.parametrize(("unit", "found"), [(0, FindingKind.UNSTABLE), (3, None)])
def test_bytes_that_the_layout_leaves_open_may_differ_when_a_call_is_made_again(unit, found):
    class Moved(Scripted):
        def outcome(self, make, *, remember):
            buffer = np.zeros((128, 4), np.uint8)
            buffer[0, unit] = super().outcome(make, remember=remember).values[0]
            return Outcome(values=buffer)

    outputs = {"scales": Output((128, 4), "uint8", stored=(5, 3))}
    reads = {"inputs": ("scales", "rows", "columns"), "outputs": ("scales",)}
    declared = Declaration(**reads, operation="to_layout", scale_layout="linear_padded")
    subject = Moved(lambda job, call: call)
    (outcome,) = repeated(subject, [partial(Job, {"rows": 0}, outputs)], declared, RunOptions(repeat=1))
    assert (outcome.finding and outcome.finding.kind) == found


@pytest.mark.example("CNF-66")
@pytest.mark.rule("CNF-66")
@pytest.mark.parametrize("arrays", ["numpy", "torch"])
@pytest.mark.parametrize("takes_stream", [True, False])
def test_inputs_of_calls_on_streams_are_written_by_their_own_stream(arrays, takes_stream, monkeypatch):
    torch = pytest.importorskip("torch") if arrays == "torch" else None

    class Kernel:
        def __call__(self, x):
            q = fp4ref.quantize(x, "nvfp4", backend="numpy")
            return q.row.data, q.row.scales, q.row.amax

    (own, read), (_, poison) = rows_of("CNF-66")
    assert (own, read) == ("queues its work on the current stream", "its input")
    waiting = int(poison.split(",")[0], 16)
    kernel, seen = Kernel(), []
    if not takes_stream:
        kernel.takes_stream = False

    def one_after_another(device, calls):
        given = (call.args[0].inputs["x"].array for call in calls)
        seen.extend(host_bytes(x.view(np.uint8 if arrays == "numpy" else torch.uint8)).copy() for x in given)
        return [call() for call in calls]

    monkeypatch.setattr(calling, "on_streams", one_after_another)
    declared = Declaration(arrays=arrays)
    cases = [case for case in families.cases(fp4ref.NVFP4) if case.family == "normal" and case.x.size][:3]
    jobs = [job_of(case, declared, golden(case)) for case in cases]
    caller = Caller(kernel, declared)
    together = caller.outcomes(jobs, together=True)
    for alone, each, before, case in zip(caller.outcomes(jobs), together, seen, cases, strict=True):
        assert (alone.finding, each.finding) == (None, None)
        assert alone.data.data.tobytes() == each.data.data.tobytes()
        assert (before.tobytes() == case.x.tobytes()) is not takes_stream
        assert (set(before.tolist()) == {waiting}) is takes_stream


@pytest.mark.gpu
@pytest.mark.rule("CNF-66")
def test_calls_on_streams_that_share_a_workspace():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    shared = {}

    def workspace(x):
        part = shared.setdefault(x.shape, torch.empty_like(x))
        part.copy_(x)
        torch.cuda._sleep(2_000_000)
        q = fp4ref.quantize(part, "nvfp4")
        return q.row.data, q.row.scales, q.row.amax

    def right(x):
        q = fp4ref.quantize(x, "nvfp4")
        return q.row.data, q.row.scales, q.row.amax

    changes = {"arrays": "torch", "device": "cuda", "families": ["normal"], "repeat": 1}

    def on_the_default_stream(x):
        with torch.cuda.stream(torch.cuda.default_stream()):
            return right(x)

    assert assert_conforms(right, "nvfp4", **changes).ok
    for wrong in (workspace, on_the_default_stream):
        with pytest.raises(AssertionError, match="differs-on-streams"):
            assert_conforms(wrong, "nvfp4", **changes)


STREAMS = """
import torch
import fp4ref

shared = {}

@fp4ref.kernel(arrays="torch", device="cuda")
def workspace(x):
    part = shared.setdefault(x.shape, torch.empty_like(x))
    part.copy_(x)
    torch.cuda._sleep(2_000_000)
    q = fp4ref.quantize(part, "nvfp4")
    return q.row.data, q.row.scales, q.row.amax

@fp4ref.kernel(arrays="torch", device="cuda")
def on_default(x):
    with torch.cuda.stream(torch.cuda.default_stream()):
        q = fp4ref.quantize(x, "nvfp4")
    return q.row.data, q.row.scales, q.row.amax

@fp4ref.kernel(arrays="torch", device="cuda")
def good(x):
    q = fp4ref.quantize(x, "nvfp4")
    return q.row.data, q.row.scales, q.row.amax
"""


@pytest.mark.gpu
@pytest.mark.rule("CNF-14", "CNF-22", "CNF-66")
@pytest.mark.parametrize(("name", "status"), [("good", 0), ("workspace", 1), ("on_default", 1)])
def test_the_command_repeats_on_streams_of_a_device(name, status, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels.py").write_text(STREAMS)
    command = f"verify --kernel kernels.py:{name} --spec nvfp4 --device cuda --repeat 1 --family normal --json"
    done = CliRunner().invoke(main, command.split())
    found = json.loads(done.stdout)
    assert done.exit_code == status, found["headline"]
    assert "state between calls" not in found["coverage"]["not_judged"]
    assert ("differs-on-streams" in [each["kind"] for each in found["findings"]]) is (name != "good")
