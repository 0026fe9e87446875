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
    annotated = {part.annotated for part in parts.values()}
    if len(annotated) > 1:
        raise DataError(
            "sites must have the same labels_annotated to be taken as one, not different ones; leave out those that "
            "annotate fewer labels"
        )

    def named(key: str) -> tuple[str | None, ...]:
        pairs = ((site, name) for site, part in parts.items() for name in getattr(part, key))
        return tuple(None if name is None else f"{site}/{name}" for site, name in pairs)

    images, targets = (
        concatenate_parts([getattr(part, key) for part in parts.values()]) for key in ("images", "targets")
    )
    slices, patches = (number for part in parts.values() for number in part.slices), next(iter(parts.values())).patches
    spacings = {f"{site}/{case}": size for site, part in parts.items() for case, size in part.spacings.items()}
    names = (named("cases"), tuple(slices), named("patients"))
    has_ignored = any(part.has_ignored for part in parts.values())
    return Examples(images, targets, *names, annotated.pop(), patches, spacings, has_ignored)


def check_same_size(parts: Mapping[str, Examples]) -> None:
    """Refuse images that are not of one size at all sites; volumes with label maps may have any.

    Raises:
        DataError: Two sites' images have different sizes.
    """
    sizes = {site: part.images.shape[2:] for site, part in parts.items() if not isinstance(part.images, Volumes)}
    for site, found in sizes.items():
        first, wanted = next(iter(sizes.items()))
        if found != wanted:
            raise DataError(
                f"site {site!r} must have images of the size of site {first!r}, {wanted}, not {found}; add Resize: "
                f"{{spatial_size: {list(wanted)}}} to the study's data.transforms"
            )
