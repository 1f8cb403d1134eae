"""The standard's own specifications, by name.

Rules: SPC-8.
"""

from fp4ref import arithmetic as ar
from fp4ref.catalogue import register_profile
from fp4ref.formats import CUDA_E2M1, CUDA_E2M3, CUDA_E3M2, CUDA_E4M3, CUDA_E5M2, CUDA_E8M0, OCP_INT8, STOCHASTIC_E2M1
from fp4ref.promise import Checked, Promise
from fp4ref.spec import SPEC_VERSION, Block, FourOverSix, Granularity, Hadamard, Spec

NVFP4 = Spec(
    name="nvfp4",
    element=CUDA_E2M1,
    scale=CUDA_E4M3,
    block=Block(1, 16),
    global_scale=Granularity.TENSOR,
    arithmetic=ar.TE,
)
NVFP4_2D = NVFP4.replace(name="nvfp4-2d", block=Block(16, 16))
NVFP4_ROW_SCALED = NVFP4.replace(name="nvfp4-row-scaled", global_scale=Granularity.ROW)
NVFP4_RHT = NVFP4.replace(name="nvfp4-rht", hadamard=Hadamard())
NVFP4_4OVER6 = NVFP4.replace(name="nvfp4-4over6", arithmetic=ar.TE_DIVISION, four_over_six=FourOverSix())
NVFP4_FAST = NVFP4.replace(name="nvfp4-fast", arithmetic=ar.TE_FAST)

MXFP8_E4M3 = Spec(
    name="mxfp8-e4m3",
    element=CUDA_E4M3,
    scale=CUDA_E8M0,
    block=Block(1, 32),
    global_scale=Granularity.NONE,
    arithmetic=ar.RCEIL,
)
MXFP8_E5M2 = MXFP8_E4M3.replace(name="mxfp8-e5m2", element=CUDA_E5M2)
MXFP8_2D = MXFP8_E4M3.replace(name="mxfp8-2d", block=Block(32, 32))
MXFP4 = MXFP8_E4M3.replace(name="mxfp4", element=CUDA_E2M1)
MXFP6_E2M3 = MXFP8_E4M3.replace(name="mxfp6-e2m3", element=CUDA_E2M3)
MXFP6_E3M2 = MXFP8_E4M3.replace(name="mxfp6-e3m2", element=CUDA_E3M2)
MXINT8 = MXFP8_E4M3.replace(name="mxint8", element=OCP_INT8, arithmetic=ar.OCP_FLOOR)
MXFP4_2D = MXFP4.replace(name="mxfp4-2d", block=Block(32, 32))

STANDARD = (
    NVFP4,
    NVFP4_2D,
    NVFP4_ROW_SCALED,
    NVFP4_RHT,
    NVFP4_4OVER6,
    NVFP4_FAST,
    MXFP4,
    MXFP4_2D,
    MXFP8_E4M3,
    MXFP8_E5M2,
    MXFP8_2D,
)


def stochastic_twin(spec: Spec) -> Spec:
    """Return the same specification with stochastic rounding of elements, named NAME-sr. Rules: SR-12."""
    return spec.replace(name=f"{spec.name}-sr", element=STOCHASTIC_E2M1)


NVFP4_SR = stochastic_twin(NVFP4)
NVFP4_2D_SR = stochastic_twin(NVFP4_2D)
NVFP4_RHT_SR = stochastic_twin(NVFP4_RHT)
NVFP4_FAST_SR = stochastic_twin(NVFP4_FAST)

STOCHASTIC = (NVFP4_SR, NVFP4_2D_SR, NVFP4_RHT_SR, NVFP4_FAST_SR)
OWN = (*STANDARD, *STOCHASTIC, MXFP6_E2M3, MXFP6_E3M2, MXINT8)
DEFINED = Promise(versions=(SPEC_VERSION,), checked=Checked.DEFINED, how="this standard")
for _spec in OWN:
    register_profile(_spec, DEFINED)
