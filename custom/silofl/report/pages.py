"""The pages: report.html of one run and the comparison of several, each one file without anything from outside."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from silofl.errors import ConfigError, ExitCode
from silofl.files import write_text
from silofl.report.contents import comparison_values, report_values
from silofl.report.folder import read_run


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl report``."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run, or of a downloaded job")
    parser.add_argument("--out", type=Path, help="of the comparison of several runs; comparison.html by default")


def run(options: argparse.Namespace) -> int:
    """Write the page of one run, or that of several, and print its path."""
    runs = [_run_in(path) for path in options.runs]
    if len(runs) == 1 and options.out is None:
        print(write_report(runs[0]))
        return ExitCode.COMPLETE
    out = options.out or Path("comparison.html")
    if out.suffix != ".html":
        raise ConfigError(f"--out must end in .html, not {out.name}; name a page")
    print(write_comparison(runs, out))
    return ExitCode.COMPLETE


def _run_in(path: Path) -> Path:
    """Return the run's folder in the folder of a downloaded job, or the folder itself."""
    downloaded = path / "workspace" / "silofl"
    return downloaded if downloaded.is_dir() else path


def write_report(run: Path) -> Path:
    """Write ``report.html`` into a run's folder and return its path; an unfinished run gets one too.

    Raises:
        ConfigError: The folder is no run, one of its files is broken, or it cannot be written to.
    """
    records = read_run(run)
    return _write(run / "report.html", _render("report.html.j2", report_values(records)))


def write_comparison(runs: Sequence[Path], out: Path) -> Path:
    """Write one page with the results, curves and predictions of several runs side by side, and return its path.

    Args:
        runs: The runs' folders.
        out: The page's file.

    Raises:
        ConfigError: No run was named, a folder is no run, or the page cannot be written.
    """
    if not runs:
        raise ConfigError("a comparison must have at least one run, not none; name the runs' folders")
    records = [read_run(run) for run in runs]
    return _write(out, _render("comparison.html.j2", comparison_values(records)))


def _render(template: str, values: dict[str, Any]) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)


def _write(path: Path, page: str) -> Path:
    if path.is_dir():
        raise ConfigError(
            f"{path} must be a file to write, not a folder; name one in it, as {path / 'comparison.html'}"
        )
    try:
        write_text(path, page)
    except OSError as error:
        raise ConfigError(f"{path} must be writable; it is not: {error.strerror or error}") from None
    return path
