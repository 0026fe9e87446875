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
from silofl.inference.own_tests import read_label_scores
from silofl.inference.readme import describe_images, describe_labels, list_calling, list_inputs, render_page
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
            ``kept`` and ``stays_home``.
        versions: Library -> its version.
    """
    study, facts = contents.study, contents.facts
    known = dict.fromkeys(("rounds", "reported_round", "run")) | facts
    # Where no site sent BatchNorm, whatever the study says.
    is_home = facts.get("stays_home") == "batchnorm" and study.recipe.stays_home == "nothing"
    recipe = replace(study.recipe, stays_home="batchnorm") if is_home else study.recipe
    return render_page(
        TEMPLATE,
        contents,
        domain=contents.domain,
        facts=known,
        labels=describe_labels(study),
        said={key: getattr(study.card, key, None) for key in CardSettings.model_fields},
        paper=_paper_sentence(study.algorithm.name),
        questions=recipe.questions(facts.get("kept", []), study.training.frozen),
        rule=rule_sentence(contents),
        form=describe_images(study, contents.image_shape),
        data=_data_table(facts.get("data", {})),
        not_annotated=_list_unannotated_labels(study, facts),
        measured=_describe_values(contents),
        results=_results_tables(contents),
        chosen=format_markdown_table(
            ("site", "keeps", "against its own model, on test data"),
            [(site, WORDS[one["chosen"]], one["verdict"]) for site, one in (facts.get("joining") or {}).items()],
        ),
        kept=WORDS.get(facts.get("candidate", "")),
        doubted=_doubt_sentence(contents),
        forbidden=_use_sentence(study),
        left=facts.get("left", []),
        versions=_versions_table(contents, versions, fingerprint),
        inputs=list_inputs(contents.domain),
    )


def format_markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of Markdown, its columns aligned in the text too, None as ``not known``; empty without rows."""
    lines = [[*head], *([UNKNOWN if cell is None else str(cell) for cell in row] for row in rows)]
    if len(lines) == 1:
        return ""
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    texts = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in lines]
    return "\n".join([texts[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *texts[1:]])


def _paper_sentence(algorithm: str) -> str:
    paragraphs = (import_module(f"silofl.algorithms.{algorithm}").__doc__ or "").strip().split("\n\n")
    return " ".join(" ".join(paragraphs[:2]).split()) or UNKNOWN


def rule_sentence(contents: Contents) -> str:
    """Say which of a super model's models answers."""
    chooses = "weighs all models" if contents.is_ensemble else "chooses one model for each case"
    rule = RULES.get(contents.rule, f"The selector {chooses}.")
    if contents.bias:
        rule += f" The foreground's log-odds are shifted by {contents.bias:+g}{describe_bias(contents.bias)}."
    return " ".join([rule, *list_calling(contents)])


def _use_sentence(study: Study) -> str:
    """Say which answers the study's rule forbids to use."""
    rule = study.do_not_use
    if rule is None:
        return "The study has no rule (`do_not_use`) that forbids answers."
    measure = "Dice" if study.task == "segmentation" else "recall"
    cases = {
        "where the selector falls back to the global model": rule.on_fallback,
        "where the image is unlike the training images": rule.on_unlike_image,
        f"where the {measure} of a label is below {rule.label_below or 0:.2f} or not known": rule.label_below,
    }
    return f"By the study's rule an answer must not be used {', or '.join(case for case, one in cases.items() if one)}."


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
    rows = [[site] for site in counts]
    for row, one in zip(rows, counts.values(), strict=True):
        for part in PARTS:
            patients, cases, examples = (one[part][key] for key in ("patients", "cases", "examples"))
            row.append(f"{UNKNOWN if patients is None else patients} / {cases} / {examples}")
    head = ("site", *(f"{part} patients / cases / images" for part in PARTS))
    return format_markdown_table(head, rows)


def _list_unannotated_labels(study: Study, facts: Mapping[str, Any]) -> str:
    """Return the labels that each site's label maps do not show, by site; empty where nothing is known of it."""
    shown = {site: one.get("labels_annotated") for site, one in facts.get("data", {}).items()}
    if not shown or None in shown.values():
        return ""
    lacking = {
        site: ", ".join(quote_markdown(name) for number, name in sorted(study.labels.items()) if number not in numbers)
        for site, numbers in shown.items()
    }
    return "; ".join(f"{site}: {names}" for site, names in lacking.items() if names) or "none at any site"


def _describe_values(contents: Contents) -> str:
    """Say what the columns of values are."""
    study, metric = contents.study, contents.study.metric.replace("_", " ")
    if study.task == "segmentation":
        return f"{metric}, mean over each site's cases, between 0 and 1 (best)"
    absence = ", the value of its absence the specificity" if study.is_multilabel else ""
    kind, share = ("finding", "sensitivity") if study.is_multilabel else ("class", "recall")
    called = "; both at the site's decision threshold" if contents.calling.thresholds else ""
    called = called if study.is_multilabel else called.replace("both", "it is")
    return f"{metric} of each site, between 0 and 1 (best); the value of a {kind} is its {share}{absence}{called}"


def _results_tables(contents: Contents) -> dict[str, str]:
    study, facts = contents.study, contents.facts
    found = {"Test data": facts.get("test"), VALIDATION: facts.get("validation")}
    names = {str(number): name for number, name in sorted(study.labels.items())}
    # The model of a single site holds its own test, without a name of a site.
    found |= {"Test data of the site": {"this site": facts}} if "value" in facts else {}
    tables = {}
    for title, scores in ((title, scores) for title, scores in found.items() if scores):
        labels = sort_labels((key for score in scores.values() for key in score.get("labels") or ()), names)
        counts = {"num_cases": "cases", "num_patients": "patients", "num_excluded": "cases left out"}
        head = ("site", "value", *(quote_markdown(names.get(key, key)) for key in labels), *counts.values())
        rows = []
        for site, score in scores.items():
            values = [score["value"], *map(read_label_scores(contents, score).get, labels)]
            numbers = (None if value is None else f"{value:.3f}" for value in values)
            rows.append((site, *numbers, *map(score.get, counts)))
        tables[title] = format_markdown_table(head, rows)
    return tables


def _doubt_sentence(contents: Contents) -> str:
    ranges = [f"{one.measure} {one.low:g} to {one.high:g}" for one in contents.domain.intensities]
    known = [f"axes that run {' or '.join(contents.domain.axes)}"] if contents.domain.axes else []
    voxels = contents.domain.voxels
    known += [f"voxels of half to twice {voxels}"] if voxels else []
    known += [f"after the preparation {', '.join(ranges)}"] if ranges else []
    sentence = f"Answered with a warning if outside of: {'; '.join(known)}."
    none = "There is no warning of unusual axes, voxels and intensities: nothing is known to compare them with."
    usual = (
        "Also warned of: an answer that is unusual, as by its size, compared with the cases of "
        f"{', '.join(contents.usual)}."
        if contents.usual
        else "No numbers say which answers are usual: there is no warning of an organ of an impossible size."
    )
    return f"{sentence if known else none} {usual}"
