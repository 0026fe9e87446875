"""Say of a training that its validation swings, that a model answers one class alone, or that a site is opposed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

from silofl.federation.ledger import Round
from silofl.training.site_score import SiteScore

# By how much the mean over the sites falls and rises again. Masks that train well fall by less than half of it.
SWING = 0.2
# Models that learn well often answer one class alone in their first rounds.
FIRST, SUCCESSIVE = 3, 3
SWINGS = (
    f"the validation fell by more than {SWING} and came back: lower training.learning_rate, or choose "
    "model.normalization: group if it is another; the best round is kept"
)
ONE_CLASS = (
    "{}: in {} rounds one after the other the model has answered every validation case with the same class; if later "
    "rounds do so too, lower training.learning_rate; if one class is rare, training.sampler: balanced helps"
)

OPPOSED = (
    "{}: in {} of {} rounds its update points away from the mean of the others': ask it for its labels and its images; "
    "a few cases do so too, and so does a hostile site"
)


def list_cautions(ledger: Sequence[Round]) -> list[str]:
    """Return what the validated rounds of a run have shown, each with the round that showed it first.

    What the rounds after it answer is left out: three or more without any fall, or the last three without such a model.
    """
    last = [record.validation.values() for record in ledger if record.validation][-SUCCESSIVE:]
    has_unlearnt = not any(map(_is_constant, chain(*last)))
    found = [
        f"round {number}: {caution}"
        for number, caution in find_cautions(ledger)
        if not (_has_settled(ledger, number) if caution == SWINGS else has_unlearnt)
    ]
    return found + _list_opposed(ledger)


def _list_opposed(ledger: Sequence[Round]) -> list[str]:
    """Return a sentence on each site that was opposed to the others in most of its rounds, if these are enough."""
    rounds = Counter(site for record in ledger for site in record.answered)
    unlike = [(site, what) for record in ledger for site, found in (record.unlike or {}).items() for what in found]
    opposed = Counter(site for site, what in unlike if what == "cosine")
    return [
        OPPOSED.format(site, number, rounds[site])
        for site, number in sorted(opposed.items())
        if rounds[site] >= SUCCESSIVE and number > rounds[site] / 2
    ]


def find_cautions(ledger: Sequence[Round]) -> Iterator[tuple[int, str]]:
    """Yield each caution of a run with the round that showed it first, whatever the rounds after it say."""
    for number, record in enumerate(ledger, start=1):
        # No round follows the last one, which is validated with the next or after the end.
        yield from ((record.round, caution) for caution in list_new_cautions([*ledger[:number], record]))


def _has_settled(ledger: Sequence[Round], number: int) -> bool:
    """Return whether the validation after a round never lay far below its highest value so far, in enough rounds."""
    known = [(record.round, value) for record in ledger if (value := record.validation_mean) is not None]
    highest = accumulate((value for _, value in known), max)
    falls = [high - value for (later, value), high in zip(known, highest, strict=True) if later > number]
    return len(falls) >= SUCCESSIVE and max(falls) <= SWING


def list_new_cautions(ledger: Sequence[Round]) -> list[str]:
    """Return what the last validated round shows for the first time.

    Args:
        ledger: The finished rounds, of which the last one is validated with the next.
    """
    validated = ledger[:-1]
    found = []
    if _has_swung(validated) and not _has_swung(validated[:-1]):
        found.append(SWINGS)
    constant = _list_constant_sites(validated)
    if constant and not any(_list_constant_sites(validated[:end]) for end in range(len(validated))):
        found.append(ONE_CLASS.format(", ".join(constant), SUCCESSIVE))
    return found


def _has_swung(ledger: Sequence[Round]) -> bool:
    high, fallen = 0.0, 1.0
    for value in (record.validation_mean for record in ledger):
        if value is None:
            continue
        if value - fallen > SWING:
            return True
        if high - value > SWING:
            fallen = min(fallen, value)
        high = max(high, value)
    return False


def _list_constant_sites(ledger: Sequence[Round]) -> list[str]:
    """Return the sites whose model has answered one class alone in all of the last rounds."""
    last = ledger[-SUCCESSIVE:]
    if len(last) < SUCCESSIVE or last[0].round < FIRST:
        return []
    return sorted(
        set.intersection(*({s for s, one in record.validation.items() if _is_constant(one)} for record in last))
    )


def _is_constant(score: SiteScore) -> bool:
    """Return whether of several classes with cases one has all its cases right, and no other one any."""
    recalls = [value for label, value in (score.labels or {}).items() if (score.label_cases or {}).get(label)]
    is_of_classes = score.also is not None and len(recalls) > 1
    return is_of_classes and max(recalls) == 1 and sum(recalls) == 1
