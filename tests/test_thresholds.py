"""E2M1 codes by thresholds on bit patterns: equal to the plain codec for every bfloat16 magnitude under every scale."""

from __future__ import annotations

import shutil
import subprocess

import pytest

import fp4ref

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")

PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include <fp4ref/fp4ref.h>
#include <fp4ref/thresholds.h>
{specification}
using namespace fp4ref;
using S = Specification;

// Differences from the plain codec under every scale byte of one global maximum; `covered` counts usable entries.
static long differences(float A, unsigned step, long& covered)
{{
    const float g = global_scale<S, bfloat16>(A);
    long wrong = 0;
    for (unsigned byte = 0; byte < 127; ++byte) {{
        const thresholds::Entry entry = thresholds::entry<S>(byte, g), up = thresholds::entry<S>(byte, g, 256);
        if (!entry.ramp) continue;
        ++covered;
        const Scale scale = stored_scale<S, bfloat16>(S::Scale::decode(byte), g, 1.0f);
        for (unsigned p = byte % step; p < 0x7f80; p += step) {{
            const unsigned want = 0x0800 + S::Element::encode(scaled<S, bfloat16>(bfloat16::widen(p), scale, g));
            wrong += thresholds::codes(p * thresholds::BOTH, entry) != want * thresholds::BOTH;
            if (p >= 0x100 && p < 0x7e80)
                wrong += thresholds::codes((p + 256) * thresholds::BOTH, up) != want * thresholds::BOTH;
        }}
    }}
    return wrong;
}}

// The ramp over both of the lower thresholds, for every distance between them that an entry allows, every difference.
static long ramps()
{{
    long wrong = 0;
    for (unsigned d = 154; d <= 249; ++d)
        for (unsigned u = 0; u <= 0x17f; ++u)
            for (unsigned above = 0; above <= 5; ++above) {{
                const unsigned base = thresholds::BASE + above * thresholds::BOTH, middle = (d + 1) / 2;
                const unsigned want = 0x0800 + above + (u >= middle) + (u >= middle + d);
                const unsigned ramp = thresholds::both_lanes(thresholds::ramp(d));
                const unsigned got = thresholds::halves_fma(u * thresholds::BOTH, ramp, base);
                wrong += got != want * thresholds::BOTH;
            }}
    return wrong;
}}

int main(int, char** arguments)
{{
    const unsigned step = static_cast<unsigned>(std::atoi(arguments[1]));
    long wrong = 0, covered = 0;
    const float mantissas[] = {{
        1.0f, 0x1.000002p0f, 0x1.234568p0f, 0x1.555556p0f, 0x1.8p0f, 0x1.aaaaaap0f, 0x1.fffffep0f}};
    for (float A : mantissas) wrong += differences(A, step, covered);
    for (int exponent = -126; exponent < 128; exponent += 3)
        for (float A : mantissas) wrong += differences(A * power_of_two(exponent), 97, covered);
    std::printf("%ld %ld %ld\\n", wrong, ramps(), covered);
}}
"""


@pytest.mark.heavy
@pytest.mark.rule("E2M1-3", "E2M1-4", "E2M1-6", "BLK-4", "BLK-5")
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.heavy)])
def test_thresholds_are_the_codec(step, tmp_path):
    """In steps of 5, which start at another magnitude under each scale; the heavy test takes every magnitude."""
    import fp4ref_numerics

    source = tmp_path / "thresholds.cpp"
    source.write_text(PROGRAM.format(specification=fp4ref_numerics.lower(fp4ref.NVFP4)))
    program = tmp_path / "thresholds"
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([COMPILER, *flags, f"-I{fp4ref_numerics.INCLUDE}", source, "-o", program], check=True)
    wrong, ramps, covered = map(
        int, subprocess.run([program, str(step)], capture_output=True, check=True).stdout.split()
    )
    assert (wrong, ramps) == (0, 0)
    assert covered > 50_000
