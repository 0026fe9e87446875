"""The command line: ``python -m silofl COMMAND``; each command's work is in the room it belongs to."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from silofl import __version__
from silofl.errors import ConfigError, ExitCode, SiloFLError


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> None:
        """Exit with code 2."""
        self.exit(ExitCode.BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 failed, 2 bad input, 3 incomplete, 130 interrupted."""
    options = _parser().parse_args(arguments)
    return carry_out("silofl", options.command, options)


def carry_out(program: str, command: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command; say in one sentence what is wrong with its input, and return the exit code."""
    try:
        return command(options)
    except SiloFLError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or error
        print(f"{program}: {place}{reason}; name another file or folder, or make room", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _parser() -> Parser:
    parser = Parser(prog="silofl", description="Federated learning of medical-image models on NVFlare.")
    parser.add_argument("--version", action="version", version=f"silofl {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    _add_demo(commands)
    _add_import(commands)
    _add_simulate(commands)
    _add_resume(commands)
    _add_compare(commands)
    _add_pretrain(commands)
    _add_report(commands)
    _add_predict(commands)
    _add_export(commands)
    _add_forget(commands)
    _add_check_site(commands)
    _add_estimate(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("demo", help="train on simulated hospitals and write one report")
    command.add_argument("--out", type=Path, default=Path("demo"), help="folder of phantoms, runs and report")
    command.add_argument("--jobs", type=Path, default=Path("jobs"), help="folder of the job folders")
    command.add_argument("--rounds", type=_count, help="instead of the studies'")
    command.add_argument("--seed", type=_natural, help="of phantoms and training, instead of 0")
    command.set_defaults(command=_demo)


def _add_import(commands: argparse._SubParsersAction) -> None:
    from silofl.data.importers import LAYOUTS, PARTITIONS

    command = commands.add_parser(
        "import",
        help="turn a known public layout into sites with a dataset.json each",
        epilog="\n  ".join(["layouts:", *sorted(LAYOUTS)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("layout", choices=sorted(LAYOUTS), metavar="LAYOUT", help="form of the set, named below")
    command.add_argument("source", type=Path, help="the downloaded set")
    command.add_argument("target", type=Path, help="new folder for the sites")
    command.add_argument("--seed", type=_natural, default=0, help="of every random choice")
    command.add_argument("--partition", choices=PARTITIONS, help="how examples of classes come to sites")
    command.add_argument("--sites", type=_count, help="number of sites to make")
    command.add_argument("--alpha", type=float, help="of dirichlet: small values differ more")
    command.add_argument("--shards", type=_count, help="of shards: for each site")
    command.add_argument("--test", type=_share, help="share of a site's patients, recordings or examples for the test")
    command.add_argument("--validation", type=_share, help="share of the others for validation")
    command.add_argument("--truncate", action="store_true", help="cut every site to the smallest's training examples")
    command.add_argument("--json", action="store_true", help="the counts as JSON")
    command.set_defaults(command=_import)


def _add_simulate(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("simulate", help="run a job with all its sites on this machine")
    command.add_argument("job", type=Path, nargs="?", help="job folder, as jobs/harmofl_phantoms")
    command.add_argument("--data", type=Path, help="folder with one folder a site; phantoms/ by default")
    command.add_argument("--out", type=Path, help="new folder for the run")
    command.add_argument("--rounds", type=_count, help="instead of the study's")
    command.add_argument("--seed", type=_natural, help="instead of the study's")
    command.add_argument("--sites", type=_names, default=[], help="sites that take part, as a,b; all by default")
    command.add_argument("--threads", type=_count, help="sites at a time; all by default")
    command.add_argument("--pretrained", type=Path, metavar="FILE", help="pretrained model, for studies that need one")
    command.add_argument("--alone", action="store_true", help="all sites in one process, without NVFlare: same weights")
    command.add_argument("--leave-out", metavar="SITE", help="does not train; then tests the super model")
    command.add_argument("--prepare", type=Path, metavar="WORKSPACE", help="only write local/ for nvflare simulator")
    command.add_argument("--json", action="store_true", help="results.json on standard output, the rest on stderr")
    command.set_defaults(command=_simulate)


def _add_resume(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("resume", help="go on with an interrupted run")
    command.add_argument("run", type=Path, help="folder of the run")
    command.add_argument("--json", action="store_true", help="results.json on standard output, the rest on stderr")
    command.set_defaults(command=_resume)


def _add_compare(commands: argparse._SubParsersAction) -> None:
    from silofl.studies.methods import METHODS

    command = commands.add_parser(
        "compare",
        help="run jobs and methods with several seeds and print one table",
        epilog="\n  ".join(["methods:", *METHODS]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("jobs", type=Path, nargs="+", metavar="JOB", help="job folder; methods take the first's study")
    command.add_argument("--data", type=Path, help="folder with one folder a site; phantoms/ by default")
    command.add_argument("--out", type=Path, required=True, help="folder of the runs and the table; goes on in it")
    command.add_argument("--seeds", type=_seeds, default=(0, 1, 2), help="as 0,1,2, which is the default")
    command.add_argument("--methods", type=_names, default=[], help="of the first job's study, as a,b; named below")
    command.add_argument("--pretrained", type=Path, metavar="FILE", help="pretrained model, for methods that need one")
    command.add_argument(
        "--pooled", action="store_true", help="also train on all sites' data in one place: simulation only"
    )
    command.add_argument("--rounds", type=_count, help="instead of the studies'")
    command.add_argument("--threads", type=_count, help="sites at a time; all by default")
    command.add_argument("--alone", action="store_true", help="all sites in one process, without NVFlare: same weights")
    command.add_argument("--json", action="store_true", help="table.json on standard output, the rest on stderr")
    command.set_defaults(command=_compare)


def _add_pretrain(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("pretrain", help="train a model on pooled data for AdaFed: simulation only")
    command.add_argument("job", type=Path, help="job folder, as jobs/adafed_activity")
    command.add_argument("--data", type=Path, help="folder with one folder a site; phantoms/ by default")
    command.add_argument("--out", type=Path, required=True, help="new file for the model, ending in .pt")
    command.add_argument("--share", type=float, default=0.2, help="of each site's training examples; 0.2 by default")
    command.add_argument("--epochs", type=_count, help="passes over them; the study's rounds x local epochs by default")
    command.set_defaults(command=_pretrain)


def _add_report(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("report", help="write report.html of one run, or compare several")
    command.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run")
    command.add_argument("--out", type=Path, help="of the comparison of several runs; comparison.html by default")
    command.set_defaults(command=_report)


def _add_predict(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("predict", help="label new images with a trained super model")
    command.add_argument("super_model", type=Path, metavar="SUPERMODEL", help="folder of the super model")
    command.add_argument("inputs", type=Path, nargs="+", metavar="INPUT", help="image file, or DICOM series folder")
    command.add_argument("-o", "--out", type=Path, required=True, help="new folder, or that of an earlier prediction")
    command.add_argument("--picture", action="store_true", help="also an overlay of each input, as PNG")
    command.add_argument("--site", help="the site whose model answers, or global, instead of the selector's choice")
    command.add_argument("--threshold", type=float, help="score above which a site's model answers, from 0 to 1")
    command.add_argument("--batch-size", type=_count, default=8, help="slices at a time; the answer is the same")
    command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where it computes")
    command.add_argument("--json", action="store_true", help="the record on standard output, the rest on stderr")
    command.set_defaults(command=_predict)


def _add_export(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("export", help="write a super model as TorchScript in a MONAI bundle")
    command.add_argument("super_model", type=Path, metavar="SUPERMODEL", help="folder of the super model")
    command.add_argument("-o", "--out", type=Path, required=True, help="new folder for the bundle")
    command.set_defaults(command=_export)


def _add_forget(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("forget", help="delete what this site keeps of a study; never its data")
    command.add_argument("study", metavar="STUDY", help="name of the study")
    command.add_argument("--site-config", type=Path, default=Path("local/site.yaml"), help="the site's site.yaml")
    command.add_argument("--site", metavar="NAME", help="of this site, where {site} stands in site.yaml")
    command.add_argument("--yes", action="store_true", help="do not ask")
    command.set_defaults(command=_forget)


def _add_check_site(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("check-site", help="say whether a site may join a study, before it does")
    command.add_argument("--kit", type=Path, required=True, help="the site's startup kit")
    command.add_argument("--study", type=Path, required=True, metavar="STUDY.yaml", help="the study's study.yaml")
    command.add_argument(
        "--site-config", type=Path, metavar="FILE", help="site.yaml; the kit's local/site.yaml by default"
    )
    command.add_argument("--skip", type=_names, default=[], metavar="NAMES", help="checks to leave out, as tls,clock")
    command.add_argument("--json", action="store_true", help="the findings as JSON")
    command.set_defaults(command=_check_site)


def _add_estimate(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("estimate", help="say what a job needs of lines, disks, memory and time")
    command.add_argument("job", type=Path, help="job folder, as jobs/harmofl_phantoms")
    command.add_argument("--sites", type=_count, required=True, help="number of sites")
    command.add_argument("--bandwidth", required=True, help="of the server's line, which the sites share, as 50Mbit")
    command.add_argument(
        "--examples", type=_count, default=500, help="for training at the largest site; 500 by default"
    )
    command.add_argument("--seconds-per-step", type=float, help="of the slowest site; measured here by default")
    command.add_argument("--image-size", metavar="HxW", help="of the sites' images, where the study leaves it open")
    command.add_argument("--write", type=Path, metavar="NEWJOB", help="copy the job with the timeouts that follow")
    command.add_argument("--json", action="store_true", help="the estimate as JSON")
    command.set_defaults(command=_estimate)


def _demo(options: argparse.Namespace) -> int:
    from silofl.studies.demo import run_demo

    return run_demo(options.out, options.jobs, _changes(options), _console())


def _import(options: argparse.Namespace) -> int:
    from silofl.data.importers import ImportOptions, import_layout

    settings = ImportOptions(
        options.seed,
        options.test,
        options.validation,
        options.sites,
        options.alpha,
        is_truncated=options.truncate,
        partition=options.partition,
        num_shards=options.shards,
    )
    summary = import_layout(options.layout, options.source, options.target, settings)
    if summary.classes:
        from silofl.report.maps import print_partition, write_partition

        write_partition(options.target, summary.classes)
    if options.json:
        print(json.dumps({key: value for key, value in asdict(summary).items() if value}))
        return ExitCode.COMPLETE
    for site, examples in summary.examples.items():
        counts = ", ".join(f"{number} {part}" for part, number in examples.items())
        print(f"{site}: {counts}, {summary.patients[site]} patients")
    for note in summary.notes:
        print(note)
    if summary.classes:
        print_partition(summary.classes, _console())
    return ExitCode.COMPLETE


def _simulate(options: argparse.Namespace) -> int:
    from silofl.studies import simulate
    from silofl.studies.simulation import Simulation

    if options.prepare:
        if options.job or options.out or options.leave_out:
            Parser(prog="silofl simulate").error("--prepare must stand alone; it only writes a workspace")
        return simulate.prepare(options.prepare)
    missing = [name for name, value in (("JOB", options.job), ("--out", options.out)) if value is None]
    if missing:
        Parser(prog="silofl simulate").error(f"JOB and --out must be given; missing: {', '.join(missing)}")
    _check_alone(options)
    data = str(options.data) if options.data else None
    pretrained = str(options.pretrained) if options.pretrained else None
    wanted = Simulation(
        data, tuple(options.sites), options.threads, options.leave_out, pretrained, is_alone=options.alone
    )
    console = _console(options.json)
    return _with_json(
        options, options.out, simulate.start(options.job, options.out, wanted, _changes(options), console)
    )


def _resume(options: argparse.Namespace) -> int:
    from silofl.studies import simulate

    return _with_json(options, options.run, simulate.resume(options.run, _console(options.json)))


def _compare(options: argparse.Namespace) -> int:
    from silofl.studies.compare import compare
    from silofl.studies.compared_runs import Comparison

    _check_alone(options)
    jobs, methods = tuple(options.jobs), tuple(options.methods)
    data = str(options.data) if options.data else None
    pretrained = str(options.pretrained) if options.pretrained else None
    asked = Comparison(jobs, methods, options.seeds, options.rounds, data, options.threads, options.pooled)
    asked = replace(asked, pretrained=pretrained, is_alone=options.alone)
    code = compare(asked, options.out, _console(options.json))
    if options.json and code != ExitCode.INTERRUPTED:
        print((options.out / "table.json").read_text(), end="")
    return code


def _pretrain(options: argparse.Namespace) -> int:
    from silofl.studies.pretrain import pretrain
    from silofl.studies.simulation import Simulation

    wanted = Simulation(str(options.data) if options.data else None)
    pretrain(options.job, options.out, wanted, options.share, options.epochs, _console())
    return ExitCode.COMPLETE


def _report(options: argparse.Namespace) -> int:
    from silofl.report.pages import write_comparison, write_report

    runs = [_run_in(path) for path in options.runs]
    if len(runs) == 1 and options.out is None:
        print(write_report(runs[0]))
    else:
        out = options.out or Path("comparison.html")
        if out.suffix != ".html":
            Parser(prog="silofl report").error(f"--out must end in .html, not {out.name}")
        print(write_comparison(runs, out))
    return ExitCode.COMPLETE


def _run_in(path: Path) -> Path:
    """Return the run's folder in the folder of a downloaded job, or the folder itself."""
    downloaded = path / "workspace" / "silofl"
    return downloaded if downloaded.is_dir() else path


def _predict(options: argparse.Namespace) -> int:
    from silofl.inference.command import Options, predict_inputs

    how = Options(options.picture, options.site, options.threshold, options.batch_size, options.device)
    code, records = predict_inputs(options.super_model, options.inputs, options.out, how, _console(options.json))
    if options.json:
        print(json.dumps(records))
    return code


def _export(options: argparse.Namespace) -> int:
    from silofl.inference.export import export_bundle

    print(export_bundle(options.super_model, options.out))
    return ExitCode.COMPLETE


def _forget(options: argparse.Namespace) -> int:
    from silofl.hospital.forget import forget, kept_of
    from silofl.settings import load
    from silofl.site import Site

    kept = kept_of(load(Site, options.site_config), options.study, options.site)
    lines = [f"{folder}: {files} files, {size} bytes" for folder, (files, size) in kept.folders.items()]
    print("\n".join(lines or [f"this site keeps nothing of study {options.study}"]))
    if lines and (options.yes or _is_agreed("delete this, the record of what left the site included? [y/N] ")):
        forget(kept)
        print("deleted: all of the above; results and the mixed models stay at the server")
    elif lines:
        print("nothing was deleted")
    for folder, reason in kept.shared.items():
        print(f"not deleted: {folder}; {reason}")
    return ExitCode.COMPLETE


def _is_agreed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        raise ConfigError("--yes must be given where nobody can answer; nothing was deleted") from None


def _check_site(options: argparse.Namespace) -> int:
    from silofl.hospital.candidate import read_candidate
    from silofl.hospital.check_site import check_site, print_checkup

    checkup = check_site(read_candidate(options.kit, options.study, options.site_config), options.skip)
    if options.json:
        print(json.dumps(checkup.as_dict(), indent=1))
    else:
        print_checkup(checkup, _console())
    return ExitCode.COMPLETE if checkup.may_join else ExitCode.FAILED


def _estimate(options: argparse.Namespace) -> int:
    from silofl.studies import estimate as estimation
    from silofl.studies.simulation import study_file
    from silofl.study import load_study

    size = estimation.parse_size(options.image_size) if options.image_size else None
    bandwidth = estimation.parse_bandwidth(options.bandwidth)
    setting = estimation.Setting(options.sites, bandwidth, options.examples, options.seconds_per_step, size)
    found = estimation.estimate(load_study(study_file(options.job)), setting)
    job = estimation.write_job(options.job, options.write, found) if options.write else None
    if options.json:
        print(json.dumps(found.as_dict(), indent=1))
    else:
        estimation.print_estimate(found, _console())
    if job:
        _console(options.json).print(f"{job} has the new timeout; its study.yaml has lost its comments", markup=False)
    return ExitCode.COMPLETE


def _console(is_json: bool = False) -> Console:
    return Console(stderr=is_json, highlight=False, soft_wrap=True)


def _with_json(options: argparse.Namespace, run: Path, code: int) -> int:
    if options.json and (run / "results.json").is_file():
        results, unseen = json.loads((run / "results.json").read_text()), run / "unseen.json"
        print(json.dumps(results | ({"unseen": json.loads(unseen.read_text())} if unseen.is_file() else {}), indent=1))
    return code


def _check_alone(options: argparse.Namespace) -> None:
    if options.alone and options.threads is not None:
        Parser(prog="silofl").error("--threads must not go with --alone, where sites take turns; leave one out")


def _changes(options: argparse.Namespace) -> dict[str, object]:
    """Return what the command line changes in the study."""
    return {key: getattr(options, key) for key in ("rounds", "seed") if getattr(options, key) is not None}


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, not {text!r}")
    return int(text)


def _seeds(text: str) -> tuple[int, ...]:
    return tuple(_natural(seed) for seed in text.split(","))


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be a share from 0 to below 1, not {text!r}")
    return value


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError(f"must give at least one name, not {text!r}")
    return names
