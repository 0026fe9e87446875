"""Distribute the examples of a public classification set over sites and parts, whatever its files are.

A layout reads its files into `ClassificationSet`; `plan_examples` deals these to sites, splits every site, and plans
the files. Splits are as honest as the set allows: by recording where sites hold entire recordings, otherwise by
patient, who is in one part at all sites. Windows of one recording that are dealt one by one come into several parts,
and dataset.json says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, DataError
from silofl.data.manifest import PARTS
from silofl.importing.options import ImportOptions
from silofl.importing.site_files import UNKNOWN, JsonRecord, SitePlan, Writer, split_patients
from silofl.reading.access import link_or_copy
from silofl_desk.sets.dealing import deal_equally, deal_shares, draw_shares, group_sites, shard_sites, split_by_class

# With fewer a site that is cut into parts has too little to train on: BatchNorm cannot learn from one example.
MIN_EXAMPLES = 8
# Partitions that deal a patient's examples to several sites.
ONE_BY_ONE = ("dirichlet", "shards")


@dataclass(frozen=True)
class Stacked:
    """Examples that become one npz file a site: an array (N, ...) and its key, ``images`` or ``windows``."""

    key: str
    values: NDArray

    def at_site(self, rows: NDArray[np.int64]) -> tuple[list[JsonRecord], dict[str, Writer]]:
        """Return what the records of some examples say of their place, and the site's files."""
        name = f"{self.key}.npz"
        return [{"image": name, "index": place} for place in range(len(rows))], {name: partial(self._save, rows)}

    def _save(self, rows: NDArray[np.int64], target: Path) -> None:
        np.savez_compressed(target, **{self.key: self.values[rows]})


@dataclass(frozen=True)
class Linked:
    """Examples that are files, by their paths relative to the set's folder, which they keep at their site."""

    folder: Path
    names: Sequence[str]

    def at_site(self, rows: NDArray[np.int64]) -> tuple[list[JsonRecord], dict[str, Writer]]:
        """Return what the records of some examples say of their place, and the site's files."""
        paths = {self.names[row]: self.folder / self.names[row] for row in rows}
        files = {name: partial(link_or_copy, path, name=path.name) for name, path in paths.items()}
        return [{"image": self.names[row]} for row in rows], files


@dataclass(frozen=True)
class ClassificationSet:
    """A classification set of N examples; every sequence has one value for each.

    Attributes:
        labels: Name by number, from 0.
        targets: Classes, int64 (N,).
        cases: Names, all different.
        content: Where the pixels or samples are.
        patients: Patient of each; None where the set names none.
        recordings: The patient's recording that each was cut from, in sets of recordings.
        sites: Site of each, in sets that have sites.
        parts: Part of each, in sets that have parts.
        notes: Sentences that whoever imports should read.
    """

    labels: dict[int, str]
    targets: NDArray[np.int64]
    cases: Sequence[str]
    content: Stacked | Linked
    patients: Sequence[str] | None = None
    recordings: Sequence[str] | None = None
    sites: Sequence[str] | None = None
    parts: Sequence[str] | None = None
    notes: tuple[str, ...] = ()

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions that the set allows."""
        needed = {"own": self.sites, "patients": self.patients, "recordings": self.recordings}
        return ("dirichlet", "shards", *(name for name, values in needed.items() if values is not None))

    def patients_of(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the patients of some examples, in sets that name them."""
        return [self.patients[row] for row in rows]

    def list_recordings(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the recordings of some examples, named so that no two patients share one."""
        return [f"{self.patients[row]}/{self.recordings[row]}" for row in rows]


def plan_examples(examples: ClassificationSet, options: ImportOptions) -> dict[str, SitePlan]:
    """Deal examples to sites by ``options.partition`` and split every site.

    Args:
        options: With a value for all that the partition uses; without a test fraction the set's own parts stay.

    Raises:
        ConfigError: The set does not allow the partition.
        DataError: There are too few examples, patients or recordings for the sites, or at a site for its parts.
    """
    if options.partition not in examples.partitions:
        known = ", ".join(examples.partitions)
        raise ConfigError(f"partition must be one of {known} for this set, not {options.partition!r}; choose another")
    rows_by_site = _rows_by_site(examples, options)
    if left := len(examples.targets) - sum(map(len, rows_by_site.values())):
        note = f"{left} examples are at no site, so that all sites have equally many"
        examples = replace(examples, notes=(*examples.notes, note))
    return {site: _plan_site(site, examples, rows, options) for site, rows in rows_by_site.items()}


def _rows_by_site(examples: ClassificationSet, options: ImportOptions) -> dict[str, NDArray[np.int64]]:
    if options.partition == "own":
        own = np.asarray(examples.sites)
        return {site: np.flatnonzero(own == site) for site in sorted(set(examples.sites))}
    numbers = _deal_examples(examples, options)
    return {f"site-{site + 1}": np.flatnonzero(numbers == site) for site in range(numbers.max() + 1)}


def _deal_examples(examples: ClassificationSet, options: ImportOptions) -> NDArray[np.int64]:
    if options.partition == "dirichlet":
        return _deal_by_shares(examples, options)
    if options.partition == "shards":
        return shard_sites(examples.targets, options.num_sites, options.num_shards, options.seed)
    rows = np.arange(len(examples.targets))
    groups = (examples.patients_of if options.partition == "patients" else examples.list_recordings)(rows)
    num_sites = len(set(groups)) if options.num_sites is None else options.num_sites
    return group_sites(groups, num_sites, options.seed)


def _deal_by_shares(examples: ClassificationSet, options: ImportOptions) -> NDArray[np.int64]:
    """Deal by Dirichlet shares; where the set's parts are kept, by the same shares in each."""
    targets, seed, deal = examples.targets, options.seed, _choose_dealer(examples, options)
    if options.test is not None:
        return deal(targets, seed=seed)
    parts, sites = np.asarray(examples.parts), np.empty(len(targets), dtype=np.int64)
    # The same shares for each part, but another seed: equal seeds would deal parts of equal size alike.
    for number, part in enumerate(PARTS):
        sites[parts == part] = deal(targets[parts == part], seed=seed + number)
    return sites


def _choose_dealer(examples: ClassificationSet, options: ImportOptions) -> Callable[..., NDArray[np.int64]]:
    """Return the function of labels and a seed that deals by the drawn shares: of each site, or of each class."""
    num_sites, num_classes, alpha, seed = options.num_sites, len(examples.labels), options.alpha, options.seed
    if options.is_equal:
        return partial(deal_equally, shares=draw_shares(num_classes, num_sites, alpha, seed, is_by_site=True))
    shares = draw_shares(num_classes, num_sites, alpha, seed)
    if options.test is None:
        return partial(deal_shares, shares=shares)
    return partial(deal_shares, shares=shares, at_least=max(1, min(MIN_EXAMPLES, len(examples.targets) // num_sites)))


def _plan_site(site: str, examples: ClassificationSet, rows: NDArray[np.int64], options: ImportOptions) -> SitePlan:
    unit = _split_unit(examples, options)
    parts = (
        [examples.parts[row] for row in rows] if options.test is None else _split_site(site, examples, rows, options)
    )
    places, files = examples.content.at_site(rows)
    records: dict[str, list[JsonRecord]] = {part: [] for part in PARTS}
    for row, part, place in zip(rows.tolist(), parts, places, strict=True):
        patient = {} if examples.patients is None else {"patient": examples.patients[row]}
        described = {"label": int(examples.targets[row])} | patient | {"case": examples.cases[row]}
        recording = {} if examples.recordings is None else {"recording": examples.recordings[row]}
        records[part].append({"image": place["image"], **described, **place, **recording})
    notes = examples.notes if examples.patients is not None else (UNKNOWN, *examples.notes)
    return SitePlan("classification", examples.labels, records, files, unit, notes)


def _split_unit(examples: ClassificationSet, options: ImportOptions) -> str:
    if examples.patients is None:
        return "unknown"
    if examples.recordings is None:
        return "patient"
    return "examples" if options.partition in ONE_BY_ONE else "recordings"


def _split_site(site: str, examples: ClassificationSet, rows: NDArray[np.int64], options: ImportOptions) -> list[str]:
    unit = _split_unit(examples, options)
    if unit == "recordings":
        units = examples.list_recordings(rows)
        part_of = split_by_class(units, examples.targets[rows], options.test, options.validation, options.seed)
        if "test" not in part_of.values():
            raise DataError(
                f"site {site!r} must have enough recordings of some class for one in the test, not "
                f"{len(part_of)} of all classes at test {options.test:g}; raise test or join it with another site"
            )
    elif unit in ("examples", "unknown"):
        units = [examples.cases[row] for row in rows]
        part_of = split_patients(site, units, options, "examples")
    else:
        units = examples.patients_of(rows)
        # One split for all sites where they share patients: whom one site tests on, no other trains on.
        part_of = split_patients(site, examples.patients if options.partition in ONE_BY_ONE else units, options)
        if not {"training", "test"} <= {part_of[name] for name in units}:
            raise DataError(
                f"site {site!r} must have patients for training and for the test, among whom all sites' patients are "
                "split alike, not for one of both; make fewer sites, or deal whole patients"
            )
    return [part_of[name] for name in units]
