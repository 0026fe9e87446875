"""Split patients into training, validation and test."""

from collections.abc import Mapping, Sequence

import numpy as np

from silofl.base.errors import DataError


def split_by_patient(
    patients: Sequence[str], test: float, validation: float, seed: int, classes: Mapping[str, int] | None = None
) -> dict[str, str]:
    """Put each patient into training, validation or test, at random.

    Of n patients, round(n * test) are for the test, then round(rest * validation) for the validation. Each part gets a
    patient where there are enough: one patient is for training, two are for training and test. With classes all this is
    so within each class, unless a part would then get nobody.

    Args:
        patients: One name an example, or one a patient.
        classes: Patient -> class, where each has one.
        test: Fraction of the patients for the test, in [0, 1).
        validation: Fraction of the other patients for the validation, in [0, 1); 0 for none.
        seed: The same seed and patients give the same split, whatever the order of the names.

    Returns:
        ``training``, ``validation`` or ``test`` by patient.

    Raises:
        DataError: A fraction is out of range.
    """
    check_fractions(test, validation)
    groups: dict[int, list[str]] = {}
    for name in sorted(set(patients)):
        groups.setdefault(classes[name] if classes else 0, []).append(name)
    part_of: dict[str, str] = {}
    rng = np.random.default_rng(seed)
    # In the order of classes and names, because each class draws from the same generator.
    for _, names in sorted(groups.items()):
        num_test = _round_share(len(names), test)
        part_of |= deal_parts(names, num_test, _round_share(len(names) - num_test, validation), rng)
    wanted = {"test": test, "validation": validation}
    # With few patients in each class none may have one to spare for a part: classes then do not count.
    if classes and any(share and part not in part_of.values() for part, share in wanted.items()):
        return split_by_patient(patients, test, validation, seed)
    return part_of


def check_fractions(test: float, validation: float) -> None:
    """Refuse a share of the patients for a part that is below 0, or all of them."""
    for name, fraction in (("test", test), ("validation", validation)):
        if not 0 <= fraction < 1:
            raise DataError(f"{name} must be a fraction from 0 to below 1, not {fraction}")


def deal_parts(names: list[str], num_test: int, num_validation: int, rng: np.random.Generator) -> dict[str, str]:
    """Return the part of each name, at random: so many for test and validation, the others for training."""
    # The order of the names must not matter, which is why callers sort them.
    shuffled = [names[i] for i in rng.permutation(len(names))]
    parts = ["test"] * num_test + ["validation"] * num_validation
    parts += ["training"] * (len(names) - len(parts))
    return dict(zip(shuffled, parts, strict=True))


def _round_share(count: int, fraction: float) -> int:
    """Return a fraction of `count`, rounded: at least one where the fraction is above 0, but never all."""
    wanted = max(1, round(count * fraction)) if fraction > 0 else 0
    return max(0, min(wanted, count - 1))
