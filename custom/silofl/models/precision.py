"""The precision of what travels: with float16 half of the bytes, where a study asks for it.

Both ends compute in float32: only what is on its way is rounded. NVFlare's quantisation is a pair of filters in each
job, which a run in one process does not have; here every run rounds alike, and a site's own filters see what leaves.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silofl.core.array_file import ArrayFile
from silofl.core.mixing import Arrays
from silofl.study import Study

# A larger number would become infinite.
LARGEST = float(np.finfo(np.float16).max)


def narrow_arrays(arrays: Arrays, study: Study) -> Arrays:
    """Return arrays as they travel: float32 as float16, unless a number in it is beyond 65504; others as they are."""
    if study.federation.precision == "float32":
        return arrays
    # By torch, here and below: NumPy takes twenty times as long for numbers below 6e-5, as many changes are.
    return {name: torch.tensor(array).half().numpy() if _fits(array) else array for name, array in arrays.items()}


def narrow_messages(messages: Mapping[str, Arrays], study: Study) -> dict[str, Arrays]:
    """Return the arrays for each site as they travel; what several sites are sent is rounded once, and held once."""
    if study.federation.precision == "float32":
        return {site: dict(arrays) for site, arrays in messages.items()}
    different: dict[int, NDArray[Any]] = {}
    for arrays in messages.values():
        different |= {id(array): array for array in arrays.values()}
    file = ArrayFile[int]()
    for key, array in different.items():
        file.write(key, narrow_arrays({"": array}, study)[""])
    halves = file.read()
    narrowed: dict[str, Arrays] = {}
    for site, arrays in messages.items():
        narrowed[site] = {name: halves[id(array)] for name, array in arrays.items()}
    return narrowed


def keep_exact(arrays: Arrays, study: Study) -> Arrays:
    """Return arrays of which nothing may be lost on the way: in float64, which `narrow_arrays` leaves as it is."""
    if study.federation.precision == "float32":
        return arrays
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def widen_arrays(arrays: Arrays, study: Study) -> Arrays:
    """Return received arrays as both ends compute with them: float16 as float32, where the study lets it travel."""
    if study.federation.precision == "float32":
        return arrays
    widened = {}
    for name, array in arrays.items():
        if isinstance(array, np.ndarray) and array.dtype == np.float16:
            array = torch.tensor(array).float().numpy()
        widened[name] = array
    return widened


def round_as_received(arrays: Arrays, study: Study) -> Arrays:
    """Return the server's arrays as sites get them, so that the models that are written are those that were tested."""
    return widen_arrays(narrow_arrays(arrays, study), study)


def types_on_wire(dtype: str, study: Study) -> tuple[str, ...]:
    """Return the types in which an array of a type may travel."""
    # An array with a number beyond 65504 travels as it is.
    if study.federation.precision == "float16" and dtype == "float32":
        return ("float16", dtype)
    return (dtype,)


def bytes_on_wire(dtype: str, num_bytes: int, study: Study) -> int:
    """Return the bytes of an array of a type on the wire, of one that has so many here."""
    return num_bytes // 2 if len(types_on_wire(dtype, study)) > 1 else num_bytes


def _fits(array: object) -> bool:
    # Of a number that is none the comparison fails: the server refuses it as it is.
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        return False
    return bool(array.size == 0 or max(array.max(), -array.min()) <= LARGEST)
