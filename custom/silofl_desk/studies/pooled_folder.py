"""Pool all sites' data in one folder, for the centralised upper bound, which only a simulation can train."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from silofl.base.errors import DataError
from silofl.base.files import make_folder, write_text
from silofl.core.findings import list_findings
from silofl.data.manifest import FILE_NAME, PARTS, Manifest, read_manifest
from silofl.data.records import Record
from silofl.data.targets import IGNORE
from silofl.reading.access import link_or_copy, list_files, open_error
from silofl.study import Study
from silofl_desk.report.sentences import POOLED_SITE


def pool_sites(data: Path, sites: Sequence[str], study: Study, out: Path) -> Path:
    """Pool the data of several sites as those of one site, named ``pooled``.

    Files are hard-linked, or copied where that cannot be done. A case, a patient and a path begin with their site, as
    ``north/case3``; a recording stays its patient's.

    Args:
        data: Folder that holds one data folder a site.
        study: The study that all data must fit.
        out: Folder that will hold the folder ``pooled``.

    Returns:
        ``out``, as the data folder of a simulation with one site.

    Raises:
        DataError: A site's data do not fit the study or the other sites', or a file cannot be read or written.
    """
    manifests = {site: _read_site_manifest(data / site, site, study) for site in sites}
    folder = out / POOLED_SITE
    for site, manifest in manifests.items():
        for name, place in manifest.places.items():
            _link_files(place, folder / site / name, f"{site}/{name}")
    write_text(folder / FILE_NAME, json.dumps(pool_manifests(manifests), indent=1))
    return out


def pool_manifests(manifests: Mapping[str, Manifest]) -> dict[str, Any]:
    """Return the dataset.json that holds all records of several sites.

    Raises:
        DataError: The sites differ in labels or contrasts, or in how their patients are split.
    """
    # A pool of which one site does not know its patients is unknown; what the others keep apart stays apart.
    known = {site: one for site, one in manifests.items() if one.split_unit != "unknown"}
    _check_sites_agree(manifests, ("task", "labels", "labels_annotated", "ignored", "channel_names"))
    _check_sites_agree(known, ("split_unit",))
    manifest = next(iter(manifests.values()))
    unit = manifest.split_unit if len(known) == len(manifests) else "unknown"
    labels = {str(number): name for number, name in sorted(manifest.labels.items())}
    records = {
        part: [_pool_record(site, record, one) for site, one in manifests.items() for record in one.parts[part]]
        for part in PARTS
    }
    more = {"channel_names": [*manifest.channel_names]} if manifest.channel_names else {}
    more |= {} if manifest.ignored is None else {IGNORE: manifest.ignored}
    more |= {} if len(manifest.labels_annotated) == len(labels) else {"labels_annotated": [*manifest.labels_annotated]}
    return {"task": manifest.task, "labels": labels, "split_unit": unit, **more, **records}


def group_by_site(values: Mapping[str, float]) -> dict[str, list[float]]:
    """Group the values of a pool's cases, {case: value}, by the site that each case comes from."""
    found: dict[str, list[float]] = {}
    for case, value in values.items():
        found.setdefault(case.partition("/")[0], []).append(value)
    return found


def _check_sites_agree(manifests: Mapping[str, Manifest], keys: Iterable[str]) -> None:
    for site, other in manifests.items():
        first, manifest = next(iter(manifests.items()))
        for key in keys:
            wanted, found = getattr(manifest, key), getattr(other, key)
            if wanted != found:
                raise DataError(
                    f"site {site!r} must have the {key} of site {first!r}, {wanted!r}, to be pooled with it, not "
                    f"{found!r}; correct its {FILE_NAME}"
                )


def _read_site_manifest(folder: Path, site: str, study: Study) -> Manifest:
    try:
        return read_manifest(folder, study)
    except DataError as error:
        raise DataError(f"site {site!r}: {error}") from None


def _pool_record(site: str, record: Record, manifest: Manifest) -> dict[str, Any]:
    values = {key: value for key, value in asdict(record).items() if value not in (None, {}) and key != "images"}
    prefixed: dict[str, Any] = {key: f"{site}/{values[key]}" for key in ("patient", "case") if key in values}
    if isinstance(record.label, str):
        prefixed["label"] = f"{site}/{record.label}"
    elif manifest.task == "multilabel":
        prefixed["label"] = list_findings(record.label)
    images = [None if path is None else f"{site}/{path}" for path in record.images]
    return values | prefixed | {"image": images if len(images) > 1 else images[0]}


def _link_files(source: Path, target: Path, name: str) -> None:
    """Link or copy a file, or every file of a DICOM folder."""
    try:
        for file in list_files(source):
            place = target if file == source else target / file.name
            make_folder(place.parent)
            place.unlink(missing_ok=True)
            link_or_copy(file, place, name)
    except OSError as error:
        raise open_error(name, error) from None
