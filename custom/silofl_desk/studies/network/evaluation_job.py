"""``silofl evaluation-job``: the job that tests a finished model at hospitals."""

import argparse
import hashlib
from pathlib import Path
from shlex import quote

from silofl.base.bundled_jobs import JOBS
from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import copy_folder, save_tensors, write_text
from silofl.base.options import make_console
from silofl.base.settings import dump_yaml, parse
from silofl.data.groups import GROUPS, Divisions
from silofl.inference.directory import plain_study, read_model_folder
from silofl.inference.model_file import pack_model
from silofl.setup.divisions import check_divisions
from silofl.study import Study
from silofl_desk.studies.runs.simulation import fit_configurations, fit_meta, study_file
from silofl_hospital.report.tables import print_lines

# Only its configurations are taken, which are fitted to the model's own algorithm.
TEMPLATE = JOBS / "fedavg_phantoms"
WEIGHTS = "model.pt"
# These sections concern a training, or the hospitals that took part in it.
OF_TRAINING = ("federation", "privacy", "continue_run", "baseline_comparison", "evaluate_every_round")
HEAD = """\
# The test of a finished model, {model}, at hospitals: nothing is trained.
# All but name, rounds and model.pretrained is of the study {study} that trained it, and must stay as it is.

"""


def run(options: argparse.Namespace) -> int:
    """Write the job, and say how to go on with it."""
    study = write_evaluation_job(options.model, options.out, dict(options.by))
    job = quote(str(options.out))
    lines = [
        f"wrote {options.out}: it has hospitals test the model",
        f"  python -m silofl simulate {job} --data DATA --out RUN",
        f"  python -m silofl run {job} --kit KIT --out RUN",
        f"hospitals that pin their studies need its digest: {study.digest}",
    ]
    print_lines(lines, make_console(options))
    return ExitCode.COMPLETE


def write_evaluation_job(model: Path, target: Path, divisions: Divisions) -> Study:
    """Write the job that evaluates a super model over a network, and return its study.

    Args:
        model: The super model's folder.
        divisions: What test cases are also scored by -> its groups.

    Raises:
        ConfigError: The super model is broken, the folder exists, or nobody says which groups there are.
        PinError: A hospital would refuse what cases are divided by.
    """
    # Which elements a hospital allows beside the list is known there alone.
    check_divisions(divisions, divisions)
    for division in divisions.keys() - GROUPS.keys():
        if not divisions[division]:
            raise ConfigError(
                f"--by {division} has no groups. Name them, which all hospitals then have alike: "
                f"--by {division}=VALUE,VALUE."
            )
    if target.exists():
        raise ConfigError(f"{target} already exists. Name a new folder with --out.")
    trained = read_model_folder(model).study
    copy_folder(TEMPLATE, target)
    path = study_file(target)
    values = _list_test(trained, model, path, divisions)
    study = parse(Study, values, "study.yaml")
    fit_configurations(target, study)
    write_text(path, HEAD.format(model=model.resolve().name, study=trained.name) + dump_yaml(values))
    fit_meta(target, study, ("name", "federation.min_sites"))
    return study


def _list_test(trained: Study, model: Path, path: Path, divisions: Divisions) -> dict[str, object]:
    """Write the model beside a study.yaml, and return the values of the study that tests it."""
    save_tensors(path.with_name(WEIGHTS), pack_model(model))
    digest = hashlib.sha256(path.with_name(WEIGHTS).read_bytes()).hexdigest()
    values = {key: value for key, value in plain_study(trained).items() if key not in OF_TRAINING}
    # What the training began from is not there any more.
    values["model"] = {key: value for key, value in values["model"].items() if not key.startswith("weights")}
    values["model"] |= {"pretrained": WEIGHTS, "pretrained_sha256": digest}
    # Nothing is mixed: a hospital may be the only one.
    values |= {"name": f"{trained.name}-evaluation", "rounds": 0, "federation": {"min_sites": 1}}
    if divisions:
        values["subgroups"] = {division: list(groups or GROUPS[division]) for division, groups in divisions.items()}
    return values
