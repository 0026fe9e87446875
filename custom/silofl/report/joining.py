"""What joining gave each site: the model that it chose against the one that it trained alone, and who stands badly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from silofl.algorithms.gain import Gain, federation_sentence
from silofl.federation.results import Results
from silofl.report.tables import TextTable, mean_of_known, number
from silofl.training.joined import CHOSEN, FEDERATED, LOCAL, WORDS, Joined
from silofl.training.units import WITHIN_ONE_PERSON

# A Dice or an accuracy below this is no model at all.
NEAR_ZERO = 0.05
COLUMNS = (
    "site",
    "what joining gave",
    "it keeps",
    "units",
    "alone",
    "federated",
    "kept",
    "difference",
    "95 % interval",
)
NOTE = (
    "Alone: the model that the site trained by itself in the same rounds, on the same test data. Kept: what the site "
    "chose on its validation data. Difference: kept minus alone, mean over the units, with its paired bootstrap "
    "interval; units are patients where they are known."
)

OVERVIEW = (
    "Columns of sites: the algorithm's own model on the site's test data; local: the model that the site trained alone "
    "beside it. Kept: mean over sites of what each chose on its validation data. Unseen: the run's super model, or the "
    "mean of its sites' models, at a hospital that never trained. Verdicts: kept against local at each site."
)


def joining_sentence(results: Results) -> str:
    """Return one sentence on the federation, and which sites could not choose; nothing without any choice."""
    if not results.joining:
        return ""
    gains = {site: _gain(one) for site, one in results.joining.items()}
    others = [site for site in results.sites if site not in results.joining]
    without = f" No choice could be made at {', '.join(others)}: no validation data, or no answer." if others else ""
    return federation_sentence(gains) + without


def joining_table(results: Results) -> TextTable | None:
    """Return one row a site; None without any choice."""
    if not results.joining:
        return None
    return TextTable(COLUMNS, tuple(_row(site, one) for site, one in results.joining.items()), num_text=4)


def overview(runs: Mapping[str, Results], unseen: Mapping[str, float | None]) -> TextTable:
    """Return methods by sites, local training first, with the unseen hospital and the verdicts.

    Args:
        runs: Name of a run -> its result.
        unseen: Name of a run -> the value of its super model at a hospital that never trained.
    """
    sites = list(dict.fromkeys(site for results in runs.values() for site in results.sites))
    rows = []
    for network in dict.fromkeys(results.normalization for results in runs.values()):
        # The local model depends on the network and on no algorithm.
        joining = next((one.joining for one in runs.values() if one.normalization == network and one.joining), None)
        if joining:
            values = {site: one.test.get(LOCAL) for site, one in joining.items()}
            rows.append((f"local ({network})", *_values(values, sites), *("-",) * 3))
    for name, results in runs.items():
        kept = {site: one.test.get(CHOSEN) for site, one in (results.joining or {}).items()}
        verdicts = Counter(one.verdict for one in (results.joining or {}).values())
        told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()) or "-"
        last = (number(mean_of_known(kept.values())), number(unseen.get(name)), told)
        rows.append((name, *_values(results.sites, sites), *last))
    columns = ("model", "mean", *sites, "kept", "unseen", "verdicts")
    return TextTable(columns, tuple(rows))


def doubts(results: Results) -> list[tuple[str, str]]:
    """Return what is bad in a finished run, whatever its status: (``bad`` or ``warning``, sentence).

    Bad is a model near 0 at a site that keeps it, and a site that loses by joining; a warning is a federated model that
    is near 0 or below the site's own where the site keeps another one.
    """
    joining, values = results.joining or {}, results.sites
    kept = {site: joining[site].test.get(CHOSEN) if site in joining else value for site, value in values.items()}
    found = [
        ("bad", f"{where}: the model that it keeps is near 0, {number(value)}")
        for where, value in kept.items()
        if value is not None and value < NEAR_ZERO
    ]
    found += [
        ("bad", f"{site}: the model that it keeps is below its own, {number(one.test.get(LOCAL))} alone")
        for site, one in joining.items()
        if one.verdict == "loses"
    ]
    for site, one in joining.items():
        federated, local = one.test.get(FEDERATED), one.test.get(LOCAL)
        if federated is None or local is None or (kept[site] or 0) < NEAR_ZERO or one.verdict == "loses":
            continue
        if federated < NEAR_ZERO:
            found.append(("warning", f"{site}: the federated model is near 0 there, {number(federated)}"))
        elif federated < local:
            sentence = f"{site}: the federated model alone is below its own, {number(federated)} and {number(local)}"
            found.append(("warning", sentence))
    return found


def _values(values: Mapping[str, float | None], sites: Sequence[str]) -> list[str]:
    return [number(mean_of_known(values.values())), *(number(values.get(site)) for site in sites)]


def _gain(one: Joined) -> Gain:
    return Gain(one.verdict, one.difference, one.low, one.high, one.num_test_units)


def _row(site: str, one: Joined) -> tuple[str, ...]:
    units = f"{one.num_test_units} {one.unit}{'' if one.num_test_units == 1 else 's'}"
    units += f" {WITHIN_ONE_PERSON}" if one.is_one_person else ""
    interval = "-" if one.low is None or one.high is None else f"{one.low:+.3f} to {one.high:+.3f}"
    difference = "-" if one.difference is None else f"{one.difference:+.3f}"
    values = (number(one.test.get(name)) for name in (LOCAL, FEDERATED, CHOSEN))
    return (site, one.verdict, WORDS[one.chosen], units, *values, difference, interval)
