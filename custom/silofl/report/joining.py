"""What joining gave each site, in sentences and as a table, and what is bad in a finished run."""

from collections.abc import Iterable, Mapping

from silofl.core.findings import name_absence
from silofl.core.gain import federation_sentence
from silofl.federation.results import Results
from silofl.inference.own_tests import LEARNT
from silofl.report.result_tables import METRIC_NAMES, case_metric, label_columns, name_models
from silofl.report.tables import TextTable, format_number
from silofl.study.sections import SEGMENTATION_ONLY
from silofl.training.joined import CHOSEN, FEDERATED, LOCAL, SHIFTED, Joined

# A Dice or an accuracy below this is no model at all.
NEAR_ZERO = 0.05
JOINING_NOTE = (
    "Alone: the model that the site trained by itself in the same rounds, after its best round. Federated: the model "
    "that the run tests. Kept: what the site chose on its validation data. All on the same test data. Difference: kept "
    "minus alone, mean over the units, which are patients where they are known. Verdict and interval are those of one "
    "paired permutation test, at 2.5 % for gains and for loses; it takes at least six units."
)
JOINING_THRESHOLDS = (
    " Each of the three has the decision threshold that the site's validation data favour; at 0.5: the federated model "
    "with the usual one. A site gains only if it also does beside its own model at 0.5."
)
JOINING_EMPTY = (
    " A case without any label in truth counts 1 in the difference for a model that finds nothing in it, which the "
    "values leave out, and 0 for a false alarm."
)
JOINING_BALANCED = " Difference and interval are of accuracy: a single unit has no {}."


def joining_sentence(results: Results) -> str:
    """Return one sentence on the federation, and which sites could not choose and why; nothing without the guard."""
    joining = results.joining or {}
    without = _unchosen_sentence(results)
    if not joining:
        return without
    verdicts = {site: one.verdict for site, one in joining.items()}
    late = [f"{site}: {_late_sentence(one, results)}." for site, one in joining.items() if one.local_since > 1]
    first = (federation_sentence(verdicts), _threshold_sentence(joining), _unproved_sentence(joining))
    return " ".join(filter(None, (*first, *late, without)))


def _late_sentence(one: Joined, results: Results) -> str:
    return (
        f"its own model began in round {one.local_since} of {results.rounds} only, and so learnt less than the "
        "federated one: what joining gave is not known there"
    )


def _threshold_sentence(joining: Mapping[str, Joined]) -> str:
    """Say which sites' own model gains by a threshold alone, and what joining adds."""
    told = [f"{site}: {one.threshold}." for site, one in joining.items() if one.threshold]
    return " ".join(told)


def _unchosen_sentence(results: Results) -> str:
    """Say which sites made no choice, those with one reason at once; of an older result the reason is not known."""
    reasons = dict(results.unchosen or {})
    if results.joining:
        others = (site for site in results.sites if site not in results.joining and site not in reasons)
        reasons |= dict.fromkeys(others, "no validation data, or no answer")
    sites: dict[str, list[str]] = {}
    for site, reason in reasons.items():
        sites.setdefault(reason, []).append(site)
    listed = "; ".join(f"at {', '.join(names)}: {reason}" for reason, names in sites.items())
    return f"No choice could be made {listed}." if listed else ""


def _unproved_sentence(joining: Mapping[str, Joined]) -> str:
    """Name the sites whose own model has the higher test value, where that is no proof that they lose."""
    below = [
        f"{site} ({format_number(one.test[LOCAL])}, kept {format_number(one.test[CHOSEN])})"
        for site, one in joining.items()
        if one.verdict != "loses" and _is_below(one, CHOSEN)
    ]
    said = "On test data its own model is higher, though not provably, at"
    return f"{said} {', '.join(below)}." if below else ""


def describe_problems(results: Results) -> list[tuple[str, str]]:
    """Return what is bad in a finished run, whatever its status: (``bad`` or ``warning``, sentence).

    Bad is a model near 0 at a site that keeps it, and a site that loses by joining. A warning is a model that a site
    keeps and that is below its own where the test proves nothing, an own model of fewer rounds, a federated model near
    0 or below the site's own where the site keeps another one, and a label that no site's test finds.
    """
    joining = results.joining or {}
    kept = {site: joining[site].tested(CHOSEN) if site in joining else one for site, one in results.sites.items()}
    found = [
        ("bad", f"{where}: the model that it keeps is near 0, {format_number(value)}")
        for where, value in kept.items()
        if value is not None and value < NEAR_ZERO
    ]
    found += [
        ("bad" if one.verdict == "loses" else "warning", f"{site}: {_below_own_sentence(one)}")
        for site, one in joining.items()
        if one.verdict == "loses" or _is_below(one, CHOSEN)
    ]
    found += [
        ("warning", f"{site}: {_late_sentence(one, results)}") for site, one in joining.items() if one.local_since > 1
    ]
    for site, one in joining.items():
        if (kept[site] or 0) >= NEAR_ZERO and one.verdict != "loses":
            found += [("warning", f"{site}: {sentence}") for sentence in _doubt_federated(one)]
    return found + _list_unlearnt_labels(results)


def _below_own_sentence(one: Joined) -> str:
    values = f"{format_number(one.tested(CHOSEN))} and {format_number(one.tested(LOCAL))} alone"
    return f"the model that it keeps is below its own, {values} ({one.test_units}: {one.said})"


def _doubt_federated(one: Joined) -> list[str]:
    """Return what is wrong with the federated model at a site, unless it has been said of the one that it keeps."""
    federated, local = one.tested(SHIFTED), one.tested(LOCAL)
    if federated is None or local is None:
        return []
    if federated < NEAR_ZERO:
        return [f"the federated model is near 0 there, {format_number(federated)}"]
    if (one.tested(FEDERATED) or 0.0) < NEAR_ZERO:
        at_half, with_own = format_number(one.tested(FEDERATED)), f"with the site's own {format_number(federated)}"
        return [f"the federated model is near 0 there with the usual decision threshold, {at_half}; {with_own}"]
    if _is_below(one, CHOSEN) or not _is_below(one, SHIFTED):
        return []
    return [f"the federated model alone is below its own, {format_number(federated)} and {format_number(local)}"]


def _is_below(one: Joined, name: str) -> bool:
    """Return whether a model's test value is below the site's own model's, by the decimals that are shown."""
    value, own = one.tested(name), one.tested(LOCAL)
    return value is not None and own is not None and round(value, 3) < round(own, 3)


def _list_unlearnt_labels(results: Results) -> list[tuple[str, str]]:
    """Return a warning for each of several labels that the model hardly finds at any site."""
    if results.metric not in SEGMENTATION_ONLY["metric"]:
        return [("warning", sentence) for sentence in _describe_missed_classes(results)]
    columns = {name: [v for v in values if v is not None] for name, values in label_columns(results).items()}
    return [
        ("warning", f"{name} was not learnt: its Dice is {format_number(max(values))} at the best site")
        for name, values in columns.items()
        if values and max(values) < LEARNT
    ]


def _describe_missed_classes(results: Results) -> list[str]:
    """Return a sentence a site whose model recognises no test case of a class."""
    if results.classes is None:
        return []
    absences = {name_absence(name): name for name in results.labels.values()} if results.has_findings else {}
    # Examples of several findings are drawn by none.
    sampler = "" if results.has_findings else ", training.sampler"
    sentences = []
    for site, also in results.classes.also.items():
        recalls, cases = results.tested.by_label.get(site, {}), results.classes.label_cases.get(site, {})
        none = {name: cases[name] for name, recall in recalls.items() if recall == 0 and cases.get(name)}
        everywhere = [f"{name} ({none.pop(absence)})" for absence, name in absences.items() if absence in none]
        if everywhere:
            sentences.append(f"{site}: no test case is recognised to be without {', '.join(everywhere)}")
        missed = [f"{name} ({number})" for name, number in none.items()]
        if missed and "accuracy" in also:
            sentences.append(
                f"{site}: no test case is recognised of {', '.join(missed)}: recall 0.000 beside an accuracy of "
                f"{format_number(also['accuracy'])}; see training.class_weights{sampler} and metric: balanced_accuracy"
            )
    return sentences


def joining_table(results: Results) -> TextTable | None:
    """Return one row a site; None without any choice."""
    if not results.joining:
        return None
    models = name_models(results.joining.values())
    columns = ("site", "what joining gave", "it keeps", "units", *models.values(), "difference", "95 % interval")
    rows = (_joining_row(site, one, models) for site, one in results.joining.items())
    return TextTable(columns, tuple(rows), num_text=4)


def joining_note(results: Results) -> str:
    """Explain the columns of `joining_table`."""
    empty = JOINING_EMPTY if results.tested.empty_cases else ""
    is_map = results.metric in SEGMENTATION_ONLY["metric"]
    return (
        JOINING_NOTE
        + JOINING_THRESHOLDS * is_map
        + empty
        + (
            JOINING_BALANCED.format(METRIC_NAMES[str(results.metric)])
            if results.metric != case_metric(results.metric)
            else ""
        )
    )


def _joining_row(site: str, one: Joined, models: Iterable[str]) -> tuple[str, ...]:
    interval = "-" if one.low is None or one.high is None else f"{one.low:+.3f} to {one.high:+.3f}"
    difference = "-" if one.difference is None else f"{one.difference:+.3f}"
    values = (format_number(one.tested(name)) for name in models)
    return (site, one.said, one.kept_briefly, one.test_units, *values, difference, interval)
