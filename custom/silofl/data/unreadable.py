"""The cases of a site that cannot be read, which are left out up to a share.

A case that was left out once stays out of every later reading of the same dataset.json, whatever has become of its
files, so that all rows of a comparison learn from the same cases and are tested on the same ones.
"""

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silofl.base.documents import read_json_document
from silofl.base.errors import MOST_FAULTS, DataError, Faults, UnreadableError
from silofl.base.files import make_folder, write_text
from silofl.data.manifest import Manifest

logger = logging.getLogger(__name__)


@dataclass
class UnreadableCases:
    """The cases of a dataset.json that are left out.

    Cases are kept as hashes: their names may be those of patients.

    Attributes:
        path: The file that keeps them.
        share: Of all cases, at most so many may be left out.
        num_cases: Cases in dataset.json.
        known: Hash of a case -> why it could not be read.
        errors: What was said of them in this reading.
    """

    path: Path
    share: float
    num_cases: int
    known: dict[str, str]
    errors: list[UnreadableError] = field(default_factory=list)

    def must_skip(self, case: str) -> bool:
        """Return whether a case was left out before."""
        return _hash(case) in self.known

    def add(self, case: str, error: UnreadableError) -> None:
        """Leave out a case, or refuse it where the site leaves out none.

        Raises:
            UnreadableError: The site leaves out none.
        """
        if not self.share:
            raise error
        logger.warning("left out: %s", error)
        self.errors.append(error)
        self.known[_hash(case)] = error.reason

    def finish(self) -> None:
        """Keep what was left out, after all cases were read.

        Raises:
            DataError: There are too many.
        """
        if not self.share:
            return
        self._check_count(len(self.known))
        make_folder(self.path.parent)
        write_text(self.path, json.dumps(self.known))

    def find_absent(self, manifest: Manifest, cases: set[str]) -> dict[str, str]:
        """Return why cases are left out, by case.

        Args:
            cases: Those that were prepared.

        Raises:
            DataError: There are more than may be left out now.
        """
        absent = {}
        for record in manifest.records:
            if record.case not in cases:
                # A case whose reason is not known any more was left out by another process.
                absent[record.case] = self.known.get(_hash(record.case), "damaged")
        self._check_count(len(absent))
        return absent

    def _check_count(self, count: int) -> None:
        # 0.05 x 20 is 1, which products of floats may miss.
        most = math.floor(self.share * self.num_cases + 1e-9)
        if count > most:
            faults = Faults(MOST_FAULTS + 1)
            faults.errors = [*self.errors[:MOST_FAULTS]]
            remedy = f": {faults.describe()}" if self.errors else "; mend them and write dataset.json anew, or raise it"
            raise DataError(
                f"{count} of {self.num_cases} cases cannot be read, and skip_unreadable {self.share:g} leaves out "
                f"{most}{remedy}"
            )


def read_unreadable(cache_dir: Path, manifest: Manifest, share: float) -> UnreadableCases:
    """Read which cases of a dataset.json were left out before.

    Args:
        cache_dir: The folder of decoded images, which all studies share.
        share: What the site lets be left out, of all cases.
    """
    # The key is of dataset.json alone: files that were mended or damaged since do not begin another list.
    key = hashlib.sha256(f"{manifest.folder.resolve()} {manifest.digest}".encode()).hexdigest()[:32]
    path = cache_dir / f"left-out-{key}.json"
    reasons: Any = read_json_document(path) if share and path.exists() else {}
    return UnreadableCases(path, share, num_cases=len(manifest.records), known=reasons)


def count_reasons(absent: Mapping[str, str]) -> dict[str, int]:
    """Return how many cases are left out, by reason."""
    return dict(sorted(Counter(absent.values()).items()))


def _hash(case: str) -> str:
    return hashlib.sha256(case.encode()).hexdigest()
