"""The facts that a run may state, the same in the terminal and on the pages, and what joining gave each site."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

from silofl.core.baseline_rule import LEAST_LEAD
from silofl.core.findings import name_absence
from silofl.core.gain import LEAST_UNITS, WORSE
from silofl.core.guess import Measures, describe_guess, describe_guesses, measure_classes, measure_findings
from silofl.data.inventories import explain_withheld
from silofl.federation.ledger import Round, format_spans
from silofl.federation.more_rounds import find_obstacle
from silofl.federation.outlying_updates import SHORT
from silofl.federation.results import Results
from silofl.inference.own_tests import LEARNT
from silofl.study import STORED, load_study
from silofl.study.sections import CLASS_MEANS, RANKED, SEGMENTATION_ONLY
from silofl.training.joined import CHOSEN, FEDERATED, LOCAL, SHIFTED, Joined
from silofl.training.site_score import SiteScore
from silofl_desk.report.facts import Fact, Words, list_facts, list_sentences
from silofl_desk.report.result_tables import label_columns, list_extra_metrics, name_models, read_table
from silofl_desk.report.run_records import CONFIG
from silofl_desk.report.verdict_words import federation_sentence, network_sentence
from silofl_hospital.report.tables import TextTable, format_number

BATCH_DEPENDENT = "a prediction depends on the other images of its batch"
SHARED_PATIENTS = "same person in training and test"
UNKNOWN_PATIENTS = "patients unknown"
# A Dice or an accuracy below this is no model at all.
NEAR_ZERO = 0.05
SHARED_BATCHNORM = (
    "BatchNorm is shared, and its averaged statistics fail where sites differ strongly. Part of the difference from "
    "methods that keep BatchNorm local comes from BatchNorm, not from the algorithm"
)
STATUS = {
    "COMPLETE": "No site missed more rounds than the study allows, and every site tested the model.",
    "INCOMPLETE": "The run has less than the study asked for:",
    "FAILED": "The run ended without a result:",
}
JOINING_NOTE = (
    "Local: the model that the hospital trained alone, taken after its best round. Federated: the model that the run "
    "tests. Kept: the one of the two that the hospital chose on its validation data, the federated one if it leads by "
    "more than 0.005. All other values are of the same test data, first averaged per patient (per case where patients "
    "are unknown). Difference: federated minus local. The verdict and the 95 % interval come from two paired tests "
    f"(2.5 % on each side), which must agree; fewer than {LEAST_UNITS} patients are too few to say. Both "
    "hold for these patients and this start; compare --seeds measures several starts."
)
JOINING_MASKS = (
    " Each model has the decision threshold that the site's validation data favour; at 0.5: the federated model with "
    "the usual one. Cases without any label in truth are left out; false alarms in them are counted by themselves."
)
JOINING_CLASSES = (
    " The lead is one in the probability of the true answer. A single case has an accuracy alone: difference and "
    "interval are measured in it."
)
# The one site of a run on data that were pooled in one place.
POOLED_SITE = "pooled"
# No area under a curve of all sites' cases: only a site knows its cases' scores.
POOLED_MEAN = "mean over all cases; of means over classes class by class, weighted by a site's cases of the class"
SURFACE = (
    "HD95 and surface Dice compare the surfaces of truth and prediction: the 95th percentile of their distances, "
    "where low is good; and the share of both surfaces that lies within 2 mm, where high is good. If a file does not "
    "state the size of its voxels, the site's distances are in pixels (px) of the prepared images. Both are undefined "
    "if a label is only in truth or only in prediction.{undefined}"
)
OPERATING_POINTS = (
    "Each site chose temperature and threshold for its model's probabilities on its validation cases; the other "
    "numbers of the run do not use them. ECE (expected calibration error): how far the probability of the answer is "
    "from the share of right answers in the test; 0 is perfect. In brackets: what a perfectly calibrated model would "
    "show by chance in as many cases. Where a site's own model answers, a super model takes the site's threshold, and "
    "else the median of all."
)
AREAS = "All sites: mean weighted by the number of cases, as only a site knows its cases' scores."
DIFFERENT_CLASSES = "the sites' tests show different classes: balanced accuracy and areas have no mean over sites"
KEEPS_LOWER = "{site}: the model that it keeps scores {kept}, its local model {own} ({units}: {said})"


@dataclass(frozen=True)
class SiteTest:
    """What the test of one site shows of its models.

    Attributes:
        site: Name of the site.
        value: Of the model that it keeps; None without a test.
        joined: Its choice; None without one.
    """

    site: str
    value: float | None
    joined: Joined | None

    @property
    def words(self) -> dict[str, str]:
        """The words of a sentence on the site."""
        words = {"site": self.site, "kept": format_number(self.value)}
        if joined := self.joined:
            words["own"] = format_number(joined.tested(LOCAL))
            words["federated"] = format_number(joined.tested(SHIFTED))
            words["units"] = joined.test_units
            words["said"] = joined.said
        return words

    @property
    def keeps_lower(self) -> bool:
        """Whether the kept model's value is below the local one's, by the decimals that are shown."""
        local = self.joined.tested(LOCAL) if self.joined else None
        return local is not None and self.value is not None and round(self.value, 3) < round(local, 3)

    @property
    def federated_lead(self) -> float | None:
        """The federated model's value minus the local one's; None where one of them is not known."""
        if self.joined is None:
            return None
        federated = self.joined.tested(SHIFTED)
        local = self.joined.tested(LOCAL)
        return None if federated is None or local is None else federated - local


# Only the first of these that holds of a site is stated.
SITE_FACTS: tuple[Fact[SiteTest], ...] = (
    Fact(
        "bad",
        "hospital",
        lambda test: test.value is not None and test.value < NEAR_ZERO,
        "{site}: its model is near 0, {kept}",
    ),
    Fact("bad", "hospital", lambda test: test.joined is not None and test.joined.verdict == WORSE, KEEPS_LOWER),
    Fact("warning", "hospital", lambda test: test.keeps_lower, KEEPS_LOWER),
    Fact(
        "warning",
        "lead",
        # No site would keep its local model for a smaller lead.
        lambda test: (test.federated_lead or 0) < -LEAST_LEAD,
        "{site}: the federated model scores {federated}, the hospital's local model {own}",
    ),
)


def _find_missed_labels(results: Results) -> Iterator[Words]:
    """Yield each of several labels that the model hardly finds at any site."""
    if results.metric in SEGMENTATION_ONLY["metric"]:
        for name, values in label_columns(results).items():
            best = max((value for value in values if value is not None), default=None)
            if best is not None and best < LEARNT:
                yield {"label": name, "best": format_number(best)}


def _find_missed_classes(results: Results) -> Iterator[Words]:
    """Yield each class, or finding, of which a site's model recognises no test case, at its threshold if it has one."""
    if not results.has_classes:
        return
    # One sentence names all sites of a class.
    missed: dict[str, dict[str, int]] = {}
    for site, test in results.tests.items():
        recalls = dict(read_table(test, "labels"))
        if test.operating_point:
            # At its own threshold a site may recognise what it misses at 0.5.
            recalls |= test.operating_point.sensitivity
        for name, count in read_table(test, "label_cases").items():
            if count and recalls.get(name) == 0:
                missed.setdefault(name, {})[site] = int(count)
    for name, sites in missed.items():
        yield {"sites": ", ".join(sites), "label": name, "count": sum(sites.values())}


def _find_unfinished(results: Results) -> list[Words]:
    sites = [site for site, model in (results.local_models or {}).items() if not model.is_finished]
    return [{"sites": ", ".join(sites)}] if sites else []


def _find_withheld(results: Results) -> Iterator[Words]:
    """Yield the scores that sites withhold, and why."""
    for part, scores in (("test", results.tests), ("validation", results.validation)):
        for site, score in scores.items():
            if score.withheld:
                withheld = f"{part} score"
                if score.withheld.names:
                    withheld += f" of {', '.join(results.labels.get(name, name) for name in score.withheld.names)}"
                yield {"site": site, "score": withheld, "why": explain_withheld(score.withheld.least)}


def _find_missing_labels(results: Results) -> list[Words]:
    """Return the sites whose value is a mean over fewer labels than the others'."""
    is_area = results.metric in RANKED
    if results.metric not in (*CLASS_MEANS, *SEGMENTATION_ONLY["metric"]):
        return []
    tables = {site: read_table(test, "areas" if is_area else "labels") for site, test in results.sites.items()}
    names = dict.fromkeys(chain(*tables.values()))
    if results.has_findings and is_area:
        # A finding that no site has in its test is missing everywhere.
        names = dict.fromkeys(results.labels.values())
    lacking = []
    for site, table in tables.items():
        missing = [name for name in names if table.get(name) is None]
        if missing and len(names) > 1 and results.values[site] is not None:
            lacking.append(f"{site} without {' and '.join(missing)}")
    return [{"sites": ", ".join(lacking)}] if lacking else []


def _has_different_classes(results: Results) -> bool:
    # There is no mean of such sites, whatever their values are.
    return results.mean_of_sites([0.0], "balanced_accuracy") is None


def describe_false_alarms(results: Results, site: str) -> str:
    """Say in how many test cases a site's model marks what none of them holds; empty where one holds a label."""
    test = results.tests.get(site)
    if test is None or not test.num_empty or test.value_with_truth is not None:
        return ""
    names = " or ".join(results.labels.values())
    return f"false alarms in {test.num_false_positive or 0} of {test.num_empty} cases without {names}"


def _find_empty_cases(results: Results) -> list[Words]:
    """Return what is predicted in test cases that hold no label."""
    sites = []
    for site, test in results.tests.items():
        if test.num_empty:
            others = f"{format_number(test.value_with_truth)} over others"
            sites.append(f"{site} {test.num_false_positive or 0} of {test.num_empty} ({others})")
    return [{"sites": ", ".join(sites)}] if sites else []


def _find_surfaces(results: Results) -> list[Words]:
    surfaces = {site: test.surface for site, test in results.tests.items() if test.surface}
    if not surfaces:
        return []
    without = [f"{site} {surface.num_undefined}" for site, surface in surfaces.items() if surface.num_undefined]
    undefined = f" Cases without a distance, which do not count: {', '.join(without)}." if without else ""
    return [{"undefined": undefined}]


def _find_extra_metrics(results: Results) -> Iterator[Words]:
    """Yield the metrics of packages, and where they failed."""
    for name in list_extra_metrics([results]):
        failed = []
        for site, test in results.tests.items():
            score = read_table(test, "extra_metrics").get(name)
            if score and score.has_failed:
                failed.append(site)
        package, _, part = name.rpartition("/")
        end = f" It failed at {', '.join(failed)}; the site's own log says how." if failed else ""
        yield {"part": part, "package": package, "failed": end}


def _find_privacy(results: Results) -> list[Words]:
    """Return what differential privacy has spent at each site."""
    spent = results.privacy
    if spent is None:
        return []
    listed = ", ".join(f"{epsilon:.3g} at {site}" for site, epsilon in sorted(spent.epsilon.items()))
    return [vars(spent) | {"epsilon": listed}]


RUN_FACTS: tuple[Fact[Results], ...] = (
    Fact(
        "limit",
        "reader",
        lambda run: [*run.sites] == [POOLED_SITE],
        "the data of all sites were pooled in one place, which only a simulation can do: this is no federation, and "
        "the data did travel, whatever the recipe below says.",
    ),
    Fact(
        "limit",
        "lead",
        _find_unfinished,
        "the site's local model is not known to be trained to its end at {sites}: take more rounds.",
    ),
    Fact(
        "limit",
        "reader",
        lambda run: run.split_unit == "unknown",
        f"{UNKNOWN_PATIENTS}: one person may be in training and test, and the values higher than for new patients.",
    ),
    Fact(
        "limit",
        "reader",
        lambda run: [] if run.split_unit in (None, "patient", "unknown") else [{"unit": run.split_unit}],
        f"{SHARED_PATIENTS}: the data are split by {{unit}}; the values are higher than for new patients.",
    ),
    Fact(
        "limit",
        "lead",
        lambda run: run.normalization == "batch_stateless",
        f"{BATCH_DEPENDENT}: the network keeps no BatchNorm statistics.",
    ),
    Fact(
        "limit",
        "lead",
        lambda run: run.recipe.get("stays") == "batchnorm" and run.normalization not in ("batch", "batch_home"),
        "the network has no BatchNorm to keep at home: all of it travels.",
    ),
    Fact("limit", "lead", lambda run: [{"said": caution} for caution in run.recipe.get("cautions") or ()], "{said}"),
    Fact(
        "warning",
        "hospital",
        lambda run: [{"said": said} for said in describe_guesses(_measure_tests(run), str(run.metric))],
        "{said}",
    ),
    Fact("warning", "lead", _find_missed_labels, "the model cannot find {label}: Dice {best} at the best site"),
    Fact(
        "warning",
        "lead",
        _find_missed_classes,
        "{sites}: the model recognises no test case of {label} ({count}): recall 0.000; see training.class_weights and "
        "metric: balanced_accuracy",
    ),
    Fact("note", "hospital", _find_withheld, "site {site} withholds its {score}: {why}.", "Withheld"),
    Fact(
        "note",
        "reader",
        _find_missing_labels,
        "Values are means over different labels and compare sites badly: {sites}. Compare label by label.",
        "Labels",
    ),
    Fact(
        "note", "reader", _has_different_classes, f"{DIFFERENT_CLASSES[:1].upper()}{DIFFERENT_CLASSES[1:]}.", "Classes"
    ),
    Fact(
        "note",
        "reader",
        _find_empty_cases,
        "False positives in cases without any label, each of which counts as 0 in a Dice: {sites}.",
        "Empty cases",
    ),
    Fact("note", "reader", _find_surfaces, SURFACE, "Surfaces"),
    Fact(
        "note",
        "hospital",
        _find_extra_metrics,
        "{part} is a metric of the package {package}, mean over the cases in which it is defined; it chose "
        "nothing.{failed}",
        "Metrics of packages",
    ),
    Fact(
        "note",
        "reader",
        _find_privacy,
        "Differential privacy of each {unit} in training, for all models that have left: epsilon {epsilon}, with delta "
        "{delta:g} (DP-SGD with noise {noise:g} and clip {clip:g}). Validation and test scores are sent as they are, "
        "and other studies on the same people add to it.",
        "Privacy",
    ),
)


def describe_problems(results: Results) -> list[tuple[str, str]]:
    """Return what is bad in a finished run, whatever its status: (``bad`` or ``warning``, sentence).

    Of each site the worst is told. That no model is better than guessing anywhere is what `lead_sentence` begins with.
    """
    problems: list[tuple[str, str]] = []
    for site, value in results.values.items():
        if describe_false_alarms(results, site):
            continue
        joined = (results.joining or {}).get(site)
        test = SiteTest(site, joined.tested(CHOSEN) if joined else value, joined)
        stated = list_facts(SITE_FACTS, test, "bad", "warning", **test.words)
        problems += [(fact.level, sentence) for fact, sentence in stated[:1]]
    # What holds of the whole run comes behind the sites, which are what a hospital looks for.
    stated_of_run = list_facts(RUN_FACTS, results, "bad", "warning")
    return problems + [(fact.level, sentence) for fact, sentence in stated_of_run]


def caveats(results: Results) -> list[str]:
    """Return what limits the meaning of all numbers."""
    return list_sentences(RUN_FACTS, results, "limit")


def list_result_notes(results: Results) -> dict[str, str]:
    """Return what the values of the sites need to be read right: what it is about -> its sentences."""
    # Several facts about one thing, as the scores that two sites withhold, are one note.
    notes: dict[str, str] = {}
    for fact, sentence in list_facts(RUN_FACTS, results, "note"):
        notes[fact.name] = f"{notes[fact.name]} {sentence}" if fact.name in notes else sentence
    return notes


def describe_model(results: Results) -> str:
    """Return what a run reports, with its validation where it has one."""
    mean = results.validation_mean
    if mean is None:
        return str(results.model)
    return f"{results.model} (validation {results.metric} {format_number(mean)})"


def status_sentence(results: Results) -> str:
    """Explain the status of a run with a result."""
    # The sentence on missed rounds would be wrong where there were none.
    if results.is_evaluation and results.status == "COMPLETE":
        return "Every site was asked; nothing was trained."
    return STATUS[results.status]


def early_sentence(results: Results) -> str:
    """Say why a run ended before its last round; nothing where it did not."""
    text = results.ended_early
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def unfinished_sentence(run: Path, can_resume_here: bool, finished: int, rounds: int | None) -> str:
    """Say that a run has no result yet, and how to continue it."""
    count = f"{finished} of {rounds}" if rounds else str(finished)
    state = f"{count} rounds are finished and there is no result yet: the run is running or interrupted"
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
    job = run / CONFIG / "study.yaml"
    command = _command(run, (run / "run.json").is_file())
    rounds = [joined.local_rounds for joined in (results.joining or {}).values() if joined.unfinished]
    rounds += [model.rounds for model in (results.local_models or {}).values() if not model.is_finished]
    # Without a model that is unfinished more rounds would change nothing.
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
    texts = []
    for name, labels in (results.regions or {}).items():
        union = " and ".join(results.labels.get(str(label), str(label)) for label in labels)
        texts.append(f"{name} ({union})")
    return ", ".join(texts)


def normalization_label(normalization: str | None) -> str:
    """Return the kind of the network's normalisation layers, with its catch."""
    if normalization == "batch_stateless":
        return f"{normalization} ({BATCH_DEPENDENT})"
    return normalization or "-"


def split_sentence(split_unit: str | None) -> str:
    """Say by what the data are split, with its catch."""
    if split_unit in (None, "patient"):
        return "by patient"
    return f"by examples, {UNKNOWN_PATIENTS}" if split_unit == "unknown" else f"by {split_unit}, {SHARED_PATIENTS}"


def shares_batchnorm(results: Results) -> bool:
    """Return whether the BatchNorm of the tested models is one of several sites."""
    # A personal model has BatchNorm of its own, whatever the shared one beside it sends.
    return results.recipe.get("stays") in ("nothing", "head") and not results.recipe.get("keeps_personal")


def changes_sentence(changes: Mapping[str, Any]) -> str:
    """List the changes to a study, as ``training.learning_rate: 0.01, seed: 1``."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in changes.items()}
    return ", ".join(f"{key}: {text}" for key, text in texts.items()) or "nothing"


def lead_sentence(results: Results) -> str:
    """Return what counts most: that models may only guess, or else what joining gave all and each.

    Nothing without the baseline comparison where some model is better than guessing.
    """
    joining = results.joining or {}
    # Where all models guess, no verdict between them means anything.
    if guess := _describe_guess(results):
        remedy = _short_sentence(results) or "Try more rounds, or find a learning rate by silofl tune."
        return f"No model of this run is {guess}. {remedy}"
    if not joining:
        return ""
    verdicts = {site: joined.verdict for site, joined in joining.items()}
    tests = []
    for joined in joining.values():
        federated = joined.tested(SHIFTED)
        local = joined.tested(LOCAL)
        if federated is not None and local is not None:
            tests.append((federated, local))
    sentences = (network_sentence(joining), federation_sentence(verdicts, tests), _short_sentence(results))
    return " ".join(filter(None, sentences))


def _short_sentence(results: Results) -> str:
    """Say at which sites more rounds may still raise a model, and what to do; nothing where none."""
    short = [site for site, joined in (results.joining or {}).items() if joined.unfinished]
    if not short:
        return ""
    return (
        f"More rounds may raise the models at {', '.join(short)}: run the study with more rounds, now {results.rounds}."
    )


def is_guessing(results: Results) -> bool:
    """Return whether no model of a training is shown to be better than guessing, over the tests of all sites."""
    return bool(_describe_guess(results))


def _describe_guess(results: Results) -> str:
    return describe_guess(_measure_tests(results).values(), str(results.metric))


def _measure_tests(results: Results) -> dict[str, Measures]:
    """Return site -> what its test shows of its models beside guesses; nothing of a finished model's evaluation."""
    measured: dict[str, Measures] = {}
    if results.has_classes and not results.is_evaluation:
        for site, test in results.tests.items():
            if measures := _measure_test(results, site, test):
                measured[site] = measures
    return measured


def _measure_test(results: Results, site: str, test: SiteScore) -> Measures:
    """Return what a site's test shows of its models; nothing where its local one has no measure beside a guess."""
    federated = measure_score(results, FEDERATED, test.also or {}, test)
    joined = (results.joining or {}).get(site)
    local = joined.tested(LOCAL) if joined else None
    if local is None:
        return federated
    # Of a local model only the study's metric is known.
    beside = measure_score(results, LOCAL, {str(results.metric): local}, test)
    return federated | beside if beside else {}


def measure_score(results: Results, model: str, values: Mapping[str, float], one: SiteScore) -> Measures:
    """Return metrics of a model in the cases of a site's score, beside guesses.

    Args:
        values: Name of a metric -> its value.
        one: A test, in which labels have their names, or a validation, in which they have their numbers.
    """
    cases = one.label_cases or {}
    if not results.has_findings:
        return measure_classes(model, values, cases.values())
    counts = []
    for number, name in results.labels.items():
        # A test names its labels, a validation numbers them.
        key = name if name in cases else number
        counts.append((cases.get(key, 0), cases.get(name_absence(name), 0)))
    return measure_findings(model, values, counts)


def joining_table(results: Results) -> TextTable | None:
    """Return one row a site; None without any choice."""
    if not results.joining:
        return None
    models = name_models(results.joining.values())
    del models[CHOSEN]
    # A phone shows the first columns only, so what counts most comes first.
    columns = ("site", "kept", "verdict", "validation", "test", *models.values(), "difference", "95 % interval")
    rows = []
    for site, joined in results.joining.items():
        alarms = describe_false_alarms(results, site)
        if alarms:
            # A mean of false alarms alone, all 0, is no Dice.
            joined = replace(joined, test={}, by_unit=None)
        rows.append(_joining_row(site, joined, models, alarms or joined.test_units))
    return TextTable(columns, tuple(rows), num_text=5)


def joining_note(results: Results) -> str:
    """Explain the columns of `joining_table`."""
    return JOINING_NOTE + (JOINING_MASKS if results.metric in SEGMENTATION_ONLY["metric"] else JOINING_CLASSES)


def _joining_row(site: str, joined: Joined, models: Iterable[str], tested: str) -> tuple[str, ...]:
    interval = "-"
    if joined.low is not None and joined.high is not None:
        interval = f"{joined.low:+z.3f} to {joined.high:+z.3f}"
    difference = "-" if joined.difference is None else f"{joined.difference:+z.3f}"
    values = [format_number(joined.shown(model)) for model in models]
    kept = f"{format_number(joined.shown(CHOSEN))} {joined.kept_briefly}"
    # The choice rests on the validation.
    local = format_number(joined.validation.get(LOCAL))
    if joined.local_normalization:
        local += f" ({joined.local_normalization})"
    units = f"{joined.num_units} {joined.unit if joined.num_units == 1 else f'{joined.unit}s'}"
    federated = format_number(joined.validation.get(SHIFTED))
    validation = f"{federated}, local {local}; lead {joined.lead:+z.3f} on {units}"
    return (site, kept, joined.said, validation, tested, *values, difference, interval)


def list_incidents(ledger: Sequence[Round]) -> list[str]:
    """Return a sentence for each note and each reason why a site's update is not in a model, with its rounds."""
    # The same incident in many rounds is one sentence.
    rounds: dict[tuple[str, str], list[int]] = {}
    for record in ledger:
        for incident in _incidents(record):
            rounds.setdefault(incident, []).append(record.round)
    sentences = []
    for (event, reason), numbers in rounds.items():
        word = "round" if len(numbers) == 1 else "rounds"
        sentences.append(f"{event} in {word} {format_spans(numbers)}: {reason}")
    return sentences


def _incidents(record: Round) -> Iterator[tuple[str, str]]:
    """Yield each incident of a round with its reason."""
    for site, reason in record.failed.items():
        yield f"{site}: failed", reason
    for site, measures in (record.outliers or {}).items():
        for measure in measures:
            yield f"{site}: unlike the others", SHORT.get(measure, f"its {measure}")
    for note in record.notes:
        yield "noted", note


def label_sentence(results: Results) -> str:
    """Say what the values by label are."""
    if results.has_findings:
        return (
            "Sensitivity: share of the test cases with a finding in which it is found. Specificity: share of the "
            f"cases without it in which it is not found. Both at a probability of 0.5. {AREAS}"
        )
    if results.has_classes:
        return f"Recall is the share of a class's test cases that is right. {AREAS}"
    return "Values over the test cases of each label alone; a site without a label has none."
