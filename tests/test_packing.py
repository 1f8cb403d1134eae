from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp4ref import packing
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.errors import ShapeError
from fp4ref.formats import CUDA_E2M1, E2M1, E4M3, E5M2


@pytest.mark.rule("PACK-1")
def test_one_and_minus_six_by_hand():
    codes = CUDA_E2M1.encode(np.float32([[1.0, -6.0]]))
    assert packing.pack(codes, E2M1).tolist() == [[0xF2]]


@pytest.mark.rule("PACK-1")
def test_every_byte_is_its_two_codes():
    every = np.arange(256, dtype=np.uint8)
    codes = packing.unpack(every[None], 512, E2M1)
    assert codes[0, 0::2].tolist() == [byte % 16 for byte in range(256)]
    assert codes[0, 1::2].tolist() == [byte // 16 for byte in range(256)]
    assert np.array_equal(packing.pack(codes, E2M1)[0], every)


@pytest.mark.rule("PACK-1", "PACK-2", "PACK-3")
@given(data=st.data(), rows=st.integers(0, 3), columns=st.integers(0, 33), form=st.sampled_from([E2M1, E4M3, E5M2]))
def test_pack_is_the_oracles_and_unpack_its_inverse(data, rows, columns, form):
    code = st.integers(0, (1 << form.bits) - 1)
    row = st.lists(code, min_size=columns, max_size=columns)
    codes = np.array(data.draw(st.lists(row, min_size=rows, max_size=rows)), np.uint8).reshape(rows, columns)
    packed = packing.pack(codes, form)
    assert packed.tolist() == [oracle.pack(row, form.bits) for row in codes.tolist()]
    assert packed.shape[1] == packing.width(columns, form)
    assert np.array_equal(packing.unpack(packed, columns, form), codes)


@pytest.mark.rule("PACK-2")
def test_spare_nibble_is_zero_and_is_ignored():
    codes = np.uint8([[1, 2, 15]])
    assert packing.pack(codes, E2M1).tolist() == [[0x21, 0x0F]]
    assert packing.unpack(np.uint8([[0x21, 0xAF]]), 3, E2M1).tolist() == [[1, 2, 15]]


@pytest.mark.rule("PACK-3")
def test_eight_bit_codes_are_their_own_bytes():
    codes = np.arange(256, dtype=np.uint8)[None]
    assert np.array_equal(packing.pack(codes, E4M3), codes)
    assert np.array_equal(packing.unpack(codes, 256, E5M2), codes)


@pytest.mark.rule("PACK-1")
def test_bytes_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match=r"unpack: 3 bytes for 4 codes of 4 bits, need 2 \[PACK-1\]"):
        packing.unpack(np.zeros((1, 3), np.uint8), 4, E2M1)
