"""The numbers in a target: those of the study's labels, 0 for the background, and one for what nobody annotated."""

import numpy as np
from numpy.typing import NDArray

# No label has this number; what has it counts in no loss and no score.
IGNORED = 255
# What messages, and nnU-Net, call it.
IGNORE = "ignore"


def find_labelled(target: np.ndarray) -> NDArray[np.bool_]:
    """Return where a label map has a label; not in the background, nor where nobody annotated it."""
    is_labelled: NDArray[np.bool_] = (target > 0) & (target != IGNORED)
    return is_labelled
