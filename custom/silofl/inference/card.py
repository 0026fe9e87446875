"""The model card in a super model's folder, from what the run recorded with it.

Mitchell et al., Model Cards for Model Reporting, FAT* 2019, arXiv:1810.03993.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from silofl.base.errors import quote_markdown
from silofl.core.findings import sort_labels
from silofl.data.manifest import PARTS
from silofl.inference.contents import Contents
from silofl.inference.own_tests import list_unlike_thresholds, read_label_scores
from silofl.inference.readme import describe_images, describe_labels, list_calling, open_template
from silofl.study import Study
from silofl.study.sections import CardSettings
from silofl.training.joined import WORDS, describe_bias

FILE, TEMPLATE = "MODEL_CARD.md", "model_card.md.j2"
UNKNOWN = "not known"
VALIDATION = "Validation data, which chose the round"
MEASURES = ("HD95", "ECE", "thresholds")
RULES = {"only": "One model answers.", "mean": "The mean of all sites' models answers."}


def model_card(contents: Contents, versions: Mapping[str, str], fingerprint: str) -> str:
    """Return the text of the card.

    Args:
        contents: The super model's; its facts may hold the run's ``test``, ``data``, ``joining``, ``left``,
            ``kept`` and ``stays_home``.
        versions: Library -> its version.
    """
    study, facts, voxels = contents.study, contents.facts, contents.domain.voxels
    known = dict.fromkeys(("rounds", "reported_round", "run")) | facts
    # Where no site sent BatchNorm, whatever the study says.
    is_home = facts.get("stays_home") == "batchnorm" and study.recipe.stays_home == "nothing"
    recipe = replace(study.recipe, stays_home="batchnorm") if is_home else study.recipe
    text = open_template(TEMPLATE).render(
        contents=contents,
        study=study,
        domain=contents.domain,
        facts=known,
        labels=describe_labels(study),
        said={key: getattr(study.card, key, None) for key in CardSettings.model_fields},
        population=_population_table(facts.get("data", {})),
        elsewhere=_elsewhere_table(facts.get("elsewhere") or {}),
        paper=_paper_sentence(study.algorithm.name),
        questions=recipe.questions(facts.get("kept", []), study.training.frozen),
        rule=rule_sentence(contents),
        form=describe_images(study, contents.image_shape),
        data=_data_table(facts.get("data", {})),
        spacing="; ".join(filter(None, [voxels and f"in the files {voxels}", _spacing_sentence(study, facts)])),
        patch=_patch_sentence(study),
        lacking=_list_lacking_contrasts(facts),
        not_annotated=_list_unannotated_labels(study, facts),
        measured=_describe_values(contents),
        results=_results_tables(contents),
        deviation=_deviation_sentence(facts),
        chosen=format_markdown_table(
            ("site", "keeps", "against its own model, on test data"),
            [(site, WORDS[one["chosen"]], one["verdict"]) for site, one in (facts.get("joining") or {}).items()],
        ),
        kept=WORDS.get(facts.get("candidate", "")),
        refused=_refusal_sentence(contents),
        doubted=_doubt_sentence(contents),
        threshold=_threshold_sentence(contents),
        forbidden=_use_sentence(study),
        unlike=list_unlike_thresholds(contents),
        left=facts.get("left", []),
        versions=_versions_table(contents, versions, fingerprint),
    )
    return text.rstrip() + "\n"


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


def _population_table(data: Mapping[str, Any]) -> str:
    """Return each site's training patients by what is known of them; empty where nothing is."""
    rows = [
        (site, what, quote_markdown(group), "withheld" if count is None else count)
        for site, one in data.items()
        for what, groups in (one.get("population") or {}).items()
        for group, count in groups.items()
    ]
    return format_markdown_table(("site", "by", "group", "training patients"), rows)


def _elsewhere_table(tests: Mapping[str, Any]) -> str:
    """Return the scores of hospitals that tested the finished model, with intervals; empty where none did."""
    rows = [
        (site, one["how"], one["num_cases"], quote_markdown(group) or "all cases", name, *_format_estimate(score))
        for site, one in tests.items()
        for group, scores in one["scores"].items()
        for name, score in scores.items()
        if score["value"] is not None
    ]
    head = ("site", "how", "cases", "of", "score", "value", "95 % interval", "cases that count")
    return format_markdown_table(head, rows)


def _format_estimate(score: Mapping[str, Any]) -> tuple[object, ...]:
    interval = " to ".join(f"{end:.3f}" for end in score["interval"] or ()) or "-"
    return f"{score['value']:.3f}", interval, score["num_cases"]


def _planned_spacing(study: Study) -> list[float] | None:
    """Return the spacing in mm that volumes are brought to, 0 along an axis that keeps its own; None where none is."""
    steps = [step.options["pixdim"] for step in study.data.volume_transforms if step.name == "Spacing"]
    return [max(float(side), 0.0) for side in np.broadcast_to(steps[-1], 3)] if steps else None


def _spacing_sentence(study: Study, facts: Mapping[str, Any]) -> str:
    """Return what the study brings volumes to, and the sites' medians; empty where nothing is known."""
    wanted = _planned_spacing(study)
    sides = ["its own" if side == 0 else f"{side:g}" for side in wanted or ()]
    known = [f"brought to {' x '.join(sides)} mm"] if wanted else []
    found = {site: one.get("spacing_mm") for site, one in facts.get("data", {}).items()}
    medians = [f"{site} {' x '.join(f'{side:g}' for side in sides)}" for site, sides in found.items() if sides]
    known += [f"medians in mm, as prepared: {', '.join(medians)}"] if medians else []
    return "; ".join(known)


def _patch_sentence(study: Study) -> str:
    """Return the size of the patches that the network learnt from; empty where it saw whole images."""
    if not study.data.patches:
        return ""
    size, spacing = study.data.patches.size, _planned_spacing(study)
    text = f"{' x '.join(map(str, size))} voxels"
    if not spacing or 0 in spacing:
        return text
    return f"{text}, {' x '.join(f'{a * b:g}' for a, b in zip(size, spacing, strict=True))} mm"


def _list_lacking_contrasts(facts: Mapping[str, Any]) -> str:
    """Return the contrasts that some case of a site lacks, by site; empty where nothing is known of it."""
    lacking = {site: one.get("contrasts_lacking") for site, one in facts.get("data", {}).items()}
    if not lacking or None in lacking.values():
        return ""
    named = [f"{site}: {', '.join(map(quote_markdown, names))}" for site, names in lacking.items() if names]
    return "; ".join(named) or "none at any site"


def _list_unannotated_labels(study: Study, facts: Mapping[str, Any]) -> str:
    """Return the labels that each site's label maps do not show, by site; empty where nothing is known of it."""
    shown = {site: one.get("labels_annotated") for site, one in facts.get("data", {}).items()}
    if shown and None not in shown.values():
        return _format_lacking_labels(study, shown) or "none at any site"
    # A network's sites do not say it. Their scores are of labels that they annotate, and that stand in some case.
    scored = {} if study.regions else _collect_scored_labels(facts)
    lacking = _format_lacking_labels(study, scored)
    if lacking:
        return f"not known; without a score (not annotated, or in no case): {lacking}"
    return "none at a site with scores" if scored else ""


def _collect_scored_labels(facts: Mapping[str, Any]) -> dict[str, set[int]]:
    """Return the labels of which a site's scores have a value, by site; without sites whose scores name no labels."""
    found: dict[str, set[int]] = {}
    for part in ("validation", "test"):
        for site, score in (facts.get(part) or {}).items():
            if score.get("labels") is not None:
                # The absence of a finding is no label.
                found.setdefault(site, set()).update(map(int, filter(str.isdecimal, score["labels"])))
    return found


def _format_lacking_labels(study: Study, shown: Mapping[str, Collection[int]]) -> str:
    lacking = {
        site: ", ".join(quote_markdown(name) for number, name in sorted(study.labels.items()) if number not in numbers)
        for site, numbers in shown.items()
    }
    return "; ".join(f"{site}: {names}" for site, names in lacking.items() if names)


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
        # Sites count the patients of a test alone; the data's table has those of validation.
        counts = {"num_cases": "cases", "num_patients": "patients", "num_excluded": "cases left out"}
        if title == VALIDATION:
            del counts["num_patients"]
        # Beside the values, as the columns of counts: cells by the columns' names.
        shown = {site: score | _list_measures(score) for site, score in scores.items()}
        columns = {name: name for name in MEASURES if any(name in score for score in shown.values())} | counts
        head = ("site", "value", *(quote_markdown(names.get(key, key)) for key in labels), *columns.values())
        rows = []
        for site, score in shown.items():
            values = [score["value"], *map(read_label_scores(contents, score).get, labels)]
            numbers = (None if value is None else f"{value:.3f}" for value in values)
            rows.append((site, *numbers, *map(score.get, columns)))
        tables[title] = format_markdown_table(head, rows)
    return tables


def _list_measures(score: Mapping[str, Any]) -> dict[str, str]:
    """Return what else a site's test holds: name -> text."""
    surface, calling, found = score.get("surface") or {}, score.get("calling") or {}, {}
    if surface.get("hd95") is not None:
        found["HD95"] = f"{surface['hd95']:.1f} {surface.get('unit', 'pixels')}"
    if calling.get("error_after") is not None:
        found["ECE"] = f"{calling['error_after']:.3f}"
    if thresholds := calling.get("thresholds"):
        found["thresholds"] = ", ".join(f"{one:.2f}" for one in thresholds.values())
    return found


def _deviation_sentence(facts: Mapping[str, Any]) -> str:
    mean, spread = facts.get("mean"), facts.get("spread")
    is_known = mean is not None and spread is not None
    return f"Test, over the sites: {mean:.3f}, standard deviation {spread:.3f}." if is_known else ""


def _refusal_sentence(contents: Contents) -> str:
    domain = contents.domain
    kinds = [" or ".join(values) for values in (domain.kinds, domain.colours, domain.modalities) if values]
    known = f"Refused: an image of another kind than {', '.join(kinds)}."
    return known if kinds else "No kind of image is refused: none is known."


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


def _threshold_sentence(contents: Contents) -> str:
    if not contents.is_choice or contents.threshold is None:
        return "No threshold decides whose model answers."
    gamma = f"the selector's score for it is above {contents.threshold:g}"
    end = "; at 1 that is always the global one" if contents.threshold == 1 else ""
    return f"A site's model answers where {gamma}, else the global model{end}."
