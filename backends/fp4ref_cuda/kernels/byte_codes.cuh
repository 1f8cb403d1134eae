// Codes of 8-bit floats, of numbers times a scale, saturating. Rules: TEL-21.
#pragma once
#include "common.cuh"

using word = In::word;

DEVICE unsigned two_codes(word low, word high, float scale)
{
    return fp4ref::encode_pair<S::Element>(In::widen(low) * scale, In::widen(high) * scale);
}
