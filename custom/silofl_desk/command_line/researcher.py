"""What a researcher gives on the command line: data, studies and runs on one machine."""

import argparse
import re
from functools import partial
from pathlib import Path

from silofl.base.errors import ConfigError
from silofl.base.options import add_json, expect_path, parse_count, parse_names, parse_natural
from silofl.base.settings import NAME
from silofl_desk.options import (
    JOB,
    RUN,
    SITES,
    add_cache,
    add_data,
    add_in_process,
    add_job,
    add_moved,
    add_pretrained,
    add_rounds,
    add_seed,
    add_set,
    add_skip_unreadable,
    add_trust,
    add_weights,
    collect_settings,
    declare_command,
    declare_option,
)
from silofl_desk.studies.comparisons.methods import find_method_algorithm, method_names


class _Row(argparse.Action):
    """Action of ``--as NAME``: give the row the settings since the row before."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Take the settings for this row, so that those that follow belong to the next."""
        name = str(values)
        if not re.fullmatch(NAME, name) or name in namespace.variants or not namespace.settings:
            parser.error(
                "--as must follow at least one --set, with a name of its own of letters, digits, '.', '_' and '-', not "
                f"{name!r}"
            )
        try:
            changes = collect_settings(namespace.settings)
        except ConfigError as error:
            parser.error(str(error))
        # These are new objects, since the old ones may be the parser's defaults, which the next call gets too.
        namespace.variants = {**namespace.variants, name: changes}
        namespace.settings = []


def _parse_seeds(text: str) -> tuple[int, ...]:
    return tuple(parse_natural(seed) for seed in text.split(","))


def _parse_methods(text: str) -> list[str]:
    names = parse_names(text)
    # A slip in the last of many methods must not show after hours of training.
    try:
        for name in names:
            find_method_algorithm(name)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return names


_add_processes = declare_option(
    "--processes",
    type=parse_count,
    default=1,
    metavar="N",
    help="number of runs at a time, each in a process (default: 1)",
)
_add_run = declare_option("run", type=RUN, metavar="RUN", help="folder of the run")
_add_sites = declare_option(
    "--sites", type=parse_names, default=[], help="sites that take part, for example a,b (default: all)"
)
# The demonstration has no data, job or cache to choose: it must work without any knowledge.
add_demo = declare_command(
    declare_option(
        "--out", type=Path, default=Path("demo"), help="folder for phantoms, runs and report (default: demo)"
    ),
    add_rounds,
    declare_option("--seed", type=parse_natural, help="seed of phantoms and training (default: 0)"),
)
add_new_study = declare_command(
    declare_option(
        "data",
        type=SITES,
        metavar="DATA",
        help="folder with one folder per site, or the folder of one site, each with dataset.json",
    ),
    declare_option("target", type=Path, metavar="STUDY", help="new job folder; the study gets its name"),
    declare_option(
        "--from",
        dest="job",
        type=JOB,
        metavar="JOB",
        help="job folder or bundled job to begin with (default: the bundled job for such data)",
    ),
    declare_option(
        "--algorithm",
        metavar="NAME",
        help="name of another algorithm, with its recommended settings (default: the job's)",
    ),
    declare_option(
        "--sites",
        type=parse_names,
        default=[],
        help="names of the hospitals that take part, for example north,south, as their kits have them",
    ),
    declare_option(
        "--survey",
        type=expect_path("a JSON file, survey.json of a run in a network or of silofl survey --json"),
        metavar="FILE",
        help="survey.json of the hospitals, which gives spacing, patch and the window of CT",
    ),
)
# A survey comes before any study, so that it takes folders of data and no job.
add_survey = declare_command(
    declare_option(
        "data",
        type=SITES,
        nargs="+",
        metavar="DATA",
        help="a site's folder with dataset.json, or a folder of such folders",
    ),
    partial(add_json, what="the numbers and sentences as JSON"),
)
add_tune = declare_command(
    add_job,
    add_data,
    declare_option(
        "--out",
        type=Path,
        default=Path("tuning"),
        help="folder for the runs; the same command goes on, and reuses finished ones (default: tuning)",
    ),
    _add_processes,
    add_rounds,
    add_set,
    add_pretrained,
    add_cache,
    add_skip_unreadable,
)
add_pretrain = declare_command(
    add_job,
    add_data,
    add_cache,
    declare_option("--out", type=Path, required=True, help="new file for the model, ending in .pt"),
    declare_option(
        "--share", type=float, default=0.2, help="share of each site's training examples to pool (default: 0.2)"
    ),
    declare_option(
        "--epochs", type=parse_count, help="passes over them (default: the study's rounds times local epochs)"
    ),
    add_seed,
    add_set,
)
add_simulate = declare_command(
    add_job,
    add_data,
    declare_option("--out", type=Path, required=True, help="new folder for the run"),
    add_cache,
    add_skip_unreadable,
    add_rounds,
    add_seed,
    add_set,
    _add_sites,
    add_in_process,
    add_pretrained,
    add_weights,
    add_trust,
    declare_option("--leave-out", metavar="SITE", help="exclude SITE from training, then test the super model on it"),
    partial(add_json, what="results.json"),
)
add_prepare = declare_command(
    declare_option(
        "workspace", type=Path, metavar="WORKSPACE", help="folder for nvflare simulator, created if missing"
    ),
    add_job,
    add_data,
    add_cache,
    _add_sites,
    add_trust,
)
add_resume = declare_command(
    _add_run,
    declare_option(
        "--rounds",
        type=parse_count,
        metavar="N",
        help="go on to so many rounds, also where the run has finished (default: from its study.yaml)",
    ),
    add_moved,
    add_trust,
    partial(add_json, what="results.json"),
)
# Only a simulation keeps the data of all sites where each model can be tested on them.
add_cross_test = declare_command(
    declare_option("run", type=RUN, metavar="RUN", help="folder of a finished simulation"),
    add_moved,
    partial(add_json, what="cross_test.json"),
)
add_report = declare_command(
    declare_option("runs", type=RUN, nargs="+", metavar="RUN", help="folder of a run, or of a downloaded job"),
    declare_option("--out", type=Path, help="page that compares several runs (default: comparison.html)"),
)
add_export = declare_command(
    declare_option(
        "super_model",
        type=expect_path("the folder of a super model"),
        metavar="SUPERMODEL",
        help="folder of the super model",
    ),
    declare_option("-o", "--out", type=Path, required=True, help="new folder for the bundle"),
)
_add_compared = declare_command(
    declare_option(
        "jobs",
        type=JOB,
        nargs="+",
        metavar="JOB",
        help="job folder or name of a bundled job; --methods use the study of the first",
    ),
    add_data,
    declare_option(
        "--out", type=Path, required=True, help="folder for the runs and the table; finished runs in it are reused"
    ),
    add_cache,
    add_skip_unreadable,
    # One seed would leave it to luck which method is the best.
    declare_option("--seeds", type=_parse_seeds, default=(0, 1, 2), help="seeds (default: 0,1,2)"),
    declare_option(
        "--methods",
        type=_parse_methods,
        default=[],
        help="methods to compare in the first job's study, for example fedbn,local (listed below)",
    ),
    add_pretrained,
    add_weights,
    declare_option(
        "--pooled", action="store_true", help="also train on the data of all sites in one place (simulation only)"
    ),
    add_rounds,
    declare_option(
        "--equal-rounds",
        action="store_true",
        help="count extra rounds, such as those of fine-tuning, among the study's rounds",
    ),
    # One study becomes several rows of the table.
    add_set,
    declare_option(
        "--as",
        dest="variants",
        action=_Row,
        default={},
        metavar="NAME",
        help="add a row NAME: the first job's study with the --set before it; --set after all --as is for all rows",
    ),
    _add_processes,
    add_in_process,
    partial(add_json, what="table.json"),
)


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl compare``, and list the methods."""
    head = "methods (also as ALGORITHM:PRESET; add -pretrained to start from the pretrained model):"
    parser.epilog = "\n  ".join([head, *method_names()])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_compared(parser)
