"""Mistakes of kernels whose authors had not read the library of mistakes, each on a tensor that shows it."""

import numpy as np

import fp4ref
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.diagnosis.dequantizer_ways import ways
from fp4ref.conformance.diagnosis.diagnose import diagnose
from fp4ref.conformance.diagnosis.dumps import Cut
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
