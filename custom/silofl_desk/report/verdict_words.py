"""Verdicts on joining in words: counted, in a table, and in one sentence on all hospitals."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from silofl.core.gain import BETTER, LEVEL, UNFINISHED, WORSE, Effect, Verdict, average_sites
from silofl.training.joined import Joined

# Verdict -> what one hospital does, and what several do.
_WORDS: dict[Verdict, tuple[str, str]] = {
    BETTER: (
        "keeps a model that is better for its test patients than its own",
        "keep a model that is better for their test patients than their own",
    ),
    "no clear difference": ("has no clear difference", "have no clear difference"),
    WORSE: (
        "keeps a model that is worse for its test patients than its own",
        "keep a model that is worse for their test patients than their own",
    ),
    "too few to say": ("has too few test patients to say", "have too few test patients to say"),
    "keeps its own model": ("keeps its local model", "keep their local model"),
    UNFINISHED: ("has a model that was not trained to the end", "have a model not trained to the end"),
}
ONE_START = "one start of the training cannot tell whether joining made the difference"
# The verdict in a table.
_BRIEF: dict[Verdict, str] = {
    BETTER: "better",
    WORSE: "worse",
    "keeps its own model": "local model kept",
    UNFINISHED: "unfinished",
}


def count_verdicts(verdicts: Iterable[Verdict]) -> list[str]:
    """Return how many sites have each verdict, as ``2 better`` and ``1 local model kept``."""
    counts = Counter(verdicts)
    return [f"{counts[verdict]} {shorten_verdict(verdict)}" for verdict in _WORDS if counts[verdict]]


def shorten_verdict(verdict: Verdict) -> str:
    """Return a verdict as a table has it."""
    return _BRIEF.get(verdict, verdict)


def network_sentence(joining: Mapping[str, Joined]) -> str:
    """Say what one start of the training gives all hospitals on average; nothing where fewer than two can tell.

    Args:
        joining: Name of a site -> its choice. Sites with fewer than two test units are named and left out.
    """
    effects = {}
    for site, joined in joining.items():
        if joined.difference is not None and joined.standard_error is not None:
            effects[site] = Effect(joined.difference, joined.standard_error, joined.num_test_units)
    mean = average_sites([*effects.values()])
    if mean is None:
        return ""
    units = {joining[site].unit for site in effects}
    unit = units.pop() if len(units) == 1 else "unit"
    details = f"{sum(effect.num_units for effect in effects.values())} test {unit}s"
    number = f"all {len(effects)}"
    if left_out := [site for site in joining if site not in effects]:
        number = f"{len(effects)} of {len(joining)}"
        details += f"; fewer than 2 at {_join_with_and(left_out)}"
    answer = "not clear"
    # LEVEL is that of one side.
    if mean.p_value <= 2 * LEVEL:
        answer = "a clear gain" if mean.difference > 0 else "a clear loss"
    return (
        f"Over {number} hospitals ({details}) the mean difference, federated minus local, is {mean.difference:+z.3f} "
        f"({mean.low:z.3f} to {mean.high:z.3f}) in this start of the training: {answer}."
    )


def federation_sentence(verdicts: Mapping[str, Verdict], tests: Sequence[tuple[float, float]] = ()) -> str:
    """Return one sentence on all hospitals: how many have each verdict, and what that says of joining.

    Args:
        verdicts: Name of a site -> its verdict.
        tests: The test values of the federated and of the local model at each site.
    """
    if not verdicts:
        return "No hospital has been tested."
    counts = Counter(verdicts.values())
    total = len(verdicts)
    if counts["keeps its own model"] == total:
        return f"Joining gave nothing: {_describe_nothing(total, tests)}."
    # A hospital that loses is named before all else.
    losing = sorted(site for site, verdict in verdicts.items() if verdict == WORSE)
    if losing:
        end = f"{_join_with_and(losing)} would do better with the local model"
    elif counts[UNFINISHED]:
        end = "what joining gives is not known before both models are trained to the end"
    elif counts[BETTER]:
        end = ONE_START
    else:
        end = "it is not known yet whether joining pays"
    if total == 1:
        return f"The only hospital {_WORDS[next(iter(verdicts.values()))][0]}: {end}."
    if len(counts) == 1:
        return f"All {total} hospitals {_WORDS[next(iter(counts))][1]}: {end}."
    clauses = []
    for verdict, (singular, plural) in _WORDS.items():
        if count := counts[verdict]:
            clauses.append(f"{count} {singular if count == 1 else plural}")
    return f"Of {total} hospitals, {_join_with_and(clauses)}: {end}."


def _describe_nothing(total: int, tests: Sequence[tuple[float, float]]) -> str:
    is_worse = bool(tests) and all(federated < local for federated, local in tests)
    hospitals = "the only hospital"
    if total > 1:
        hospitals = f"all {total} hospitals" if is_worse else f"any of the {total} hospitals"
    if not is_worse:
        return f"on validation data the federated model is no better at {hospitals}"
    federated, local = np.mean(tests, axis=0)
    return f"the federated model is worse at {hospitals} ({federated:.3f}, local {local:.3f})"


def _join_with_and(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
