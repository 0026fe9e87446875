"""Sentences about a run, the same in the terminal and on the pages: status, metric, caveats, and what joining gave."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

from silofl.core.findings import name_absence
from silofl.core.gain import LEAST_UNITS, WORSE
from silofl.core.guard_rule import LEAST_LEAD
from silofl.core.guess import Measures, describe_guess, describe_guesses, measure_classes, measure_findings
from silofl.core.operating_point import read_at_thresholds
from silofl.data.inventories import explain_withheld
from silofl.federation.ledger import Round, format_spans
from silofl.federation.more_rounds import find_obstacle
from silofl.federation.results import Results
from silofl.federation.unlike import SHORT
from silofl.inference.own_tests import LEARNT
from silofl.study import STORED, load_study
from silofl.study.sections import CLASS_MEANS, RANKED, SEGMENTATION_ONLY
from silofl.training.joined import CHOSEN, FEDERATED, LOCAL, SHIFTED, Joined
from silofl.training.site_score import SiteScore
from silofl_desk.report.result_tables import case_metric, label_columns, list_extra_metrics, name_models, read_table
from silofl_desk.report.run_records import CONFIG
from silofl_desk.report.verdict_words import federation_sentence, network_sentence
from silofl_hospital.report.tables import METRIC_NAMES, TextTable, format_number

BATCH_DEPENDENT = "a prediction depends on the other images of its batch"
SHARED_PATIENTS = "same person in training and test"
UNKNOWN_PATIENTS = "patients unknown"
# A Dice or an accuracy below this is no model at all.
NEAR_ZERO = 0.05
SHARED_BATCHNORM = (
    "BatchNorm is shared, and its averaged statistics fail where sites differ strongly. Part of the difference from "
    "methods that keep BatchNorm local comes from BatchNorm, not from the algorithm"
)
_TESTED = "Every site in the study tested the model."
_STATUS = {
    "COMPLETE": "No site missed more rounds than the study allows, and every site in the study tested the model.",
    "INCOMPLETE": "The run has less than the study asked for:",
    "FAILED": "The run ended without a result:",
}
_SPLITS = {
    "slices": "the data are split by slice",
    "recordings": "the data are split by recording: no recording is in both, but a person may be",
    "examples": "the data are split by single examples: examples of one recording may be in both",
}
JOINING_NOTE = (
    "Alone: the hospital's own model, taken after its best round. Federated: the model that the run tests. Kept: the "
    "one of the two that the hospital chose on its validation data. Validation: the mean over its patients there; the "
    "federated model is kept if it leads by more than 0.005{lead}. All other values are of the same test data, first "
    "averaged per patient (per case where patients are unknown). Difference: federated minus alone. "
    "The verdict and the 95 % interval come from two paired tests (2.5 % on each side), which must agree. Fewer than "
    f"{LEAST_UNITS} patients are too few to say: a model that is slightly better for 9 of 10 patients and fails on "
    "one, so that nothing is gained, would be called better at 55 % of the hospitals with 6 test patients, 32 % with "
    "10 and still 15 % with 20. Both hold for these patients and this start; compare --seeds measures several starts."
)
JOINING_ONE_MODEL = " The hospital's own model has the study's normalisation."
JOINING_TWO_MODELS = (
    " Each hospital trained two own models, with the study's normalisation and with BatchNorm, and took the one that "
    "validated better; its normalisation stands in brackets."
)
# What a class is chosen by: few cases have an accuracy that hardly differs.
LEAD_OF_CLASSES = " in the probability of the true answer"
JOINING_THRESHOLDS = (
    " Each model has the decision threshold that the site's validation data favour; at 0.5: the federated model with "
    "the usual one. Better also requires that the federated model is better than the hospital's own model with the "
    "usual threshold of 0.5."
)
JOINING_EMPTY = (
    " A case without any label in truth counts 1 if the model finds nothing in it, and 0 if it finds something. "
    "On validation data such a case does not count."
)
JOINING_BALANCED = (
    " A single case has no {}: the models' values are means over all cases, difference and interval are measured in "
    "accuracy."
)
# The one site of a run on data that were pooled in one place.
POOLED_SITE = "pooled"
# No area under a curve of all sites' cases: only a site knows its cases' scores.
POOLED_MEAN = "mean over all cases; of means over classes class by class, weighted by a site's cases of the class"
SURFACE = (
    "HD95 and surface Dice compare the surfaces of truth and prediction: the 95th percentile of their distances, "
    "where low is good; and the share of both surfaces that lies within 2 mm, where high is good. If a file does not "
    "state the size of its voxels, the site's distances are in pixels (px) of the prepared images, with slices one "
    "pixel apart. Both are undefined if a label is only in truth or only in prediction."
)
CALLINGS = (
    "Each site chose a temperature for its model's probabilities on its validation cases; it changes no answer. ECE "
    "(expected calibration error): how far the probability of the answer is from the share of right answers in the "
    "test; 0 is perfect. In brackets: what a perfectly calibrated model with the same probabilities would show by "
    "chance in as many cases."
)
THRESHOLDS = (
    "The threshold of the probability (before the temperature) was chosen on validation cases too; sensitivity and "
    "specificity are of the test. The other numbers of the run do not use it. The super model uses the median of the "
    "sites' thresholds: its sensitivity and specificity differ at a site whose own threshold is far from it."
)
AREAS = "All sites: mean weighted by the number of cases, as only a site knows its cases' scores."
UNLIKE_CLASSES = "the sites' tests show different classes: balanced accuracy and areas have no mean over sites"


def describe_model(results: Results) -> str:
    """Return what a run reports, with its validation where it has one."""
    mean = results.validation_mean
    return f"{results.model}" + ("" if mean is None else f" (validation {results.metric} {format_number(mean)})")


def status_sentence(results: Results) -> str:
    """Explain the status of a run with a result."""
    if results.is_evaluation and results.status == "COMPLETE" and not results.tests:
        return "Every site was asked; nothing was trained or tested."
    if results.is_evaluation and results.status == "COMPLETE":
        return _TESTED
    return _STATUS[results.status]


def withheld_sentences(results: Results) -> list[str]:
    """Say which scores sites withhold, and why."""
    found = []
    for what, scores in (("test", results.tests), ("validation", results.validation)):
        for site, withheld in ((site, one.withheld) for site, one in scores.items() if one.withheld):
            names = ", ".join(results.labels.get(name, name) for name in withheld.names)
            score = f"{what} score of {names}" if names else f"{what} score"
            found.append(f"site {site} withholds its {score}: {explain_withheld(withheld.least)}")
    return found


def early_sentence(results: Results) -> str:
    """Say why a run ended before its last round; nothing where it did not."""
    text = results.ended_early
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def privacy_sentence(results: Results) -> str:
    """Say what differential privacy has spent at each site; nothing where the study has none."""
    if results.privacy is None:
        return ""
    spent, by_site = results.privacy, {}
    for site, epsilon in sorted(results.privacy.epsilon.items()):
        by_site.setdefault(f"{epsilon:.3g}", []).append(site)
    listed = "; ".join(f"{epsilon} at {', '.join(sites)}" for epsilon, sites in by_site.items())
    return (
        f"Differential privacy of each {spent.unit} in training, for all models that have left: epsilon {listed}, at "
        f"delta {spent.delta:g} (DP-SGD with noise {spent.noise:g} and clip {spent.clip:g}). Validation and test "
        "scores are sent as they are, and other studies on the same people add to it."
    )


def unfinished_sentence(run: Path, can_resume_here: bool, finished: int, rounds: int | None) -> str:
    """Say that a run has no result yet, and how to continue it."""
    of = f" of {rounds}" if rounds else ""
    state = f"{finished}{of} rounds are finished and there is no result yet: the run is running or interrupted"
    if command := _command(run, can_resume_here):
        return f"{state}; go on with: {command}"
    return (
        f"{state}; to continue it, set continue_run in study.yaml to the run's id and submit the job again. The id is "
        f"the name of the run's folder at the server ({run.name}, if this is that folder)"
    )


def remedy_sentence(run: Path, status: str, can_resume_here: bool) -> str:
    """Say how to continue a run that failed, where a command can; nothing for all other runs."""
    command = _command(run, can_resume_here)
    if status != "FAILED" or command is None:
        return ""
    return f"Remove the cause, then continue: {command}"


def more_rounds_sentence(run: Path, results: Results, ledger: Sequence[Round]) -> str:
    """Return the command that trains on what a finished run has not trained to the end; empty where none does.

    Args:
        run: The run's folder.
        ledger: Its finished rounds.
    """
    job, command = run / CONFIG / "study.yaml", _command(run, (run / "run.json").is_file())
    rounds = [one.own_rounds for one in (results.joining or {}).values() if one.unfinished]
    rounds += [one.rounds for one in (results.own_models or {}).values() if not one.is_finished]
    if not rounds or command is None or not job.is_file():
        return ""
    study = load_study(job, STORED)
    # A hospital's local model may have learnt in more rounds than the study has.
    longer = study.model_copy(update={"rounds": 2 * max(study.rounds, *rounds)})
    if study.recipe.extra_rounds or find_obstacle(study, longer, len(ledger)):
        return ""
    return f"To go on with more rounds: {command} --rounds {longer.rounds}"


def _command(run: Path, can_resume_here: bool) -> str | None:
    """Return the command that goes on with a run; None of a folder without its job, as at a server."""
    if can_resume_here:
        return f"python -m silofl resume {quote(str(run))}"
    return f"python -m silofl continue {quote(str(run))} --kit KIT" if (run / "job").is_dir() else None


def regions_text(results: Results) -> str:
    """List the regions that are scored, each with the labels of its union; empty where single labels are scored."""
    unions = {
        name: " and ".join(results.labels.get(str(label), str(label)) for label in labels)
        for name, labels in (results.regions or {}).items()
    }
    return ", ".join(f"{name} ({union})" for name, union in unions.items())


def normalization_label(normalization: str | None) -> str:
    """Return the kind of the network's normalisation layers, with its catch."""
    if normalization == "batch_stateless":
        return f"{normalization} ({BATCH_DEPENDENT})"
    return normalization or "-"


def shares_patients(split_unit: str | None) -> bool:
    """Return whether one person may be in several parts of the data, or whether nobody knows."""
    return split_unit not in (None, "patient")


def split_sentence(split_unit: str | None) -> str:
    """Say by what the data are split, with its catch."""
    if not shares_patients(split_unit):
        return "by patient"
    if split_unit == "unknown":
        return f"by examples, {UNKNOWN_PATIENTS}: one person may be in training and test"
    apart = "; no recording is in both" if split_unit == "recordings" else ""
    return f"by {split_unit}, {SHARED_PATIENTS}{apart}"


def shares_batchnorm(results: Results) -> bool:
    """Return whether the BatchNorm of the tested models is one of several sites."""
    # A personal model has BatchNorm of its own, whatever the shared one beside it sends.
    return results.recipe.get("stays_home") in ("nothing", "head") and not results.recipe.get("keeps_personal")


def caveats(results: Results) -> list[str]:
    """Return the caveats that limit what the numbers mean."""
    found = []
    if list(results.sites) == [POOLED_SITE]:
        found.append(
            "the data of all sites were pooled in one place, which only a simulation can do: this is no federation, "
            "and the data did travel, whatever the recipe below says."
        )
    rising = [site for site, own in (results.own_models or {}).items() if not own.is_finished]
    if rising:
        where = ", ".join(rising)
        found.append(f"the site's own model is not known to be trained to its end at {where}: take more rounds.")
    unit = results.split_unit
    if unit == "unknown":
        found.append(
            f"{UNKNOWN_PATIENTS}: one person may be in training and test, and the values higher than for new patients."
        )
    elif shares_patients(unit):
        how = _SPLITS.get(str(unit), f"the data are split by {unit}")
        found.append(f"{SHARED_PATIENTS}: {how}; the values are higher than for new patients.")
    if results.normalization == "batch_stateless":
        found.append(f"{BATCH_DEPENDENT}: the network keeps no BatchNorm statistics.")
    if results.recipe.get("stays_home") == "batchnorm" and results.normalization not in ("batch", "batch_home"):
        found.append("the network has no BatchNorm to keep at home: all of it travels.")
    return [*found, *(results.recipe.get("cautions") or [])]


def changes_sentence(changes: Mapping[str, Any]) -> str:
    """List the changes to a study, as ``training.learning_rate: 0.01, seed: 1``."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in changes.items()}
    return ", ".join(f"{key}: {text}" for key, text in texts.items()) or "nothing"


def lead_sentence(results: Results) -> str:
    """Return what counts most: that models may only guess, or else what joining gave all and each.

    Nothing without the guard where some model is better than guessing.
    """
    joining = results.joining or {}
    guess = _describe_guess(results)
    if guess or not joining:
        remedy = _short_sentence(results) or "Try more rounds, or find a learning rate by silofl tune."
        return f"No model of this run is {guess}. {remedy}" if guess else ""
    verdicts = {site: one.verdict for site, one in joining.items()}
    both = ((one.tested(SHIFTED), one.tested(LOCAL)) for one in joining.values())
    tests = [(federated, own) for federated, own in both if federated is not None and own is not None]
    given = (network_sentence(joining), federation_sentence(verdicts, tests))
    return " ".join(filter(None, (*given, _short_sentence(results))))


def _short_sentence(results: Results) -> str:
    """Say which models more rounds may still raise, and what to do; nothing where none."""
    joining = results.joining or {}
    short = []
    if any("federated" in one.unfinished for one in joining.values()):
        short.append("the federated model")
    sites = [site for site, one in joining.items() if "own" in one.unfinished]
    if sites:
        short.append(f"the hospital's own model at {', '.join(sites)}")
    if not short:
        return ""
    return f"More rounds may raise {' and '.join(short)}: run the study with more rounds, now {results.rounds}."


def joining_details(results: Results) -> list[str]:
    """Say of each site what its own model gained by its decision threshold alone."""
    return [f"{site}: {one.threshold}." for site, one in (results.joining or {}).items() if one.threshold]


def describe_problems(results: Results) -> list[tuple[str, str]]:
    """Return what is bad in a finished run, whatever its status: (``bad`` or ``warning``, sentence).

    Bad is a model near 0 at a site that keeps it, and one that is worse there than the site's own. A warning is a model
    that a site keeps and that is below its own where the test proves nothing, an own model of fewer rounds, a federated
    model near 0 or below the site's own where the site keeps another one, a label that no site's test finds, and sites
    where no model is better than guessing. That none is anywhere is what `lead_sentence` begins with.
    """
    joining = results.joining or {}
    kept = {site: joining[site].tested(CHOSEN) if site in joining else one for site, one in results.values.items()}
    which = "the model" if results.is_evaluation else "the model that it keeps"
    found = [
        ("bad", f"{where}: {which} is near 0, {format_number(value)}")
        for where, value in kept.items()
        if value is not None and value < NEAR_ZERO
    ]
    found += [
        (
            "bad" if one.verdict == WORSE else "warning",
            f"{site}: the model that it keeps scores {format_number(one.tested(CHOSEN))}, its own model "
            f"{format_number(one.tested(LOCAL))} ({one.test_units}: {one.said})",
        )
        for site, one in joining.items()
        if one.verdict == WORSE or _keeps_lower(one)
    ]
    late = (
        "its own model began in round {} of {} only, and so learnt less than the federated one: what joining gave is "
        "not known there"
    )
    starts = {site: one.local_since for site, one in joining.items() if one.local_since > 1}
    found += [("warning", f"{site}: {late.format(start, results.rounds)}") for site, start in starts.items()]
    for site, one in joining.items():
        if (kept[site] or 0) >= NEAR_ZERO and one.verdict != WORSE:
            found += [("warning", f"{site}: {sentence}") for sentence in _doubt_federated(one)]
    guesses = describe_guesses(_measure_tests(results), str(results.metric))
    return [("warning", sentence) for sentence in guesses] + found + _list_unlearnt_labels(results)


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
    # Less than by that much no site would keep its own model.
    if _keeps_lower(one) or local - federated <= LEAST_LEAD:
        return []
    return [f"the federated model scores {format_number(federated)}, the hospital's own model {format_number(local)}"]


def _keeps_lower(one: Joined) -> bool:
    """Return whether what a site keeps has a lower test value than its own model, by the decimals that are shown."""
    value, own = one.tested(CHOSEN), one.tested(LOCAL)
    return value is not None and own is not None and round(value, 3) < round(own, 3)


def _list_unlearnt_labels(results: Results) -> list[tuple[str, str]]:
    """Return a warning for each of several labels that the model hardly finds at any site."""
    if results.metric not in SEGMENTATION_ONLY["metric"]:
        return [("warning", sentence) for sentence in _describe_missed_classes(results)]
    columns = {name: [v for v in values if v is not None] for name, values in label_columns(results).items()}
    return [
        ("warning", f"the model cannot find {name}: Dice {format_number(max(values))} at the best site")
        for name, values in columns.items()
        if values and max(values) < LEARNT
    ]


def _describe_missed_classes(results: Results) -> list[str]:
    """Return a sentence for each set of classes of which the model recognises no test case, with the sites."""
    absences = {name_absence(name): name for name in results.labels.values()} if results.has_findings else {}
    # A hospital that only tests can train nothing otherwise.
    advice = "" if results.is_evaluation else "; see training.class_weights and metric: balanced_accuracy"
    groups: dict[tuple[bool, tuple[str, ...]], dict[str, dict[str, int]]] = {}
    for site, one in results.tests.items() if results.has_classes else ():
        recalls, cases, also = _read_recalls(results, one), one.label_cases or {}, one.also or {}
        none = {name: cases[name] for name, recall in recalls.items() if recall == 0 and cases.get(name)}
        everywhere = {name: none.pop(absence) for absence, name in absences.items() if absence in none}
        for is_everywhere, found in ((True, everywhere), (False, none if "accuracy" in also else {})):
            if found:
                groups.setdefault((is_everywhere, tuple(found)), {})[site] = found
    sentences = []
    for (is_everywhere, names), counts in groups.items():
        listed = ", ".join(f"{name} ({sum(one[name] for one in counts.values())})" for name in names)
        missed = f"recognises no test case of {listed}: recall 0.000{advice}"
        said = f"finds {listed} in every test case without it" if is_everywhere else missed
        sentences.append(f"{', '.join(counts)}: the model {said}")
    return sentences


def is_guessing(results: Results) -> bool:
    """Return whether no model of a training is shown to be better than guessing, over the tests of all sites."""
    return bool(_describe_guess(results))


def _describe_guess(results: Results) -> str:
    return describe_guess(_measure_tests(results).values(), str(results.metric))


def _measure_tests(results: Results) -> dict[str, Measures]:
    """Return site -> what its test shows of its models beside guesses; nothing of a finished model's evaluation."""
    is_known = results.has_classes and not results.is_evaluation
    measured = {site: _measure_test(results, site, one) for site, one in results.tests.items() if is_known}
    return {site: found for site, found in measured.items() if found}


def _measure_test(results: Results, site: str, one: SiteScore) -> Measures:
    """Return what a site's test shows of its models; nothing where its own one has no measure beside a guess."""
    found, joined = measure_score(results, FEDERATED, one.also or {}, one), (results.joining or {}).get(site)
    own = joined and joined.tested(LOCAL)
    if own is None:
        return found
    beside = measure_score(results, LOCAL, {str(results.metric): own}, one)
    return found | beside if beside else {}


def measure_score(results: Results, model: str, values: Mapping[str, float], one: SiteScore) -> Measures:
    """Return metrics of a model in the cases of a site's score, beside guesses.

    Args:
        values: Name of a metric -> its value.
        one: A test, in which labels have their names, or a validation, in which they have their numbers.
    """
    cases = one.label_cases or {}
    if not results.has_findings:
        return measure_classes(model, values, cases.values())
    named = {name if name in cases else number: name_absence(name) for number, name in results.labels.items()}
    return measure_findings(model, values, [(cases.get(key, 0), cases.get(none, 0)) for key, none in named.items()])


def _read_recalls(results: Results, one: SiteScore) -> dict[str, float]:
    """Return the recall of each class at a site, or finding and its absence, at the thresholds that it chose."""
    recalls, read, names = one.labels or {}, one.calling, [*results.labels.values()]
    if read is None:
        return dict(recalls)
    others = {name: name_absence(name) if results.has_findings else names[name == names[0]] for name in read.thresholds}
    return read_at_thresholds(recalls, others, read.sensitivity, read.specificity)


def joining_table(results: Results) -> TextTable | None:
    """Return one row a site; None without any choice."""
    if not results.joining:
        return None
    models = {model: name for model, name in name_models(results.joining.values()).items() if model != CHOSEN}
    # What a phone shows first comes first.
    columns = ("site", "kept", "verdict", "validation", "test", *models.values(), "difference", "95 % interval")
    lead = describe_lead(results)
    rows = (_joining_row(site, one, models, lead) for site, one in results.joining.items())
    return TextTable(columns, tuple(rows), num_text=5)


def joining_note(results: Results) -> str:
    """Explain the columns of `joining_table`."""
    empty = JOINING_EMPTY if any(one.num_empty for one in results.tests.values()) else ""
    is_map = results.metric in SEGMENTATION_ONLY["metric"]
    has_two = any(one.own_normalization for one in (results.joining or {}).values())
    return (
        JOINING_NOTE.format(lead=describe_lead(results) or " in the mean score")
        + (JOINING_TWO_MODELS if has_two else JOINING_ONE_MODEL)
        + JOINING_THRESHOLDS * is_map
        + empty
        + (
            JOINING_BALANCED.format(METRIC_NAMES[str(results.metric)])
            if results.metric != case_metric(results.metric)
            else ""
        )
    )


def describe_lead(results: Results) -> str:
    """Say in what a model leads another on validation data, where that is not the metric."""
    return "" if results.metric in SEGMENTATION_ONLY["metric"] else LEAD_OF_CLASSES


def _joining_row(site: str, one: Joined, models: Iterable[str], lead: str) -> tuple[str, ...]:
    interval = "-" if one.low is None or one.high is None else f"{one.low:+z.3f} to {one.high:+z.3f}"
    difference = "-" if one.difference is None else f"{one.difference:+z.3f}"
    values = (format_number(one.shown(name)) for name in models)
    kept = f"{format_number(one.shown(CHOSEN))} {one.kept_briefly}"
    # What the choice rests on.
    federated, own = (format_number(one.validation.get(model)) for model in (SHIFTED, LOCAL))
    units = f"{one.num_units} {one.unit}{'s' * (one.num_units != 1)}"
    if one.own_normalization:
        own = f"{own} ({one.own_normalization})"
    validation = f"{federated}, own {own}; lead {one.lead:+z.3f}{lead} on {units}"
    return (site, kept, one.said, validation, one.test_units, *values, difference, interval)


def list_incidents(ledger: Sequence[Round]) -> list[str]:
    """Return a sentence for each note and each reason why a site failed, with its rounds."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for record in ledger:
        for incident in _incidents(record):
            rounds.setdefault(incident, []).append(record.round)
    return [
        f"{what} in {'round' if len(numbers) == 1 else 'rounds'} {format_spans(numbers)}: {why}"
        for (what, why), numbers in rounds.items()
    ]


def _incidents(record: Round) -> Iterator[tuple[str, str]]:
    """Yield each incident of a round with its reason."""
    yield from ((f"{site}: failed", reason) for site, reason in record.failed.items())
    for site, found in (record.unlike or {}).items():
        yield from ((f"{site}: unlike the others", SHORT.get(what, f"its {what}")) for what in found)
    yield from (("noted", note) for note in record.notes)


def label_sentence(results: Results) -> str:
    """Say what the values by label are."""
    if results.has_findings:
        return (
            "Sensitivity: share of the test cases with a finding in which it is found. Specificity: share of the "
            "cases without it in which it is not found. Both at a probability of 0.5. "
        ) + AREAS
    if results.has_areas:
        return "Recall is the share of a class's test cases that is right. " + AREAS
    if results.has_classes:
        return "Share of a class's test cases that is right, its recall, and their number; a site without one has none."
    return "Values over the test cases of each label alone; a site without a label has none."


def calling_sentence(results: Results) -> str:
    """Explain `calling_table`, and say where a temperature does not help; nothing without any."""
    callings = results.callings
    if not callings:
        return ""
    vain = [site for site, one in callings.items() if one.temperature != 1 and not one.helps]
    sentences = [CALLINGS]
    sentences += [f"It does not help in the test of {', '.join(vain)}."] if vain else []
    if any(one.thresholds for one in callings.values()):
        sentences.append(THRESHOLDS)
    return " ".join(sentences)


def empty_cases_sentence(results: Results) -> str:
    """State what is predicted in test cases that hold no label; nothing where each has one."""
    of_sites = [
        f"{site} {one.num_false_positive or 0} of {one.num_empty} "
        f"({format_number(one.value_with_truth)} over the others)"
        for site, one in results.tests.items()
        if one.num_empty
    ]
    if not of_sites:
        return ""
    counted = "; each counts as 0 in its site's value" if results.metric == "dice" else ""
    return f"false positives in cases without any label: {', '.join(of_sites)}{counted}"


def missing_labels_sentence(results: Results) -> str:
    """Say whose value is a mean over fewer labels than the others', or not over all classes; else nothing."""
    is_area, is_over_classes = results.metric in RANKED, results.metric in CLASS_MEANS
    if not is_over_classes and results.metric not in SEGMENTATION_ONLY["metric"]:
        is_refused = results.mean_of_sites([0.0], "balanced_accuracy") is None
        return UNLIKE_CLASSES if is_refused else ""
    known = {site: read_table(one, "areas" if is_area else "labels") for site, one in results.sites.items()}
    names = results.labels.values() if results.has_findings and is_area else dict.fromkeys(chain(*known.values()))
    missing = {
        site: [name for name in names if known[site].get(name) is None]
        for site, value in results.values.items()
        if value is not None
    }
    of_sites = [f"{site} without {' and '.join(names)}" for site, names in missing.items() if names]
    if not of_sites or (not is_over_classes and len(names) < 2):
        return ""
    kind = "findings" if results.has_findings else "classes"
    what, other = (f"some {kind} alone", "all") if is_over_classes else ("different labels", "not annotated there")
    is_withheld = any(one and one.withheld for one in results.sites.values())
    why = f"{'withheld, ' * is_withheld}in none of a site's test cases, or {'in ' * is_over_classes}{other}"
    is_refused = is_over_classes and results.mean is None
    end = "; they have no mean over sites, and are pooled class by class" if is_refused else ""
    return f"values are means over {what} and compare sites badly: {', '.join(of_sites)} ({why}){end}"


def surface_sentence(results: Results) -> str:
    """Say what the surface distances are, and of how many cases there are none; nothing where none were measured."""
    surface = {site: one.surface for site, one in results.tests.items() if one.surface}
    if not surface:
        return ""
    without = [f"{site} {one.num_undefined}" for site, one in surface.items() if one.num_undefined]
    counted = f" Cases without a distance, which do not count: {', '.join(without)}." if without else ""
    return f"{SURFACE}{counted}"


def describe_extra_metric(name: str) -> str:
    """Say what the column of a package's metric is."""
    package, _, part = name.rpartition("/")
    return f"{part} is a metric of the package {package}, mean over the cases in which it is defined; it chose nothing."


def extra_metrics_sentence(results: Results) -> str:
    """Say what the metrics of packages are, of how many cases, and where they failed; nothing without any."""
    sentences = []
    for name in list_extra_metrics([results]):
        scores = {
            site: one.extra_metrics[name] for site, one in results.tests.items() if name in (one.extra_metrics or ())
        }
        counted = [f"{site} {score.num_cases}" for site, score in scores.items() if not score.has_failed]
        failed = [site for site, score in scores.items() if score.has_failed]
        sentences.append(describe_extra_metric(name))
        sentences += [f"Cases: {', '.join(counted)}."] if counted else []
        sentences += [f"It failed at {', '.join(failed)}; the site's own log says how."] if failed else []
    return " ".join(sentences)


def list_result_notes(results: Results) -> dict[str, str]:
    """Return what the values of the sites need to be read right: what it is about -> its sentences."""
    notes = {
        "Labels": missing_labels_sentence(results),
        "Empty cases": empty_cases_sentence(results),
        "Surfaces": surface_sentence(results),
        "Metrics of packages": extra_metrics_sentence(results),
        "Privacy": privacy_sentence(results),
    }
    return {name: text if text.endswith(".") else f"{text}." for name, text in notes.items() if text}
