"""What a site has told of its test patients: two sets of cases that differ by few patients give their scores.

The mean over twelve patients and that over eleven of them tell the twelfth's score, whether both stand in one answer or
in two. A site therefore remembers the sets of cases whose scores it has told, in all studies, as hashes.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silofl.base.errors import PinError
from silofl.base.files import hold_lock, make_folder, write_json
from silofl.base.schema import dump_record, read_file

# A hash has so many hexadecimal digits. A member of a set is a patient's hash, and then a case's.
DIGITS = 12
NOBODY = "-" * DIGITS
# The score of all cases of a set, whatever metric a study has.
ALL = ""
Members = frozenset[str]


@dataclass(frozen=True)
class Told:
    """One answer.

    Attributes:
        scores: The rows of scores.
        meta: What else the answer says.
        question: Digest of the model, and of all else that was asked.
        cases: The cases that were tested.
    """

    scores: tuple[tuple[float, ...], ...]
    meta: Mapping[str, Any]
    question: str = ""
    cases: tuple[str, ...] = ()


@dataclass
class Answered:
    """The answers of a site; the content of its file.

    Attributes:
        answers: All of them.
        sets: Name of a score -> the sets of cases of which it was told.
    """

    answers: list[Told] = field(default_factory=list)
    sets: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)

    def find_stored(self, question: str, cases: Members, least: int) -> Told | None:
        """Return the answer to the same question about the same cases, or about cases that differ by few patients."""
        for answer in self.answers:
            if answer.question == question and not has_enough(cases ^ {*answer.cases}, least):
                return answer
        return None

    def find_cases(self, having: Mapping[str, Members], least: int) -> Members:
        """Return the cases whose scores may be told now: all, or those of an earlier answer that are among them.

        Args:
            having: Name of a score -> the cases that it is of; `ALL` -> those that the model answered.
            least: Patients that a number must be of.

        Raises:
            PinError: An earlier answer was of other cases, by few patients; the sentence may leave the site.
        """
        if all(self.takes(name, cases, least) for name, cases in having.items()):
            return having[ALL]
        earlier = [frozenset(answer.cases) for answer in self.answers if having[ALL].issuperset(answer.cases)]
        if not earlier:
            raise PinError(
                f"the site's test patients differ by fewer than {least} from those of an earlier evaluation; add "
                "patients there, or use the earlier results"
            )
        # Scores of that set were told already; the largest one says most.
        return max(earlier, key=len)

    def takes(self, name: str, cases: Members, least: int) -> bool:
        """Return whether no set of which a score was told differs from some cases by few patients."""
        # A score of few patients is told in no case.
        if not has_enough(cases, least):
            return True
        for told in self.sets.get(name, ()):
            # The same set again tells nothing new; one that differs by few tells their score.
            rest = cases ^ {*told}
            if rest and not has_enough(rest, least):
                return False
        return True

    def add(self, name: str, cases: Members, least: int) -> None:
        """Remember a set of cases of which a score is told."""
        told = self.sets.setdefault(name, [])
        members = tuple(sorted(cases))
        if has_enough(cases, least) and members not in told:
            told.append(members)


def hash_case(case: str, patient: str | None) -> str:
    """Return what stands for a case in a set: hashes of its patient and of its name."""
    return (NOBODY if patient is None else _hash(patient)) + _hash(case)


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:DIGITS]


@contextmanager
def open_answered(path: Path | None) -> Iterator[Answered]:
    """Read what a site has told, hold the file and write it in the end; a `ConfigError` where it is damaged or held."""
    if path is None:
        yield Answered()
        return
    make_folder(path.parent)
    # Two evaluations at once would not see each other's sets.
    with hold_lock(path.with_suffix(".lock")):
        answered = read_file(Answered, path) or Answered()
        yield answered
        write_json(path, dump_record(answered))


def has_enough(cases: Members, least: int) -> bool:
    """Return whether some cases are of so many patients; of some nobody knows whose they are."""
    return len({member[:DIGITS] for member in cases} - {NOBODY}) >= least
