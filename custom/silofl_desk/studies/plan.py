"""``silofl plan``: one plan for a study from all sites' training data, and the job that follows from it."""

import argparse
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console

from silofl.algorithms.plan.exchange import make_draft
from silofl.algorithms.plan.rules import AXES, Plan, make_plan
from silofl.base.errors import ConfigError, DataError, ExitCode, make_printable, one_line, quote_value
from silofl.base.files import copy_folder, read_json, write_text
from silofl.base.options import make_console
from silofl.base.schema import read_record
from silofl.base.settings import check_key, parse, read_yaml
from silofl.data.data_fingerprint import measure_site
from silofl.data.manifest import read_manifest
from silofl.data.transforms import check_transforms
from silofl.models.networks import build_plain_model
from silofl.reading.header import read_header
from silofl.report.tables import TextTable, print_table
from silofl.study import Study
from silofl_desk.options import path_to_text, read_changes
from silofl_desk.studies.new_study import list_key_choices, section_lines
from silofl_desk.studies.simulation import (
    Simulation,
    apply_changes,
    changed_study,
    fit_configurations,
    fit_meta,
    settle_job,
    study_file,
)

# Sections that a file of a plan may decide about; `Study` checks the values.
PLANNED = ("data", "model", "training")
LONGEST_VALUE = 60
COMMENT = {"initial_indent": "# ", "subsequent_indent": "# ", "break_long_words": False, "break_on_hyphens": False}
LEVELS = (
    "The network keeps its levels and features: only those of MONAI's DynUNet are planned, which --set "
    '"model={network: monai.networks.nets.DynUNet, normalization: instance}" chooses'
)

ASK = (
    "the files do not state one modality for all sites; if they are CT in Hounsfield units, say --set "
    "data.modality=CT: intensities are then clipped to a window, which a scanner's padding needs"
)


def run(options: argparse.Namespace) -> int:
    """Show the plan, and write the job that follows from it."""
    console, changes = make_console(options), read_changes(options)
    if options.plan and options.data:
        raise ConfigError("--plan must be given without --data, which a plan is made from; leave one out")
    if options.out and options.out.exists():
        raise ConfigError(f"--out must be a new folder, not {options.out}, which exists; name another")
    data = options.data
    if options.plan:
        study, plan = changed_study(options.job, changes), read_plan(options.plan)
    else:
        study, simulation = settle_job(options.job, Simulation(data=path_to_text(data), is_alone=True), changes)
        plan, data = plan_sites(study, simulation), simulation.data
    values = planned_values(options.job, changes, plan, options.out.resolve().name if options.out else study.name)
    planned = parse(Study, values, "the planned study.yaml")
    check_transforms(planned)
    # Where MONAI refuses the planned levels, it does so here and not at the sites.
    build_plain_model(planned, planned.seed)
    print_plan(plan, console)
    if not _has_planned_levels(plan):
        console.print(f"{LEVELS}.", markup=False)
    if options.out:
        write_planned_job(options.out, options.job, values, plan, planned)
        console.print(f"\nwrote {options.out}: read its app/config/study.yaml before you train", markup=False)
        out, where = quote(str(options.out)), quote(str(data)) if data else "DATA"
        console.print(f"  python -m silofl simulate {out} --data {where} --out RUN", markup=False)
    if options.json:
        print(json.dumps(plan.as_dict(), indent=1))
    return ExitCode.COMPLETE


def plan_sites(study: Study, simulation: Simulation) -> Plan:
    """Plan a study from the training data of a simulation's sites.

    Raises:
        ConfigError: The study can be planned with none of them, or its transforms are not right.
        DataError: A site's data is wrong.
    """
    check_transforms(study)
    fingerprints, stated = {}, set()
    for site in simulation.sites:
        try:
            manifest = read_manifest(Path(simulation.data) / site, study)
            # Nothing leaves this machine, and many public sets know no patients.
            fingerprints[site] = measure_site(manifest, study, min_patients=0)
            files = filter(None, manifest.source(manifest.training[0]).files)
            stated |= {read_header(path).modality for path, _ in files}
        except DataError as error:
            raise DataError(f"site {site!r}: {error}") from None
    # What the study says comes first; then what all sites' files state.
    modality = study.data.modality or (next(iter(stated)) if len(stated) == 1 else None)
    plan = make_plan(replace(make_draft(study), modality=modality), fingerprints)
    is_asked = modality is None and study.data.channels == 1 and not study.data.channel_names
    is_volume = any(facts.shape[2] > 1 for facts in plan.sites.values())
    return replace(plan, warnings=(*plan.warnings, ASK)) if is_asked and is_volume else plan


def read_plan(path: Path) -> Plan:
    """Read the plan that a run in a network has written.

    Raises:
        ConfigError: The file is missing, is no plan, decides about what no plan does, or has texts of several lines.
    """
    content = read_json(path)
    found = read_record(
        Plan, {key: content[key] for key in ("decisions", "warnings", "sites") if key in content}, str(path)
    )
    # They become comments of a study.yaml, whose next line would be the server's.
    for text in (*found.sites, *found.warnings, *(one.reason for one in found.decisions)):
        if text != make_printable(text):
            raise ConfigError(f"{path} must hold texts of one line, not {quote_value(text)}; take a run's own")
    for one in found.decisions:
        if one.key.partition(".")[0] not in PLANNED:
            raise ConfigError(f"{path} must decide about {', '.join(PLANNED)} only, not {one.key}; take a run's own")
        check_key(one.key, Study)
    return found


def planned_values(job: Path, changes: Mapping[str, object], plan: Plan, name: str) -> dict[str, Any]:
    """Return the plain values of a job's study with changes by dotted key, and then with those of a plan."""
    values = apply_changes(read_yaml(study_file(job)), changes)
    values.pop("continue_run", None)
    return apply_changes(values, {one.key: one.value for one in plan.decisions} | {"name": name})


def write_planned_job(target: Path, job: Path, values: Mapping[str, Any], plan: Plan, study: Study) -> None:
    """Write a job with a commented study.yaml.

    Args:
        job: The job that everything else is taken from.
        values: The planned study's plain values.
        plan: The plan, whose rules become comments.
    """
    answers = [type(one) for one in study.recipe.options]
    remarks = list_key_choices(study.task, answers) | {one.key: one.reason for one in plan.decisions}
    template = make_printable(job.resolve().name)
    head = [
        f"# {study.name}, planned from {template} and the training data of {', '.join(plan.sites)} by the",
        "# rules of nnU-Net (Isensee et al., Nature Methods 2021). silofl schema study explains every key.",
        *([] if _has_planned_levels(plan) else textwrap.wrap(f"{LEVELS}.", 120, **COMMENT)),
        *(f"# Beware: {warning}." for warning in plan.warnings),
        "",
    ]
    copy_folder(job, target)
    # Another algorithm than the job's may let BatchNorm leave, or not.
    fit_configurations(target, study)
    write_text(study_file(target), "\n".join(head + section_lines(values, remarks)) + "\n")
    fit_meta(target, study, ("name",))


def _has_planned_levels(plan: Plan) -> bool:
    return any(one.key.startswith("model.") for one in plan.decisions)


def print_plan(plan: Plan, console: Console) -> None:
    """Print what the sites have, what is planned, each with its rule, and the warnings."""
    rows = [
        (site, str(facts.cases), _format_axes(facts.spacing_mm), _format_axes(facts.shape))
        for site, facts in plan.sites.items()
    ]
    columns = ("site", "training cases", f"median spacing {' x '.join(AXES)}, mm; 1 of pictures", "median voxels")
    print_table(TextTable(columns, tuple(rows)), console)
    console.print()
    values = tuple((one.key, one_line(json.dumps(one.value), LONGEST_VALUE)) for one in plan.decisions)
    print_table(TextTable(("planned", "value"), values, num_text=2), console)
    console.print()
    for one in plan.decisions:
        console.print(f"{one.key}: {one.reason}", markup=False)
    for warning in plan.warnings:
        console.print(f"warning: {warning}", markup=False)


def _format_axes(values: Sequence[float]) -> str:
    return " x ".join(f"{value:g}" for value in values)
