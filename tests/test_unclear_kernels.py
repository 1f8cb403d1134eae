"""Mistakes of kernels whose authors had not read the library of mistakes, each on a tensor that shows it."""

import numpy as np
import pytest

import fp4ref
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.diagnosis.dequantizer_ways import ways
from fp4ref.conformance.diagnosis.diagnose import diagnose
from fp4ref.conformance.diagnosis.dumps import Cut
from fp4ref.conformance.diagnosis.explanations import verdict
from fp4ref.conformance.subjects.subject import Declaration
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, STOCHASTIC_E2M1
from fp4ref.quantized import DirectionData

F = np.float32
DEQUANTIZES = Declaration(
    operation="dequantize", inputs=("data", "scales", "rows", "columns"), outputs=("values",), to="float16"
)
STOCHASTIC = fp4ref.NVFP4.replace(name="stochastic", element=STOCHASTIC_E2M1)


def drawn(*shape, seed=5):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def texts(x, row, spec="nvfp4", bits=None):
    spec = PROFILES[spec] if isinstance(spec, str) else spec
    found = diagnose(spec, "linear", [(Cut(x, "row", None, bits), row)], 3.0)
    return [explanation.text for explanation in found.explanations]


def packed(codes):
    return codes[:, ::2] | codes[:, 1::2] << 4


def by_blocks(x, divided):
    """Quantize rows to NVFP4. divided: makes what is encoded of blocks, their scales and the global scale."""
    amax = np.abs(x).max()
    g = F(2688) / amax
    blocks = x.astype(F).reshape(len(x), -1, 16)
    t = np.abs(blocks).max(axis=2) * (g * F(1 / 6))
    byte = CUDA_E4M3.encode(np.fmin(t, F(448)))
    y = divided(blocks, CUDA_E4M3.decode(byte)[..., None], t[..., None], g)
    return DirectionData(packed(CUDA_E2M1.encode(y.astype(F)).reshape(x.shape)), byte, np.array([amax], F))


@pytest.mark.heavy
def test_nothing_is_looked_for_outside_of_a_place():
    """Scale bytes of odd blocks are wrong; those of even ones are the right ones for these, and explain nothing."""
    evidence = []
    for seed in range(4):
        x = drawn(64, 256, seed=seed)
        row = fp4ref.quantize(x, "nvfp4").row
        scales = row.scales.copy()
        scales[:, 1::2] += (x[:, 17::32] > 0.3).astype(np.uint8) * 9
        evidence.append((Cut(x, "row", None, None), row._replace(scales=scales)))
    found = diagnose(fp4ref.NVFP4, "linear", evidence, 3.0)
    assert found.place == "where block % 2 == 1"
    assert found.findings
    assert not any(finding.text for finding in found.findings if finding.stage == "scale")


def test_an_amax_of_minus_zero_is_told():
    x = np.full((3, 32), -0.0, F)
    row = fp4ref.quantize(x, "nvfp4").row
    right = [
        (Cut(each, "row", None, None), fp4ref.quantize(each, "nvfp4").row) for each in (drawn(8, 32), -drawn(8, 32))
    ]
    found = diagnose(fp4ref.NVFP4, "linear", [*right, (Cut(x, "row", None, None), row._replace(amax=F([-0.0])))], 3.0)
    assert verdict(found).endswith("only: every wrong amax is -0 instead of 0 (1 of them)")


def test_codes_of_eight_bits_have_no_nibbles():
    x = drawn(64, 128)
    row = fp4ref.quantize(x, "mxfp8-e4m3").row
    data = row.data.copy()
    data[24:] = data[24:].reshape(40, -1, 2)[:, :, ::-1].reshape(40, -1)
    assert texts(x, row._replace(data=data), "mxfp8-e4m3") == [
        "codes are in reverse order in groups of 2, in rows from 24 on"
    ]


def test_the_first_two_dimensions_are_exchanged():
    x = drawn(2, 3, 4, 32)
    told = texts(x, fp4ref.quantize(np.ascontiguousarray(x.swapaxes(0, 1)), "mxfp4").row, "mxfp4")
    assert told[0] == "the first two dimensions of x are exchanged before it is flattened"


def test_elements_are_divided_by_another_scale():
    x = drawn(512, 256)
    right = by_blocks(x, lambda v, s, t, g: v * (F(1) / (s * (F(1) / g))))
    assert right.data.tobytes() == fp4ref.quantize(x, "nvfp4").row.data.tobytes()
    told = texts(x, by_blocks(x, lambda v, s, t, g: v * (F(1) / (np.fmin(t, F(448)) * (F(1) / g)))))
    assert "elements are divided by the scale before it was rounded to its byte" in told


def test_scaled_elements_are_rounded_to_the_type_of_the_input():
    x = drawn(32, 256).astype(np.float16)
    told = texts(x, by_blocks(x, lambda v, s, t, g: (v * (F(1) / (s * (F(1) / g)))).astype(np.float16)))
    assert "scaled elements are rounded to the input's type" in told


def test_rows_of_random_bytes_are_read_with_padding():
    x, bits = drawn(24, 34), np.random.default_rng(6).integers(0, 256, (24, 34), np.uint8)
    read = bits.reshape(-1)[(np.arange(24)[:, None] * 48 + np.arange(34)) % bits.size]
    told = texts(x, fp4ref.quantize(x, STOCHASTIC, random_bits=fp4ref.Directions(read, None)).row, STOCHASTIC, bits)
    assert told[0] == "random bits are read as if the length of their rows were rounded up to a multiple of 16"


def test_float16_values_are_clamped():
    spec = PROFILES["mxfp8-e5m2"]
    told = [way.text for way in ways(DEQUANTIZES, spec)]
    assert "values past the largest float16 are 65504" in told
    clamped = next(way for way in ways(DEQUANTIZES, spec) if "65504" in way.text)
    values = F([70000, -np.inf, 65504, np.nan, -0.0])
    assert (
        clamped.after(values).astype(np.float16).tobytes() == np.float16([65504, -65504, 65504, np.nan, -0.0]).tobytes()
    )
