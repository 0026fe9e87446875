"""Distribute the examples of a public classification set over sites and parts, whatever its files are.

A recipe reads its files into `ClassificationSet`; `import_examples` deals these to sites, splits every site, and writes
the files. Splits are as honest as the set allows: by recording or by patient where sites are the set's own. Windows of
one recording that are dealt one by one come into several parts, and dataset.json says so.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from dealing import deal_equally, deal_shares, draw_shares, shard_sites, split_by_class
from dealing_options import DIRICHLET, OWN, SHARDS, Dealing
from numpy.typing import NDArray

from silofl.base.errors import ConfigError, DataError
from silofl.data.manifest import PARTS
from silofl.reading.access import link_or_copy
from silofl_hospital.importing.importers import write_plans
from silofl_hospital.importing.options import ImportOptions
from silofl_hospital.importing.site_files import JsonRecord, SitePlan, Writer, split_patients
from silofl_hospital.site.import_data import report_import

# With fewer a site that is cut into parts has too little to train on: BatchNorm cannot learn from one example.
MIN_EXAMPLES = 8
UNKNOWN = "the set names no patients: one person may stand in training and test; split_unit is unknown"


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
        """The partitions that the set allows: not to deal a patient's examples to sites unless they are windows."""
        own = () if self.sites is None else (OWN,)
        return own if self.patients is not None and self.recordings is None else (DIRICHLET, SHARDS, *own)

    def list_recordings(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the recordings of some examples, named so that no two patients share one."""
        return [f"{self.patients[row]}/{self.recordings[row]}" for row in rows]


def import_examples(examples: ClassificationSet, dealing: Dealing, options: argparse.Namespace) -> None:
    """Write the sites of a set to the target, and print their counts.

    Args:
        examples: The set.
        dealing: How it is dealt.
        options: The recipe's, with target and json.

    Raises:
        ConfigError: The set does not allow the partition.
        DataError: There are too few examples or recordings, or the target cannot be written.
    """
    report_import(write_plans(plan_examples(examples, dealing), options.target), options)


def plan_examples(examples: ClassificationSet, dealing: Dealing) -> dict[str, SitePlan]:
    """Deal examples to sites by ``dealing.partition`` and split every site.

    Raises:
        ConfigError: The set does not allow the partition.
        DataError: There are too few examples or recordings for the sites, or at a site for its parts.
    """
    if dealing.partition not in examples.partitions:
        known = ", ".join(examples.partitions)
        raise ConfigError(f"partition must be one of {known} for this set, not {dealing.partition!r}; choose another")
    rows_by_site = _rows_by_site(examples, dealing)
    left = len(examples.targets) - sum(map(len, rows_by_site.values()))
    if left:
        note = f"{left} examples are at no site, so that all sites have equally many"
        examples = replace(examples, notes=(*examples.notes, note))
    return {site: _plan_site(site, examples, rows, dealing) for site, rows in rows_by_site.items()}


def _rows_by_site(examples: ClassificationSet, dealing: Dealing) -> dict[str, NDArray[np.int64]]:
    if dealing.partition == OWN:
        own = np.asarray(examples.sites)
        return {site: np.flatnonzero(own == site) for site in sorted(set(examples.sites))}
    if dealing.partition == SHARDS:
        numbers = shard_sites(examples.targets, dealing.sites, dealing.shards, dealing.seed)
    else:
        numbers = _deal_by_shares(examples, dealing)
    return {f"site-{site + 1}": np.flatnonzero(numbers == site) for site in range(numbers.max() + 1)}


def _deal_by_shares(examples: ClassificationSet, dealing: Dealing) -> NDArray[np.int64]:
    """Deal by Dirichlet shares; where the set's parts are kept, by the same shares in each."""
    targets, seed, deal = examples.targets, dealing.seed, _choose_dealer(examples, dealing)
    if dealing.test is not None:
        return deal(targets, seed=seed)
    parts, sites = np.asarray(examples.parts), np.empty(len(targets), dtype=np.int64)
    # The same shares for each part, but another seed: equal seeds would deal parts of equal size alike.
    for number, part in enumerate(PARTS):
        sites[parts == part] = deal(targets[parts == part], seed=seed + number)
    return sites


def _choose_dealer(examples: ClassificationSet, dealing: Dealing) -> Callable[..., NDArray[np.int64]]:
    """Return the function of labels and a seed that deals by the drawn shares: of each site, or of each class."""
    num_classes, seed = len(examples.labels), dealing.seed
    if dealing.equal_sizes:
        shares = draw_shares(num_classes, dealing.sites, dealing.alpha, seed, is_by_site=True)
        return partial(deal_equally, shares=shares)
    shares = draw_shares(num_classes, dealing.sites, dealing.alpha, seed)
    if dealing.test is None:
        return partial(deal_shares, shares=shares)
    at_least = max(1, min(MIN_EXAMPLES, len(examples.targets) // dealing.sites))
    return partial(deal_shares, shares=shares, at_least=at_least)


def _plan_site(site: str, examples: ClassificationSet, rows: NDArray[np.int64], dealing: Dealing) -> SitePlan:
    if dealing.test is None:
        parts = [examples.parts[row] for row in rows]
    else:
        parts = _split_site(site, examples, rows, dealing)
    places, files = examples.content.at_site(rows)
    records: dict[str, list[JsonRecord]] = {part: [] for part in PARTS}
    for row, part, place in zip(rows.tolist(), parts, places, strict=True):
        record: JsonRecord = {"image": place["image"], "label": int(examples.targets[row])}
        if examples.patients is not None:
            record["patient"] = examples.patients[row]
        record |= {"case": examples.cases[row], **place}
        if examples.recordings is not None:
            record["recording"] = examples.recordings[row]
        records[part].append(record)
    notes = examples.notes if examples.patients is not None else (UNKNOWN, *examples.notes)
    return SitePlan("classification", examples.labels, records, files, _split_unit(examples, dealing), notes)


def _split_unit(examples: ClassificationSet, dealing: Dealing) -> str:
    if examples.patients is None:
        return "unknown"
    if examples.recordings is None:
        return "patient"
    return "recordings" if dealing.partition == OWN else "examples"


def _split_site(site: str, examples: ClassificationSet, rows: NDArray[np.int64], dealing: Dealing) -> list[str]:
    """Return the part of each example of a site."""
    unit = _split_unit(examples, dealing)
    test, validation, seed = dealing.test or 0.0, dealing.validation, dealing.seed
    if unit == "recordings":
        names = examples.list_recordings(rows)
        part_of = split_by_class(names, examples.targets[rows], test, validation, seed)
        if "test" not in part_of.values():
            raise DataError(
                f"site {site!r} must have enough recordings of some class for one in the test, not "
                f"{len(part_of)} of all classes at test {test:g}; raise test or join it with another site"
            )
        return [part_of[name] for name in names]
    shares = ImportOptions(seed=seed, test=test, validation=validation)
    if unit == "patient":
        names = [examples.patients[row] for row in rows]
        part_of = split_patients(site, names, shares)
    else:
        names = [examples.cases[row] for row in rows]
        part_of = split_patients(site, names, shares, "examples")
    return [part_of[name] for name in names]
