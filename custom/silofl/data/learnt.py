"""Which images a run learnt from at a site, by their pixels, so that none passes as a test once it is named otherwise.

The file names cases and stays at the site; `silofl_hospital.site.forget_patient` takes a patient's out of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from silofl.base.errors import DataError
from silofl.base.files import write_json
from silofl.base.schema import dump_record, read_file
from silofl.data.manifest import agree_split_unit
from silofl.data.parts import Examples
from silofl.data.site_data import SiteData
from silofl.study import Study

FILE = "learnt_from.json"


@dataclass(frozen=True)
class LearntFrom:
    """The content of learnt_from.json.

    Attributes:
        datasets: SHA-256 of each dataset.json that the run has learnt from here.
        cases: Case of training or validation -> `silofl.data.leakage.digest_content` of its images.
    """

    datasets: tuple[str, ...]
    cases: Mapping[str, tuple[str, ...]]


def record_learnt(folder: Path, data: SiteData) -> None:
    """Add a site's training and validation images to those that a run learnt from.

    Args:
        folder: The site's folder of the run.
    """
    if data.manifest is None:
        return
    before = read_file(LearntFrom, folder / FILE) or LearntFrom((), {})
    # What an earlier dataset.json held was learnt from too, also under the same name of a case.
    cases = dict(before.cases)
    for part in (data.training, data.validation):
        for case, digests in part.digests.items():
            cases[case] = _join(cases.get(case, ()), digests)
    after = LearntFrom(_join(before.datasets, (data.manifest.digest,)), cases)
    if after != before:
        write_json(folder / FILE, dump_record(after))


def find_learnt(folders: Iterable[Path], data: SiteData, parts: Mapping[str, Examples], study: Study) -> list[str]:
    """Return the cases with an image that a run learnt from.

    Of the part ``test`` only those under another dataset.json: one keeps its own parts apart (`silofl.data.leakage`);
    and none where its slices or examples are kept apart and not its patients.

    Args:
        folders: Sites' folders of the run; of one without a record nothing is known.
        parts: Name -> cases of these data.
    """
    if data.manifest is None:
        return []
    is_apart = agree_split_unit(study, data.manifest.split_unit) not in ("slices", "examples")
    learnt: set[str] = set()
    learnt_elsewhere: set[str] = set()
    for record in filter(None, [read_file(LearntFrom, folder / FILE) for folder in folders]):
        learnt.update(*record.cases.values())
        if is_apart and record.datasets != (data.manifest.digest,):
            learnt_elsewhere.update(*record.cases.values())
    cases = []
    for name, part in parts.items():
        digests_learnt = learnt_elsewhere if name == "test" else learnt
        cases += [case for case, digests in part.digests.items() if not digests_learnt.isdisjoint(digests)]
    return cases


def is_recorded(folders: Iterable[Path]) -> bool:
    """Return whether any of the sites' folders of a run says what it learnt from; without one no image can be known."""
    return any((folder / FILE).is_file() for folder in folders)


def check_not_learnt(folders: Iterable[Path], data: SiteData, study: Study) -> None:
    """Refuse test cases that a run learnt from; as `find_learnt`.

    Raises:
        DataError: There is one.
    """
    cases = find_learnt(folders, data, {"test": data.test}, study)
    if cases:
        raise DataError(
            f"test cases with images that the model learnt from: {len(cases)} (first: {cases[0]!r}); take them out of "
            "test in dataset.json"
        )


def _join(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*before, *now)))
