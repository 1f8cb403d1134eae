"""The Spec record: equality, names, JSON, and what it refuses."""

import dataclasses
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

import fp4ref
from fp4ref import Block, Codec, DomainError, FourOverSix, Granularity, Hadamard, Spec, from_json, register_arithmetic
from fp4ref.arithmetic import OCP_FLOOR, RCEIL, TE
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, CUDA_E8M0, STOCHASTIC_E2M1
from fp4ref.spec_json import differences

NVFP4 = fp4ref.NVFP4


@pytest.mark.rule("SPC-1")
def test_name_is_not_part_of_equality() -> None:
    other = NVFP4.replace(name="another")
    assert other == NVFP4
    assert hash(other) == hash(NVFP4)
    assert NVFP4.replace(block=(16, 16)) == fp4ref.NVFP4_2D


@pytest.mark.rule("SPC-1")
def test_a_spec_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        NVFP4.block = Block(1, 32)  # type: ignore[misc]


@pytest.mark.rule("SPC-1")
def test_plain_strings_and_tuples_are_coerced() -> None:
    spec = Spec(name="s", element=CUDA_E2M1, scale=CUDA_E4M3, block=(1, 16), global_scale="tensor", arithmetic=TE)  # type: ignore[arg-type]
    assert spec == NVFP4
    assert spec.global_scale is Granularity.TENSOR
    assert isinstance(spec.block, Block)
    with pytest.raises(DomainError, match="global_scale 'column'"):
        NVFP4.replace(global_scale="column")


@pytest.mark.rule("SPC-1")
def test_a_derived_name_says_what_changed() -> None:
    assert NVFP4.replace(block=(16, 16)).name == "nvfp4[block=[16,16]]"


@pytest.mark.rule("SPC-3", "SPC-13")
def test_json_and_pickle_return_the_same_record() -> None:
    for name, spec in fp4ref.profiles.items():
        for copy in (from_json(spec.to_json()), pickle.loads(pickle.dumps(spec))):
            assert copy == spec, name
            assert copy.name == spec.name == name
            assert hash(copy) == hash(spec), name


@pytest.mark.rule("SPC-3")
def test_a_spec_unpickles_in_another_process() -> None:
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).name)"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(fp4ref.NVFP4_4OVER6), capture_output=True, check=True
    )
    assert done.stdout.strip() == b"nvfp4-4over6"


@pytest.mark.rule("SPC-11", "SPC-4")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fp4ref": "9.9"}, "spec version"),
        ({"arithmetic": "os.system"}, "arithmetic 'os.system'"),
        ({"element": {"format": "e9m9", "nan": [0, 0]}}, "e9m9"),
        ({"block": [1]}, "block"),
        ({"block": [1, "16"]}, "block"),
        ({"block": "ab"}, "block"),
        ({"amax": "sometimes"}, "amax 'sometimes'"),
        ({"colour": "red"}, "unknown colour"),
        ({"element_max": "six"}, "element_max"),
        ({"name": 5}, "name"),
        ({"hadamard": {"signs": 1 << 20}}, "mask of 16 bits"),
        ({"four_over_six": {"total": "sum"}}, "total 'sum'"),
        ({"four_over_six": {"metric": "mae", "scale_max": 500}}, "scale_max 500"),
    ],
)
def test_json_that_is_not_a_spec_is_refused(change: dict[str, object], message: str) -> None:
    record = json.loads(NVFP4.to_json()) | change
    with pytest.raises(DomainError, match=message) as raised:
        from_json(json.dumps(record))
    assert "\n" not in str(raised.value)


@pytest.mark.rule("SPC-11")
@pytest.mark.parametrize("text", ["", "[]", "null", "{", '"nvfp4"', "{}", "[" * 100_000])
def test_text_that_is_not_a_record_is_refused(text: str) -> None:
    with pytest.raises(DomainError):
        from_json(text)


@pytest.mark.rule("SPC-11")
def test_a_missing_field_is_named() -> None:
    record = json.loads(NVFP4.to_json())
    del record["scale"]
    with pytest.raises(DomainError, match="without scale"):
        from_json(json.dumps(record))


@pytest.mark.rule("SPC-2", "FOS-7", "HAD-5", "GLB-5", "GLB-6", "SR-1")
@pytest.mark.parametrize(
    ("base", "changes", "parts"),
    [
        ("nvfp4-2d", {"global_scale": "row"}, ("global_scale row", "16x16", "GLB-5")),
        ("nvfp4-rht", {"global_scale": "row"}, ("global_scale row", "hadamard", "GLB-5")),
        ("nvfp4-row-scaled", {"element": STOCHASTIC_E2M1}, ("global_scale row", "stochastic", "GLB-5")),
        ("nvfp4", {"block": (0, 16)}, ("0x16", "BLK-1")),
        ("mxfp4", {"global_scale": "tensor"}, ("global_scale tensor", "e8m0", "GLB-6")),
        ("nvfp4-4over6", {"hadamard": Hadamard()}, ("four_over_six", "hadamard", "FOS-7")),
        ("nvfp4-4over6", {"element": CUDA_E4M3}, ("four_over_six", "e4m3", "FOS-7")),
        ("nvfp4-4over6", {"element": STOCHASTIC_E2M1}, ("four_over_six", "stochastic", "FOS-7")),
        ("nvfp4-4over6", {"global_scale": "none"}, ("four_over_six", "global_scale none", "FOS-7")),
        ("nvfp4-4over6", {"scale": CUDA_E8M0, "global_scale": "none"}, ("four_over_six", "e8m0", "FOS-7")),
        ("nvfp4-4over6", {"block": (3, 16)}, ("four_over_six", "3 rows", "FOS-7")),
        ("fouroversix.nvfp4_mae", {"block": (1, 15)}, ("total halves", "15 columns", "FOS-7")),
        ("fouroversix.nvfp4_2d_mae", {"block": (2, 6)}, ("total lanes", "2x6", "FOS-7")),
        ("nvfp4", {"arithmetic": RCEIL}, ("global_scale tensor", "rceil", "GLB-6")),
        ("nvfp4-row-scaled", {"arithmetic": OCP_FLOOR}, ("global_scale row", "ocp-floor", "GLB-6")),
        ("nvfp4-rht", {"block": (1, 8)}, ("hadamard", "8 columns", "HAD-5")),
        ("nvfp4", {"element": CUDA_E8M0}, ("element e8m0", "SPC-2")),
        ("nvfp4", {"scale": CUDA_E2M1}, ("scale e2m1", "SPC-2")),
        ("nvfp4", {"scale": STOCHASTIC_E2M1}, ("scale e2m1", "SPC-2")),
        ("nvfp4", {"element_max": 7.0}, ("element_max 7", "e2m1", "SPC-2")),
        ("nvfp4", {"element_max": 0.0}, ("element_max 0", "SPC-2")),
        ("nvfp4", {"element_max": float("nan")}, ("element_max nan", "SPC-2")),
    ],
)
def test_settings_without_a_meaning_together_are_refused(
    base: str, changes: dict[str, object], parts: tuple[str, ...]
) -> None:
    with pytest.raises(DomainError) as raised:
        fp4ref.profiles[base].replace(**changes)
    for part in parts:
        assert part in str(raised.value)


@pytest.mark.rule("SPC-2", "SR-1")
def test_a_codec_refuses_what_it_cannot_hold() -> None:
    for changes in ({"nan": (16, 7)}, {"nan": (7, 7), "overflow": 16}, {"nan": (-1, 7)}):
        with pytest.raises(DomainError):
            Codec(format=fp4ref.E2M1, **changes)  # type: ignore[arg-type]
    with pytest.raises(DomainError, match="stochastic rounding to e4m3"):
        Codec(format=fp4ref.E4M3, rounding="stochastic", nan=(0x7F, 0x7F))  # type: ignore[arg-type]


@pytest.mark.rule("SPC-4", "SPC-5")
def test_a_third_party_registers_a_profile(request: pytest.FixtureRequest) -> None:
    def total(errors: np.ndarray) -> np.ndarray:
        return errors.sum((2, 3), dtype=np.float32)

    fp4ref.register_rule(total, "acme.total")
    ours = register_arithmetic(
        "acme.v1",
        lambda a, g, k: a * g * np.float32(1 / 6),
        lambda x, s, g, k: x * (g / s),
        TE.global_scale,
        dequantized=TE.dequantized,
    )
    spec = fp4ref.profiles.register(
        fp4ref.NVFP4_4OVER6.replace(
            name="acme.nvfp4", arithmetic=ours, four_over_six=FourOverSix(metric="mse", total=total)
        ),
        "made for this test",
    )
    request.addfinalizer(lambda: fp4ref.profiles.forget(spec.name))  # other tests compare the whole catalogue
    assert from_json(spec.to_json()) == spec
    assert fp4ref.profiles["acme.nvfp4"] is spec
    assert fp4ref.profiles.source("acme.nvfp4") == "made for this test"
    assert fp4ref.quantize(np.ones((2, 32), np.float32), "acme.nvfp4").row.data.shape == (2, 16)
    with pytest.raises(DomainError, match="twice"):
        register_arithmetic("acme.v1", ours.block_scale)
    with pytest.raises(DomainError, match="twice"):
        fp4ref.profiles.register(NVFP4.replace(name="acme.nvfp4"))
    with pytest.raises(DomainError, match="twice"):
        fp4ref.register_rule(lambda errors: errors, "acme.total")


@pytest.mark.rule("SPC-4")
def test_an_unregistered_function_has_no_json_form() -> None:
    spec = fp4ref.NVFP4_4OVER6.replace(name="s", four_over_six=FourOverSix())
    unnamed = dataclasses.replace(spec, four_over_six=dataclasses.replace(FourOverSix(), total=lambda errors: errors))
    with pytest.raises(DomainError, match="registered"):
        unnamed.to_json()


@pytest.mark.rule("SPC-4")
def test_an_unknown_profile_is_a_key_error_with_suggestions() -> None:
    with pytest.raises(KeyError, match="nvfp4"):
        fp4ref.profiles["nvfp5"]
    assert fp4ref.profiles.get("nvfp5") is None
    assert "nvfp5" not in fp4ref.profiles


def test_differences_name_nested_fields() -> None:
    assert differences(NVFP4, fp4ref.NVFP4_2D) == {"block": ([1, 16], [16, 16])}
    found = differences(NVFP4, fp4ref.profiles["te.python_reference"])
    assert found["element.sign"] == ("bit", "negative")
    assert set(differences(NVFP4, fp4ref.NVFP4_RHT)) == {"hadamard"}


@pytest.mark.rule("SPC-17", "SPC-2")
def test_numbers_of_json_are_rounded_to_binary64():
    text = fp4ref.NVFP4.to_json()
    assert from_json(text.replace('"element_max": null', '"element_max": 6.0000000000000001')).element_max == 6
    for number, read in (("1e400", "inf"), ("1e-400", r"0\.0")):
        with pytest.raises(DomainError, match=rf"element_max {read} .*SPC-2"):
            from_json(text.replace('"element_max": null', f'"element_max": {number}'))
