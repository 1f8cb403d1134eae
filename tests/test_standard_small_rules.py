"""Tables of rules that state one small fact each, computed; see test_standard_examples."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest

import fp4ref
from fp4ref import rules
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.errors import Fp4Error
from fp4ref.formats import CUDA_E8M0, Codec
from fp4ref.model.quantize import constants
from fp4ref.standard.tables import codes_of, number_of, tables

F = np.float32
RULES = rules.defined()


def rows_of(rule, number=0):
    return tables(RULES[rule].text)[number][1:]


def record_of(name):
    return json.loads(fp4ref.profiles[name].to_json())


def read_json(record):
    return fp4ref.from_json(json.dumps(record))


def bits_of(value):
    return int(np.asarray(value, F).view(np.uint32))


# Chapter 12


@pytest.mark.rule("SPC-13", "SPC-14")
@pytest.mark.example("SPC-13", "SPC-14")
def test_json_is_read_back():
    (whole, named), (_, changed) = rows_of("SPC-13")
    spec = fp4ref.from_json(fp4ref.profiles[whole.strip("`")].to_json())
    assert (spec, spec.name) == (fp4ref.profiles[whole.strip("`")], re.search("named `(.*)`", named)[1])
    six = fp4ref.NVFP4.replace(element_max=6.0)
    assert fp4ref.from_json(six.to_json()) == six != fp4ref.NVFP4
    assert changed == "equal, and not equal to `nvfp4`"
    for version, name in rows_of("SPC-14"):
        record = record_of("nvfp4") | {"fp4ref": json.loads(version.strip("`"))}
        assert read_json(record) == fp4ref.profiles[name.strip("`")]


@pytest.mark.rule("SPC-15")
@pytest.mark.example("SPC-15")
def test_the_sign_of_a_codec_without_a_sign():
    for sign, code, result in rows_of("SPC-15"):
        record = record_of("mxfp4")
        record["scale"]["sign"] = sign.strip("`")
        spec = read_json(record)
        assert (spec == fp4ref.profiles["mxfp4"]) == (result == "equal to `mxfp4`")
        assert spec.scale.encode(F([3])).tolist() == codes_of(code)


@pytest.mark.rule("SPC-16")
def test_a_default_does_not_depend_on_other_fields():
    codec, arithmetic = (re.search("`(.*)`", row[1])[1] for row in rows_of("SPC-16", 1))
    record = record_of("mxfp4")
    del record["scale"]["rounding"], record["arithmetic"]
    spec = read_json(record | {"name": "without"})
    assert (spec.scale.rounding, spec.scale.format) == (codec, CUDA_E8M0.format)
    assert spec.arithmetic == ARITHMETIC[arithmetic]


@pytest.mark.rule("SPC-17", "SPC-2")
@pytest.mark.example("SPC-17")
def test_real_numbers_in_json():
    text = fp4ref.NVFP4.to_json()
    for number, result in rows_of("SPC-17"):
        changed = text.replace('"element_max": null', f'"element_max": {number.strip("`")}')
        value = float(result.split(",")[0].replace("infinity", "inf"))
        if rule := re.search(r"refused by (SPC-\d+)", result):
            with pytest.raises(Fp4Error, match=rf"element_max {value} .*{rule[1]}"):
                fp4ref.from_json(changed)
        else:
            assert fp4ref.from_json(changed).element_max == value


@pytest.mark.rule("SPC-18", "GLB-2")
@pytest.mark.example("SPC-18")
def test_the_product_of_both_maxima():
    for scale_max, element_max, product, exact in rows_of("SPC-18"):
        four_over_six = dataclasses.replace(fp4ref.NVFP4_4OVER6.four_over_six, scale_max=float(scale_max))
        spec = fp4ref.NVFP4_4OVER6.replace(element_max=float(element_max), four_over_six=four_over_six)
        k = constants(spec, np.dtype(F))
        expected = bits_of(number_of(product))
        assert bits_of(ARITHMETIC["te"].global_scale(F([1]), k)[0]) == expected
        assert bits_of(F(float(scale_max)) * F(float(element_max))) == expected
        assert bits_of(F(float(scale_max) * float(element_max))) == bits_of(number_of(exact))


@pytest.mark.rule("SPC-19")
@pytest.mark.example("SPC-19")
def test_a_format_without_a_zero():
    for roundings, number, code in rows_of("SPC-19"):
        for rounding in re.findall("`(.*?)`", roundings):
            codec = Codec(format=CUDA_E8M0.format, rounding=rounding, nan=CUDA_E8M0.nan)
            assert codec.encode(F([number_of(number)])).tolist() == codes_of(code)
