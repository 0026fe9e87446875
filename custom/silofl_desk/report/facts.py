"""Facts that a record may state: each is a row of one list, which the terminal, the page and `compare` print."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

# Bad and warning: what a reader must look at. Limit: what limits all numbers. Note: how to read some of them.
Level = Literal["bad", "warning", "limit", "note"]
# Who can act on it: the study's lead, a hospital, or whoever reads the numbers.
Owner = Literal["lead", "hospital", "reader"]
# The words that fill the places of a sentence.
Words = Mapping[str, object]
T = TypeVar("T")


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A fact that a record may state.

    Attributes:
        level: How much it matters.
        owner: Who can act on it.
        find: The condition: whether the fact holds of a record, or the words of the sentence each time that it does.
        sentence: What is stated, with places for these words.
        name: What a note is about.
    """

    level: Level
    owner: Owner
    find: Callable[[T], bool | Iterable[Words]]
    sentence: str
    name: str = ""

    def state(self, record: T, **words: object) -> Iterator[str]:
        """Yield the sentences of a record; none where the fact does not hold.

        Args:
            words: Those of the record, whichever fact holds.
        """
        times = self.find(record)
        if isinstance(times, bool):
            # A condition without words is stated once, or not at all.
            times = [{}] if times else []
        for more in times:
            yield self.sentence.format(**words, **more)


def list_facts(facts: Iterable[Fact[T]], record: T, *levels: Level, **words: object) -> list[tuple[Fact[T], str]]:
    """Return the facts of some levels that a record states, each with its sentence, in the order of the list."""
    stated = []
    for fact in facts:
        if fact.level in levels:
            stated += [(fact, sentence) for sentence in fact.state(record, **words)]
    return stated


def list_sentences(facts: Iterable[Fact[T]], record: T, *levels: Level) -> list[str]:
    """Return the sentences of the facts of some levels that a record states."""
    return [sentence for _, sentence in list_facts(facts, record, *levels)]
