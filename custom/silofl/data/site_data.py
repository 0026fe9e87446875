"""Load a site's data folder as arrays for training, validation and test."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from silofl.base.errors import DataError, Faults, UnreadableError
from silofl.data.cache import describe_source, fingerprint_preparation, load_or_prepare
from silofl.data.cache_entries import prune
from silofl.data.contrasts import ImageFiles, list_missing_contrasts
from silofl.data.data_profile import DataProfile, Form, measure_data_profile, read_form
from silofl.data.leakage import SeenImages
from silofl.data.manifest import Manifest, agree_split_unit, read_manifest
from silofl.data.parts import Examples, PreparedCase
from silofl.data.preparation import build_preparation, build_requests, prepare_case
from silofl.data.prepared_image import list_file_warnings
from silofl.data.progress import track_progress
from silofl.data.records import Record
from silofl.data.unreadable import UnreadableCases, count_reasons, read_unreadable
from silofl.reading.decoder import decode_ahead, end_decoder
from silofl.reading.image import Image
from silofl.reading.images import read_image
from silofl.study import Study
from silofl.study.data_settings import BackgroundSettings

__all__ = ["Examples", "SiteData", "load_site_data"]
# The form of so many training files is looked at, spread evenly.
FILES = 8
# So many training examples are measured, spread evenly.
MEASURED = 256


@dataclass(frozen=True)
class SiteData:
    """The three parts of a site's data, and the manifest that they were read from, if any.

    Attributes:
        unreadable: Reason -> how many cases of dataset.json are left out because they cannot be read; these are in
            none of the parts and not in the manifest.
        background: What padding becomes in the images.
    """

    training: Examples
    validation: Examples
    test: Examples
    manifest: Manifest | None = None
    unreadable: Mapping[str, int] = field(default_factory=dict)
    background: BackgroundSettings = BackgroundSettings()

    @classmethod
    def empty(cls) -> "SiteData":
        """Return the data of a site that reads none."""
        part = Examples(np.zeros((0, 1, 1, 1), np.float32), np.zeros(0, np.int64), (), (), ())
        return cls(part, part, part)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, *spatial) of what a network sees, by the first part that holds a case."""
        return next(filter(len, (self.training, self.validation, self.test))).image_shape

    @cached_property
    def data_profile(self) -> DataProfile:
        """The form and the intensities of the training images, by a sample of them.

        Raises:
            DataError: An image cannot be read any more.
        """
        records = () if self.manifest is None else self.manifest.training
        forms = [self.read_first(records[row])[0] for row in sample_evenly(len(records), FILES)]
        end_decoder()
        # The images are read one by one, because together they may not fit into the memory.
        rows = sample_evenly(len(self.training), MEASURED)
        is_drawn = self.manifest is not None and self.manifest.task == "segmentation"
        label_maps = (self.training.targets[row] for row in rows) if is_drawn else ()
        return measure_data_profile(forms, (self.training.images[row] for row in rows), label_maps)

    def list_file_warnings(self, record: Record, form: Form, study: Study) -> list[str]:
        """Return what a case lacks, and what its file does not state, as `prepared_image` says it."""
        return list_file_warnings(form, self.list_missing(record, study), study)

    def list_missing(self, record: Record, study: Study) -> list[str]:
        """Return which of the study's contrasts a case lacks."""
        return list_missing_contrasts(study.data.channel_names, [self._find_files(record)])

    def read_first(self, record: Record) -> tuple[Form, Image]:
        """Return the form of a case's image in its file, and its first file's image.

        Raises:
            DataError: The image cannot be read any more.
        """
        # The pixels of the first file are enough: the contrasts of a case lie on one grid.
        source = self._find_files(record)
        image = read_image(*source.first, record.index, self.background)
        return read_form(source, image), image

    def _find_files(self, record: Record) -> ImageFiles:
        if self.manifest is None:
            raise LookupError(record.case)
        return self.manifest.source(record)


def load_site_data(
    folder: Path,
    study: Study,
    cache_dir: Path,
    has_progress: bool = True,
    skip_unreadable: float = 0.0,
    needed: Sequence[str] | None = None,
) -> SiteData:
    """Read a site's data once, cache it, and open the cache; what it holds of the same data in an older state goes.

    Args:
        folder: The folder that holds dataset.json.
        study: The study that the data must fit and that says how they are prepared.
        cache_dir: Where prepared arrays are kept; later calls with the same data and settings decode nothing.
        has_progress: Whether a terminal shows a progress bar while files are read.
        skip_unreadable: Share of all cases that may be left out because they cannot be read, in [0, 1).
        needed: The parts that must have a case; by default those that the study needs.

    Raises:
        DataError: dataset.json or a case is wrong, images come out in different sizes or too small for the algorithm,
            or the cache cannot be written.
        ConfigError: A transform is not allowed, or its options are not right.
    """
    if study.asks_alone:
        # The study's only part reads the data as they are, whatever labels they have.
        return SiteData.empty()
    needed = study.needed_parts if needed is None else needed
    manifest = read_manifest(folder, study, needed)
    unreadable = read_unreadable(cache_dir, manifest, skip_unreadable)
    prepare = partial(_prepare_cases, manifest, study, has_progress, unreadable)
    source = describe_source(manifest)
    parts = load_or_prepare(cache_dir, fingerprint_preparation(source, study), prepare, source)
    prune(cache_dir, source)
    prepared: set[str] = set()
    has_all_labels = len(manifest.labels_annotated) == len(study.labels)
    for name, part in parts.items():
        prepared.update(part.cases)
        # These belong to the study or to dataset.json, and are no part of the cache.
        parts[name] = replace(
            part,
            patches=study.data.patches,
            annotated=None if has_all_labels else manifest.labels_annotated,
            has_ignored=manifest.ignored is not None,
        )
    absent = unreadable.find_absent(manifest, prepared)
    for name in needed:
        if not len(parts[name]):
            raise DataError(f"no case of {name} can be read, and {len(absent)} of all parts cannot; mend one of {name}")
    manifest = manifest.without(absent)
    data = SiteData(**parts, manifest=manifest, unreadable=count_reasons(absent), background=study.data.background)
    study.recipe.check_images(study, data.image_shape, manifest.missing(study.data.channel_names))
    return data


def sample_evenly(count: int, most: int) -> list[int]:
    """Return at most so many numbers below a count, evenly spread."""
    return list(map(int, np.linspace(0, count - 1, min(count, most))))


def _prepare_cases(
    manifest: Manifest, study: Study, has_progress: bool, unreadable: UnreadableCases
) -> Iterator[tuple[str, PreparedCase]]:
    # Images are compared here, where each is read once for the cache, and not at every start.
    seen = SeenImages(manifest.places, agree_split_unit(study, manifest.split_unit))
    records: list[tuple[str, Record]] = []
    for part, of_part in manifest.parts.items():
        records += [(part, record) for record in of_part if not unreadable.must_skip(record.case)]
    faults = Faults()

    def cases() -> Iterator[tuple[str, PreparedCase]]:
        steps = build_preparation(study)
        for part, record in track_progress(records, len(records), f"reading {manifest.folder.name}", has_progress):
            with faults.collect_fault():
                try:
                    case = prepare_case(record, manifest, steps)
                except UnreadableError as error:
                    unreadable.add(record.case, error)
                    continue
                seen.add(part, record, case.digests)
                yield part, case

    with decode_ahead(build_requests((record for _, record in records), manifest)):
        yield from _check_same_size(cases())
    faults.tell()
    unreadable.finish()


def _check_same_size(cases: Iterable[tuple[str, PreparedCase]]) -> Iterator[tuple[str, PreparedCase]]:
    first_case: PreparedCase | None = None
    for part, case in cases:
        # The first case decides the size of all.
        first_case = first_case or case
        size = first_case.images.shape[2:]
        if case.images.shape[2:] != size and not case.has_own_size:
            raise DataError(
                f"prepared images differ in size: case {case.case!r} has {case.images.shape[2:]}, case "
                f"{first_case.case!r} has {size}; add Resize: {{spatial_size: {list(size)}}} to the study's "
                "data.transforms"
            )
        yield part, case
