"""Say of a training that its validation swings, that a model answers one class alone, or that a site is opposed."""

from collections import Counter
from collections.abc import Sequence

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
    validated = [record for record in ledger if record.validation]
    has_learnt = not any(map(_find_constant_sites, validated[-SUCCESSIVE:]))
    cautions = []
    for number, record in enumerate(ledger, start=1):
        # No round follows the last one, which is validated with the next or after the end.
        for caution in list_new_cautions([*ledger[:number], record]):
            has_passed = _has_settled(ledger, record.round) if caution == SWINGS else has_learnt
            if not has_passed:
                cautions.append(f"round {record.round}: {caution}")
    return cautions + _list_opposed(ledger)


def _list_opposed(ledger: Sequence[Round]) -> list[str]:
    rounds: Counter[str] = Counter()
    opposed: Counter[str] = Counter()
    for record in ledger:
        rounds.update(record.answered)
        for site, measures in (record.outliers or {}).items():
            opposed[site] += "cosine" in measures
    # One round of a few cases says nothing of a site.
    return [
        OPPOSED.format(site, number, rounds[site])
        for site, number in sorted(opposed.items())
        if rounds[site] >= SUCCESSIVE and number > rounds[site] / 2
    ]


def _has_settled(ledger: Sequence[Round], number: int) -> bool:
    """Return whether the validation after a round never lay far below its highest value so far, in enough rounds."""
    highest = 0.0
    falls = []
    for record in ledger:
        if record.validation_mean is None:
            continue
        highest = max(highest, record.validation_mean)
        if record.round > number:
            falls.append(highest - record.validation_mean)
    return len(falls) >= SUCCESSIVE and max(falls) <= SWING


def list_new_cautions(ledger: Sequence[Round]) -> list[str]:
    """Return what the last validated round shows for the first time.

    Args:
        ledger: The finished rounds, of which the last one is validated with the next.
    """
    validated = ledger[:-1]
    cautions = []
    if _has_swung(validated) and not _has_swung(validated[:-1]):
        cautions.append(SWINGS)
    constant = _list_constant_sites(validated)
    if constant and not any(_list_constant_sites(validated[:end]) for end in range(len(validated))):
        cautions.append(ONE_CLASS.format(", ".join(constant), SUCCESSIVE))
    return cautions


def _has_swung(ledger: Sequence[Round]) -> bool:
    highest = 0.0
    # The lowest value that lay far below the highest one before it; 1 while there is none, which no value exceeds.
    fallen = 1.0
    for record in ledger:
        value = record.validation_mean
        if value is None:
            continue
        if value - fallen > SWING:
            return True
        if highest - value > SWING:
            fallen = min(fallen, value)
        highest = max(highest, value)
    return False


def _list_constant_sites(ledger: Sequence[Round]) -> list[str]:
    """Return the sites whose model has answered one class alone in all of the last rounds."""
    recent = ledger[-SUCCESSIVE:]
    if len(recent) < SUCCESSIVE or recent[0].round < FIRST:
        return []
    return sorted(set.intersection(*map(_find_constant_sites, recent)))


def _find_constant_sites(record: Round) -> set[str]:
    return {site for site, score in record.validation.items() if _is_constant(score)}


def _is_constant(score: SiteScore) -> bool:
    """Return whether of several classes with cases one has all its cases right, and no other one any."""
    cases = score.label_cases or {}
    recalls = [recall for label, recall in (score.labels or {}).items() if cases.get(label)]
    is_of_classes = score.also is not None and len(recalls) > 1
    return is_of_classes and max(recalls) == 1 and sum(recalls) == 1
