"""The processor time of a diagnosis, and the share of it after which each search ends.

A diagnosis of a quantizer has SECONDS, one of another operation or of a product OPERATION_SECONDS. That of a quantizer
looks for causes among few cases first, and has FEW of the time for that; the rest is for all cases. Within each of the
two, a search ends when its share of that time is over, counted from the beginning, so that the time that a search does
not need is left for those after it. For example, the search for two mistakes ends when 0.9 of the time is over.
"""

from enum import Enum

SECONDS = 9.0
OPERATION_SECONDS = 9.0
FEW = 0.5  # among few cases
BEFORE_BOUNDS = 0.7  # under a transform: with all blocks, before those that are judged by a bound are left out
TOGETHER = 0.5  # several tensors of a dump together, before each is diagnosed on its own
NEAR = 0.5  # seconds: how far the bytes that nothing explains are from the right ones
INSIDE = 0.8  # of what is left: inside the place of everything that differs


class Share(Enum):
    """The share of a session's time after which a search ends."""

    SINGLE = 0.4  # no mistake, or one
    SPECIAL = 0.5  # one, in which special values count
    PLACED = 0.52  # one that holds in one place
    EARLY_PAIRS = 0.62  # two, each in its place, before anything inside the place of all that differs
    STAGES = 0.7  # each stage on its own
    PLACED_PAIRS = 0.72  # two, each in its place
    PAIR_OR_MEASURED = 0.75  # two, where something was measured that explains all as well
    PAIR = 0.9  # two
    UNNAMED = 0.95  # scales in a place that has no name
    WORDS = 1.0  # the place of what was found
