"""``silofl evaluate``: a trained model on the labelled cases of a site, as a clinic tests one before it uses it."""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from glob import escape, glob
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.progress import track

from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import fill_folder, is_free, write_json
from silofl.base.options import make_console
from silofl.base.schema import dump_record
from silofl.base.settings import load_settings
from silofl.data.learnt import check_not_learnt, find_learnt, is_recorded
from silofl.data.manifest import PARTS, Manifest
from silofl.data.parts import Examples
from silofl.data.site_data import load_site_data
from silofl.data.targets import IGNORED
from silofl.inference.cases_table import FILE as CASES
from silofl.inference.cases_table import write_cases
from silofl.inference.clinical import measure_evaluation, read_class_rows
from silofl.inference.directory import read_fingerprint
from silofl.inference.evaluated_cases import (
    EvaluatedCase,
    RefusedCase,
    SiteCases,
    answer_case,
    evaluate_cases,
    sort_answers,
)
from silofl.inference.evaluation import FILE, Evaluation
from silofl.inference.geometry import decide_labels
from silofl.inference.subgroups import People, list_having, measure_subgroups
from silofl.inference.super_model import SuperModel
from silofl.parts.checked_cast import checked_cast
from silofl.setup.site import Site
from silofl.study import Study
from silofl.training.case_pictures import find_largest_slice, show_plane
from silofl.training.device import set_threads
from silofl_hospital.report.evaluation_figures import roc_image, worst_image
from silofl_hospital.report.evaluation_page import (
    RESEARCH,
    alarm_lines,
    evaluation_blocks,
    make_evaluation_page,
    warning_lines,
)
from silofl_hospital.report.outlines import CaseColumn, short_metric
from silofl_hospital.report.page import print_blocks, write_with_files
from silofl_hospital.report.tables import print_lines

PAGE = "evaluation.html"
ALL = "all"
# It stands for a site's name in site.yaml, because a model's hospital is not asked which site it is.
ANY_SITE = "anysite"
# As many as can be read on a phone.
MOST_PICTURES = 4
STAYS = f"{FILE} names no case; all other files name some, and stay at the hospital."
SEEN = (
    "the model learnt from this very dataset.json: its training and validation cases are no test of it; give --part "
    "test"
)
UNCHECKED = "whether the model learnt from these images could not be checked: {}"
NO_RECORD = (
    "no record of run {} is here; where this hospital took part in it, name its site.yaml by --site-config, or give "
    "the model where the run left it"
)
LEARNT = "the model learnt from {} of these cases: they are no test of it; {}"
NOT_DRAWN = "the label maps do not show {}: nothing here says how well the model finds it"


def run(options: argparse.Namespace) -> int:
    """Evaluate, print the numbers, and write ``evaluation.json``, ``cases.csv`` and ``evaluation.html``.

    Raises:
        ConfigError: The model or the folder is wrong.
        DataError: The data are wrong, the model answers none of the cases, or learnt from one of the part ``test``.
    """
    console = make_console(options)
    out = options.out
    if not is_free(out):
        raise ConfigError(f"--out must be a new folder, not {out}, which holds something; name another")
    if options.cache and out.absolute() in (options.cache.absolute(), *options.cache.absolute().parents):
        raise ConfigError("--cache lies in --out, which is written whole; name another folder")
    model = SuperModel.load(options.model, options.device)
    fingerprint = read_fingerprint(options.model)
    set_threads("auto")
    study = model.contents.study
    with ExitStack() as stack:
        # Decoded images are nobody's to keep, unless somebody says where.
        cache = options.cache or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="silofl-evaluate-")))
        needed = () if options.part == ALL else (options.part,)
        site = SiteCases.of(load_site_data(options.data, study, cache, needed=needed), needed or PARTS)
        # This comes before the answers, which take long.
        if options.part == "test":
            check_not_learnt(_find_records(options.model, model, options.site_config), site.data, study)
        cases, refused = _answer_cases(model, site, console)
        record = measure_evaluation(model, fingerprint, site, cases)
        if options.prevalence is not None and study.task != "segmentation":
            record = replace(record, prevalence=options.prevalence)
        if options.by:
            divided = site.divide(dict(options.by))
            least = _read_least(options.site_config)
            unit_of = site.units.unit_of
            people = People(unit_of, unit_of, least)
            people.may_tell(list_having(cases, study))
            record = replace(record, subgroups=measure_subgroups(cases, divided, people, study), least=least)
        pictures = draw_worst_cases(model, site, cases)
    cautions = _list_cautions(_find_records(options.model, model, options.site_config), model, site)
    with fill_folder(out) as folder:
        write_json(folder / FILE, dump_record(record))
        write_cases(folder / CASES, cases, refused, record, model.contents)
        _write_page(folder / PAGE, record, site, cautions, (cases, refused), pictures, study)
    _print_evaluation(record, cautions, refused, out, console)
    if options.json:
        print((out / FILE).read_text(), end="")
    return ExitCode.INCOMPLETE if refused else ExitCode.COMPLETE


def _answer_cases(
    model: SuperModel, site: SiteCases, console: Console
) -> tuple[list[EvaluatedCase], list[RefusedCase]]:
    answers = evaluate_cases(model, site)
    is_silent = not console.is_terminal
    return sort_answers(
        track(answers, "evaluating", site.num_cases, console=console, transient=True, disable=is_silent)
    )


def _read_least(site_config: Path) -> int:
    """Return how many patients a number must be of: what a hospital's site.yaml says, or would say by default."""
    if site_config.is_file():
        return load_settings(Site, site_config).min_patients
    return int(Site.model_fields["min_patients"].default)


def _find_records(folder: Path, model: SuperModel, site_config: Path) -> list[Path]:
    """Return the folders that may say which images a model learnt from: a site's run, and a simulation's sites."""
    run = model.contents.facts.get("run")
    parent = folder.resolve().parent
    folders = [parent]
    if not run:
        return folders
    folders += parent.glob(f"sites/*/{escape(str(run))}")
    if site_config.is_file():
        site = load_settings(Site, site_config)
        pattern = escape(str(site.run_folder(model.contents.study.name, ANY_SITE, str(run))))
        folders += map(Path, glob(pattern.replace(ANY_SITE, "*")))
    return folders


def _list_cautions(records: Sequence[Path], model: SuperModel, site: SiteCases) -> list[str]:
    """Return what must be known before a number is believed.

    Args:
        records: The folders that may say what the model learnt from.
    """
    has_learnt = {*site.parts} != {"test"}
    cautions = []
    manifest = checked_cast(site.data.manifest, Manifest)
    contents = model.contents
    is_same = manifest.digest in [data.get("digest") for data in (contents.facts.get("data") or {}).values()]
    if learnt := find_learnt(records, site.data, site.parts, contents.study):
        cautions.append(LEARNT.format(len(learnt), "give --part test" if has_learnt else "take them out of test"))
    elif has_learnt and is_same:
        cautions.append(SEEN)
    elif not is_same and not is_recorded(records):
        run = contents.facts.get("run")
        cautions.append(UNCHECKED.format(NO_RECORD.format(run) if run else "it does not name its run"))
    if lacking := [name for number, name in manifest.labels.items() if number not in manifest.labels_annotated]:
        cautions.append(NOT_DRAWN.format(", ".join(lacking)))
    if site.units.name != "patient":
        cautions.append(
            f"not all patients are known, or there is one alone: intervals are over {site.units.name}s, and too narrow "
            "where a patient has several"
        )
    return cautions


def draw_worst_cases(model: SuperModel, site: SiteCases, cases: Sequence[EvaluatedCase]) -> list[CaseColumn]:
    """Return pictures of the label maps with the lowest values; right ones are none."""
    if model.contents.study.task != "segmentation":
        return []
    wrong = [case for case in cases if case.score.by_case.get(case.case, 1.0) < 1]
    worst = sorted(wrong, key=lambda case: (case.score.by_case[case.case], case.case))[:MOST_PICTURES]
    return [_draw_label_map(model, case, site.select(case.part, case.case)) for case in worst]


def _draw_label_map(model: SuperModel, evaluated: EvaluatedCase, case: Examples) -> CaseColumn:
    predicted = decide_labels(answer_case(model, case).probabilities)
    truths = np.stack([*case.targets])
    wrong = (predicted != truths) & (truths != IGNORED)
    # The slice with most wrong pixels is shown; without any, the one with most of the label.
    examples = replace(case, targets=wrong.astype(np.uint8)) if wrong.any() else case
    row = find_largest_slice(examples, evaluated.case)

    def show(plane: ArrayLike) -> NDArray[Any]:
        return show_plane(np.asarray(plane), examples, row)

    title = f"{short_metric(evaluated.score.metric)} {evaluated.score.by_case[evaluated.case]:.3f}"
    image = show(case.images[row][model.contents.study.data.shown])
    outlines = {"truth": show(case.targets[row]), "prediction": show(predicted[row])}
    return CaseColumn(title, evaluated.case, image, outlines)


def _write_page(
    path: Path,
    record: Evaluation,
    site: SiteCases,
    cautions: Sequence[str],
    evaluated: tuple[Sequence[EvaluatedCase], Sequence[RefusedCase]],
    pictures: Sequence[CaseColumn],
    study: Study,
) -> None:
    cases, refused = evaluated
    rows = None if record.is_segmentation else read_class_rows(cases, site.units.unit_of)
    images = {
        "roc": roc_image(rows.draw_rocs(study), record.scores) if rows else None,
        "worst": worst_image(pictures, study.labels),
    }
    reasons = [f"{case.case}: {case.reason}" for case in refused]
    name = checked_cast(site.data.manifest, Manifest).folder.resolve().name
    page = make_evaluation_page(record, name, cautions, images, reasons)
    write_with_files(path, page, ())


def _print_evaluation(
    record: Evaluation, cautions: Sequence[str], refused: Sequence[RefusedCase], out: Path, console: Console
) -> None:
    first = [f"{case.case} refused (all are in {CASES}): {case.reason}" for case in refused[:1]]
    _print_warnings(cautions, console)
    print_blocks(evaluation_blocks(record), console)
    _print_warnings([*alarm_lines(record), *warning_lines(record), *first], console)
    quality = [f"What these models can do: {record.quality}"] if record.quality else []
    print_lines([*quality, RESEARCH, f"page: {out / PAGE}", STAYS], console)


def _print_warnings(sentences: Sequence[str], console: Console) -> None:
    for sentence in sentences:
        console.print(f"  warning: {sentence}", style="yellow")
