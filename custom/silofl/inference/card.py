"""The model card in a super model's folder, from what the run recorded with it.

Mitchell et al., Model Cards for Model Reporting, FAT* 2019, arXiv:1810.03993.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from silofl.base.errors import quote_markdown
from silofl.core.findings import sort_labels
from silofl.data.manifest import PARTS
from silofl.inference.contents import Contents
from silofl.inference.own_tests import name_measure, read_label_scores
from silofl.inference.readme import describe_images, describe_labels, list_inputs, list_operating_point, render_page
from silofl.study import Study
from silofl.study.sections import CardSettings
from silofl.training.joined import WORDS, describe_bias

FILE, TEMPLATE = "MODEL_CARD.md", "model_card.md.j2"
UNKNOWN = "not known"
VALIDATION = "Validation data, which chose the round"
RULES = {"only": "One model answers.", "mean": "The mean of all sites' models answers."}


def model_card(contents: Contents, versions: Mapping[str, str], fingerprint: str) -> str:
    """Return the text of the card.

    Args:
        contents: The super model's; its facts may hold the run's ``test``, ``data``, ``joining``, ``left``,
            ``kept`` and ``stays``.
        versions: Library -> its version.
    """
    study = contents.study
    facts = contents.facts
    recipe = study.recipe
    # Where no site sent BatchNorm it stayed at home, whatever the study says.
    if facts.get("stays", facts.get("stays_home")) == "batchnorm" and recipe.stays == "nothing":
        recipe = replace(recipe, stays="batchnorm")
    choices = []
    for site, choice in (facts.get("joining") or {}).items():
        choices.append((site, WORDS[choice["chosen"]], choice["verdict"]))
    return render_page(
        TEMPLATE,
        contents,
        data_profile=contents.data_profile,
        facts=dict.fromkeys(("rounds", "reported_round", "run")) | facts,
        labels=describe_labels(study),
        said={key: getattr(study.card, key, None) for key in CardSettings.model_fields},
        paper=_paper_sentence(study.algorithm.name),
        questions=recipe.questions(facts.get("kept", []), study.training.frozen),
        rule=rule_sentence(contents),
        form=describe_images(study, contents.image_shape),
        data=_data_table(facts.get("data", {})),
        not_annotated=_list_unannotated_labels(study, facts.get("data", {})),
        measured=_describe_values(contents),
        results=_results_tables(contents),
        chosen=format_markdown_table(("site", "keeps", "against its local model, on test data"), choices),
        kept=WORDS.get(facts.get("candidate", "")),
        warned=_warning_sentence(contents),
        forbidden=_use_sentence(study),
        left=facts.get("left", []),
        versions=_versions_table(contents, versions, fingerprint),
        inputs=list_inputs(contents.data_profile),
    )


def format_markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of Markdown, its columns aligned in the text too, None as ``not known``; empty without rows."""
    lines = [[*head]]
    for row in rows:
        lines.append([UNKNOWN if cell is None else str(cell) for cell in row])
    if len(lines) == 1:
        return ""
    # The card is read as plain text too, where only equal widths make columns.
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    texts = []
    for line in lines:
        cells = " | ".join(map(str.ljust, line, widths))
        texts.append(f"| {cells} |")
    return "\n".join(texts)


def _paper_sentence(algorithm: str) -> str:
    # The first two paragraphs of an algorithm's file say what it does, and name the paper; its round is indented.
    paragraphs = (import_module(f"silofl.algorithms.{algorithm}").__doc__ or "").split("\n\n")
    prose = [paragraph for paragraph in paragraphs if not paragraph.startswith(" ")]
    return " ".join(" ".join(prose[:2]).split()) or UNKNOWN


def rule_sentence(contents: Contents) -> str:
    """Say which of a super model's models answers."""
    # An ensemble has the rule of a selector, too: the study's recipe says which of both it is.
    chooses = "weighs all models" if contents.is_ensemble else "chooses one model for each case"
    rule = RULES.get(contents.rule, f"The selector {chooses}.")
    if contents.bias:
        rule += f" The foreground's log-odds are shifted by {contents.bias:+g}{describe_bias(contents.bias)}."
    return " ".join([rule, *list_operating_point(contents)])


def _use_sentence(study: Study) -> str:
    rule = study.do_not_use
    if rule is None:
        return "The study has no rule (`do_not_use`) that forbids answers."
    cases = []
    if rule.on_fallback:
        cases.append("where the selector falls back to the global model")
    if rule.on_unlike_image:
        cases.append("where the image is unlike the training images")
    if rule.label_below:
        cases.append(f"where the {name_measure(study)} of a label is below {rule.label_below:.2f} or not known")
    return f"By the study's rule an answer must not be used {', or '.join(cases)}."


def _versions_table(contents: Contents, versions: Mapping[str, str], fingerprint: str) -> str:
    rows = {
        **versions,
        "fingerprint of the super model": f"`{fingerprint}`",
        "digest of the study": f"`{contents.study.digest}`",
        "seed": contents.study.seed,
        "run": contents.facts.get("run"),
    }
    return format_markdown_table(("what", "value"), rows.items())


def _data_table(counts: Mapping[str, Any]) -> str:
    rows = []
    for site, parts in counts.items():
        row = [site]
        for part in PARTS:
            patients = parts[part]["patients"]
            row.append(
                f"{UNKNOWN if patients is None else patients} / {parts[part]['cases']} / {parts[part]['examples']}"
            )
        rows.append(row)
    return format_markdown_table(("site", *map("{} patients / cases / images".format, PARTS)), rows)


def _list_unannotated_labels(study: Study, counts: Mapping[str, Any]) -> str:
    """Return the labels that each site's label maps do not show, by site; empty where nothing is known of it."""
    texts = []
    for site, parts in counts.items():
        annotated = parts.get("labels_annotated")
        if annotated is None:
            return ""
        # Labels are any text: unquoted one might be a link or a tag.
        names = [quote_markdown(name) for number, name in sorted(study.labels.items()) if number not in annotated]
        if names:
            texts.append(f"{site}: {', '.join(names)}")
    return "; ".join(texts) or ("none at any site" if counts else "")


def _describe_values(contents: Contents) -> str:
    """Say what the columns of values are."""
    study = contents.study
    value = f"{study.metric.replace('_', ' ')} of each site, between 0 and 1 (best)"
    if study.task == "segmentation":
        return f"{study.metric.replace('_', ' ')}, mean over each site's cases, between 0 and 1 (best)"
    at_threshold = " at the site's decision threshold" if contents.operating_point.thresholds else ""
    if not study.is_multilabel:
        return f"{value}; the value of a class is its recall{at_threshold and '; it is' + at_threshold}"
    both = "; the value of a finding is its sensitivity, the value of its absence the specificity"
    return f"{value}{both}{at_threshold and '; both' + at_threshold}"


def _results_tables(contents: Contents) -> dict[str, str]:
    facts = contents.facts
    names = {str(number): name for number, name in sorted(contents.study.labels.items())}
    scores_by_title = {"Test data": facts.get("test"), VALIDATION: facts.get("validation")}
    if "value" in facts:
        # The model of a single site holds its own test, without a name of a site.
        scores_by_title["Test data of the site"] = {"this site": facts}
    counts = {"num_cases": "cases", "num_patients": "patients", "num_excluded": "cases left out"}
    tables = {}
    for title, scores in scores_by_title.items():
        if not scores:
            continue
        keys: list[str] = []
        for score in scores.values():
            keys += score.get("labels") or ()
        labels = sort_labels(keys, names)
        rows = []
        for site, score in scores.items():
            # A site may lack a label that others have: its cell says so.
            values = [score["value"], *map(read_label_scores(contents, score).get, labels)]
            numbers = [None if value is None else f"{value:.3f}" for value in values]
            rows.append((site, *numbers, *map(score.get, counts)))
        columns = [quote_markdown(names.get(key, key)) for key in labels]
        tables[title] = format_markdown_table(("site", "value", *columns, *counts.values()), rows)
    return tables


def _warning_sentence(contents: Contents) -> str:
    data_profile = contents.data_profile
    # What nobody measured is not compared, and the card must not promise it.
    known = []
    if data_profile.axes:
        known.append(f"axes that run {' or '.join(data_profile.axes)}")
    if data_profile.voxels:
        known.append(f"voxels of half to twice {data_profile.voxels}")
    if data_profile.intensities:
        ranges = [
            f"{intensity.measure} {intensity.low:g} to {intensity.high:g}" for intensity in data_profile.intensities
        ]
        known.append(f"after the preparation {', '.join(ranges)}")
    unlike = "There is no warning of unusual axes, voxels and intensities: nothing is known to compare them with."
    if known:
        unlike = f"Answered with a warning if outside of: {'; '.join(known)}."
    unusual = "No numbers say which answers are usual: there is no warning of an organ of an impossible size."
    if contents.reference_statistics:
        sites = ", ".join(contents.reference_statistics)
        unusual = f"Also warned of: an answer that is unusual, as by its size, compared with the cases of {sites}."
    return f"{unlike} {unusual}"
