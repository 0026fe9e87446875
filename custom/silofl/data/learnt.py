"""Which images a run learnt from at a site, by their pixels, so that none passes as a test once it is named otherwise.

The file names cases and stays at the site; `silofl_hospital.site.forget_patient` takes a patient's out of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
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
    known = read_file(LearntFrom, folder / FILE) or LearntFrom((), {})
    now = {**data.training.digests, **data.validation.digests}
    cases = {case: _join(known.cases.get(case, ()), now.get(case, ())) for case in {**known.cases, **now}}
    found = LearntFrom(_join(known.datasets, (data.manifest.digest,)), cases)
    if found != known:
        write_json(folder / FILE, dump_record(found))


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
    known = [one for folder in folders if (one := read_file(LearntFrom, folder / FILE))]
    is_apart = agree_split_unit(study, data.manifest.split_unit) not in ("slices", "examples")
    others = [one for one in known if is_apart and one.datasets != (data.manifest.digest,)]
    found = []
    for name, part in parts.items():
        learnt = {digest for one in (others if name == "test" else known) for digest in chain(*one.cases.values())}
        found += [case for case, digests in part.digests.items() if not learnt.isdisjoint(digests)]
    return found


def is_recorded(folders: Iterable[Path]) -> bool:
    """Return whether any of the sites' folders of a run says what it learnt from; without one no image can be known."""
    return any((folder / FILE).is_file() for folder in folders)


def check_not_learnt(folders: Iterable[Path], data: SiteData, study: Study) -> None:
    """Refuse test cases that a run learnt from; as `find_learnt`.

    Raises:
        DataError: There is one.
    """
    found = find_learnt(folders, data, {"test": data.test}, study)
    if found:
        others = f" and {len(found) - 1} more" if found[1:] else ""
        raise DataError(
            f"test of dataset.json must hold no image that the model learnt from, not that of case {found[0]!r}{others}"
            "; take them out of test"
        )


def _join(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*before, *now)))
