"""The examples of several sites as one part, which only a simulation has."""

from collections.abc import Mapping

from silofl.base.errors import DataError
from silofl.data.parts import Examples
from silofl.data.volumes import Volumes, concatenate_parts


def join_examples(parts: Mapping[str, Examples]) -> Examples:
    """Return the examples of several sites as one part, cases and patients named ``site/...``: simulation only.

    Raises:
        DataError: The sites annotate different labels, or their images have different sizes.
    """
    check_same_size(parts)
    every_part = list(parts.values())
    if len({part.annotated for part in every_part}) > 1:
        raise DataError("The sites annotate different labels (labels_annotated). Leave out those that annotate fewer.")
    cases: list[str] = []
    slices: list[int | None] = []
    patients: list[str | None] = []
    spacings = {}
    for site, part in parts.items():
        # Two sites may have a case or a patient of one name.
        cases += [f"{site}/{case}" for case in part.cases]
        slices += part.slices
        patients += [None if patient is None else f"{site}/{patient}" for patient in part.patients]
        for case, spacing in part.spacings.items():
            spacings[f"{site}/{case}"] = spacing
    return Examples(
        images=concatenate_parts([part.images for part in every_part]),
        targets=concatenate_parts([part.targets for part in every_part]),
        cases=tuple(cases),
        slices=tuple(slices),
        patients=tuple(patients),
        annotated=every_part[0].annotated,
        patches=every_part[0].patches,
        spacings=spacings,
        has_ignored=any(part.has_ignored for part in every_part),
    )


def check_same_size(parts: Mapping[str, Examples]) -> None:
    """Refuse images that are not of one size at all sites; volumes with label maps may have any.

    Raises:
        DataError: Two sites' images have different sizes.
    """
    # Volumes with label maps are cut into patches of one size.
    sizes = {site: part.images.shape[2:] for site, part in parts.items() if not isinstance(part.images, Volumes)}
    for site, size in sizes.items():
        expected_site, expected = next(iter(sizes.items()))
        if size != expected:
            raise DataError(
                f"images of site {expected_site!r} have the size {expected}, those of {site!r} {size}; add Resize: "
                f"{{spatial_size: {list(expected)}}} to the study's data.transforms"
            )
