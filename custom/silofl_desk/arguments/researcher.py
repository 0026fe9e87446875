"""What a researcher gives on the command line: data, studies and runs on one machine."""

import argparse
import re
from pathlib import Path

from silofl.base.errors import ConfigError
from silofl.base.options import add_json, expect_path, parse_count, parse_names, parse_natural
from silofl.base.settings import NAME
from silofl_desk.options import (
    JOB,
    RUN,
    SITES,
    add_backend,
    add_cache,
    add_data,
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
)
from silofl_desk.studies.methods import find_method_algorithm, method_names


def add_demo(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl demo``."""
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder for phantoms, runs and report (default: demo)"
    )
    add_rounds(parser)
    parser.add_argument("--seed", type=parse_natural, help="seed of phantoms and training (default: 0)")


def add_new_study(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl new-study``."""
    what = "folder with one folder per site, or the folder of one site, each with dataset.json"
    parser.add_argument("data", type=SITES, metavar="DATA", help=what)
    parser.add_argument("target", type=Path, metavar="STUDY", help="new job folder; the study gets its name")
    what = "job folder or bundled job to begin with (default: the bundled job for such data)"
    parser.add_argument("--from", dest="job", type=JOB, metavar="JOB", help=what)
    what = "name of another algorithm, with its recommended settings (default: the job's)"
    parser.add_argument("--algorithm", metavar="NAME", help=what)
    what = "names of the hospitals that take part, for example north,south, as their kits have them"
    parser.add_argument("--sites", type=parse_names, default=[], help=what)
    found = expect_path("a JSON file, survey.json of a run in a network or of silofl survey --json")
    what = "survey.json of the hospitals, which gives spacing, patch and the window of CT"
    parser.add_argument("--survey", type=found, metavar="FILE", help=what)


def add_survey(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl survey``."""
    data = "a site's folder with dataset.json, or a folder of such folders"
    parser.add_argument("data", type=SITES, nargs="+", metavar="DATA", help=data)
    add_json(parser, "the numbers and sentences as JSON")


def add_tune(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl tune``."""
    add_job(parser)
    add_data(parser)
    out = "folder for the runs; the same command goes on, and reuses finished ones (default: tuning)"
    parser.add_argument("--out", type=Path, default=Path("tuning"), help=out)
    _add_processes(parser)
    add_rounds(parser)
    add_set(parser)
    add_pretrained(parser)
    add_cache(parser)
    add_skip_unreadable(parser)


def add_pretrain(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl pretrain``."""
    add_job(parser)
    add_data(parser)
    add_cache(parser)
    parser.add_argument("--out", type=Path, required=True, help="new file for the model, ending in .pt")
    parser.add_argument(
        "--share", type=float, default=0.2, help="share of each site's training examples to pool (default: 0.2)"
    )
    parser.add_argument(
        "--epochs", type=parse_count, help="passes over them (default: the study's rounds times local epochs)"
    )
    add_seed(parser)
    add_set(parser)


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl simulate``."""
    add_job(parser)
    add_data(parser)
    parser.add_argument("--out", type=Path, required=True, help="new folder for the run")
    add_cache(parser)
    add_skip_unreadable(parser)
    add_rounds(parser)
    add_seed(parser)
    add_set(parser)
    parser.add_argument(
        "--sites", type=parse_names, default=[], help="sites that take part, for example a,b (default: all)"
    )
    add_backend(parser)
    add_pretrained(parser)
    add_weights(parser)
    add_trust(parser)
    parser.add_argument(
        "--leave-out", metavar="SITE", help="exclude SITE from training, then test the super model on it"
    )
    add_json(parser, "results.json")


def add_prepare(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl prepare``."""
    where = "folder for nvflare simulator, created if missing"
    parser.add_argument("workspace", type=Path, nargs="?", metavar="WORKSPACE", help=where)
    add_job(parser)
    poc = "prepare the workspace of nvflare poc instead; call nvflare poc prepare first"
    parser.add_argument("--poc", action="store_true", help=poc)
    add_data(parser)
    add_cache(parser)
    parser.add_argument(
        "--sites", type=parse_names, default=[], help="sites that may take part, for example a,b (default: all)"
    )
    add_trust(parser)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl resume``."""
    parser.add_argument("run", type=RUN, metavar="RUN", help="folder of the run")
    more = "go on to so many rounds, also where the run has finished (default: from its study.yaml)"
    parser.add_argument("--rounds", type=parse_count, metavar="N", help=more)
    add_moved(parser)
    add_trust(parser)
    add_json(parser, "results.json")


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
        # New objects: the old ones may be the parser's defaults, which the next call gets too.
        namespace.variants = {**namespace.variants, name: changes}
        namespace.settings = []


def _parse_seeds(text: str) -> tuple[int, ...]:
    return tuple(parse_natural(seed) for seed in text.split(","))


def _parse_methods(text: str) -> list[str]:
    names = parse_names(text)
    try:
        for name in names:
            find_method_algorithm(name)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return names


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl compare``."""
    head = "methods (also as ALGORITHM:PRESET; add -pretrained to start from the pretrained model):"
    parser.epilog = "\n  ".join([head, *method_names()])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    jobs = "job folder or name of a bundled job; --methods use the study of the first"
    parser.add_argument("jobs", type=JOB, nargs="+", metavar="JOB", help=jobs)
    add_data(parser)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the runs and the table; finished runs in it are reused"
    )
    add_cache(parser)
    add_skip_unreadable(parser)
    parser.add_argument("--seeds", type=_parse_seeds, default=(0, 1, 2), help="seeds (default: 0,1,2)")
    parser.add_argument(
        "--methods",
        type=_parse_methods,
        default=[],
        help="methods to compare in the first job's study, for example fedbn,local (listed below)",
    )
    add_pretrained(parser)
    add_weights(parser)
    parser.add_argument(
        "--pooled", action="store_true", help="also train on the data of all sites in one place (simulation only)"
    )
    add_rounds(parser)
    parser.add_argument(
        "--equal-rounds",
        action="store_true",
        help="count extra rounds, such as those of fine-tuning, among the study's rounds",
    )
    _add_variants(parser)
    _add_processes(parser)
    add_backend(parser)
    add_json(parser, "table.json")


def _add_processes(parser: argparse.ArgumentParser) -> None:
    """Add ``--processes``."""
    what = "number of runs at a time, each in a process (default: 1)"
    parser.add_argument("--processes", type=parse_count, default=1, metavar="N", help=what)


def _add_variants(parser: argparse.ArgumentParser) -> None:
    """Add the options by which one study becomes several rows of the table."""
    add_set(parser)
    parser.add_argument(
        "--as",
        dest="variants",
        action=_Row,
        default={},
        metavar="NAME",
        help="add a row NAME: the first job's study with the --set before it; --set after all --as is for all rows",
    )


def add_cross_test(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl cross-test``."""
    parser.add_argument("run", type=RUN, metavar="RUN", help="folder of a finished simulation")
    add_moved(parser)
    add_json(parser, "cross_test.json")


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl report``."""
    parser.add_argument("runs", type=RUN, nargs="+", metavar="RUN", help="folder of a run, or of a downloaded job")
    parser.add_argument("--out", type=Path, help="page that compares several runs (default: comparison.html)")


def add_export(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl export``."""
    parser.add_argument(
        "super_model",
        type=expect_path("the folder of a super model"),
        metavar="SUPERMODEL",
        help="folder of the super model",
    )
    parser.add_argument("-o", "--out", type=Path, required=True, help="new folder for the bundle")
