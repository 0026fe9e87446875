"""Pool all sites' data in one folder, for the centralised upper bound, which only a simulation can train."""

import json
from collections.abc import Mapping, Sequence
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
from silofl_desk.studies.plans.data_survey import check_sites_agree


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
        for name, source in manifest.places.items():
            _link_files(source, folder / site / name, f"{site}/{name}")
    write_text(folder / FILE_NAME, json.dumps(pool_manifests(manifests), indent=1))
    return out


def pool_manifests(manifests: Mapping[str, Manifest]) -> dict[str, Any]:
    """Return the dataset.json that holds all records of several sites.

    Raises:
        DataError: The sites differ in labels or contrasts, or in how their patients are split.
    """
    # A pool of which one site does not know its patients is unknown; what the others keep apart stays apart.
    with_unit = {site: manifest for site, manifest in manifests.items() if manifest.split_unit != "unknown"}
    check_sites_agree(manifests, ("task", "stored_numbers", "labels_annotated", "ignored", "channel_names"))
    check_sites_agree(with_unit, ("split_unit",))
    shared = next(iter(manifests.values()))
    # Of classes the records have the study's numbers; of label maps the files keep their own.
    own = shared.stored_numbers if shared.task == "segmentation" else {number: number for number in shared.labels}
    content: dict[str, Any] = {
        "task": shared.task,
        "labels": {str(number): shared.labels[of_study] for number, of_study in sorted(own.items())},
        "split_unit": shared.split_unit if len(with_unit) == len(manifests) else "unknown",
    }
    # A dataset.json has these keys only where they say something.
    if shared.channel_names:
        content["channel_names"] = [*shared.channel_names]
    if shared.ignored is not None:
        content[IGNORE] = shared.ignored
    if len(shared.labels_annotated) < len(shared.labels):
        content["labels_annotated"] = [number for number in sorted(own) if own[number] in shared.labels_annotated]
    for part in PARTS:
        content[part] = []
        for site, manifest in manifests.items():
            content[part] += [_pool_record(site, record, manifest) for record in manifest.parts[part]]
    return content


def group_by_site(values: Mapping[str, float]) -> dict[str, list[float]]:
    """Group the values of a pool's cases, {case: value}, by the site that each case comes from."""
    grouped: dict[str, list[float]] = {}
    for case, value in values.items():
        grouped.setdefault(case.partition("/")[0], []).append(value)
    return grouped


def _read_site_manifest(folder: Path, site: str, study: Study) -> Manifest:
    try:
        return read_manifest(folder, study)
    except DataError as error:
        raise DataError(f"site {site!r}: {error}") from None


def _pool_record(site: str, record: Record, manifest: Manifest) -> dict[str, Any]:
    values = {key: value for key, value in asdict(record).items() if value not in (None, {}) and key != "images"}
    for key in ("patient", "case"):
        if key in values:
            values[key] = f"{site}/{values[key]}"
    # A label is the file of a mask, the set of findings, or the number of a class, which stays.
    if isinstance(record.label, str):
        values["label"] = f"{site}/{record.label}"
    elif manifest.task == "multilabel":
        values["label"] = list_findings(record.label)
    # A contrast that the case lacks is null.
    images = [None if path is None else f"{site}/{path}" for path in record.images]
    values["image"] = images if len(images) > 1 else images[0]
    return values


def _link_files(source: Path, target: Path, name: str) -> None:
    """Link or copy a file, or every file of a DICOM folder."""
    try:
        for file in list_files(source):
            path = target if file == source else target / file.name
            make_folder(path.parent)
            # A file of an earlier comparison may be of other data.
            path.unlink(missing_ok=True)
            link_or_copy(file, path, name)
    except OSError as error:
        raise open_error(name, error) from None
