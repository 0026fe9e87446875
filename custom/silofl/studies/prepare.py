"""``silofl prepare``: make a workspace of NVFlare's own simulator, or of its POC, ready for a job."""

import argparse
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from shlex import quote

from silofl.errors import ConfigError, ExitCode
from silofl.flare.poc import prepare_poc, read_poc
from silofl.flare.workspace import name_sites, other_classes
from silofl.options import add_cache, add_data, parse_names, path_to_text
from silofl.studies.simulate import add_trust, prepare_simulator, read_data, server_settings, site_settings
from silofl.studies.simulation import Simulation, check_code, check_pretrained, settle_job


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``silofl prepare``."""
    parser.add_argument("workspace", type=Path, nargs="?", help="of nvflare simulator, made where it is not there")
    parser.add_argument("job", type=Path, help="job folder, as jobs/harmofl_phantoms")
    poc = "prepare the workspace of nvflare poc instead, after nvflare poc prepare"
    parser.add_argument("--poc", action="store_true", help=poc)
    add_data(parser)
    add_cache(parser)
    parser.add_argument("--sites", type=parse_names, default=[], help="that may take part, as a,b; all by default")
    add_trust(parser)


def run(options: argparse.Namespace) -> int:
    """Prepare the workspace and print the commands that follow."""
    if options.poc and options.workspace:
        raise ConfigError(
            f"--poc must go without WORKSPACE, not with {options.workspace}; it takes that of nvflare poc, which the "
            "variable NVFLARE_POC_WORKSPACE names"
        )
    if not options.poc and not options.workspace:
        raise ConfigError("WORKSPACE must be given, the folder for nvflare simulator -w; or give --poc")
    wanted = Simulation(
        data=path_to_text(options.data),
        sites=tuple(options.sites),
        cache=path_to_text(options.cache),
        trusts_code=options.trust_code,
    )
    if options.poc:
        _prepare_poc(options.job, wanted)
    else:
        _prepare_simulator(options.workspace, options.job, wanted)
    return ExitCode.COMPLETE


def _prepare_simulator(workspace: Path, job: Path, wanted: Simulation) -> None:
    study, simulation = settle_job(job, wanted, {})
    check_pretrained(job, study, simulation)
    results = prepare_simulator(workspace, job, simulation)
    read_data(study, simulation, results)
    names = ",".join(simulation.sites)
    if numbers := _tell_numbers(name_sites(simulation.sites)):
        print(f"with -n in place of -c: {numbers}")
    places = f"{quote(str(job))} -w {quote(str(workspace))}"
    print(f"results: {results}\nnow run:\n{_find_nvflare()} simulator {places} -c {names} -t {len(simulation.sites)}")


def _prepare_poc(job: Path, wanted: Simulation) -> None:
    poc, (_, everyone) = read_poc(), settle_job(job, wanted, {})
    chosen = {name: _choose_site(name, everyone) for name in poc.sites}
    study, simulation = settle_job(job, replace(wanted, sites=tuple(chosen.values())), {})
    check_code(job, simulation)
    check_pretrained(job, study, simulation)
    results = poc.folder / "results"
    read_data(study, simulation, results)
    common = site_settings(simulation, results)
    sites = {
        name: common.model_copy(update={"data": f"{simulation.data}/{site}", "has_progress": False})
        for name, site in chosen.items()
    }
    prepare_poc(poc, server_settings(results), sites, other_classes(job))
    if numbers := _tell_numbers(chosen):
        print(numbers)
    nvflare = _find_nvflare()
    print(f"results: {results}\nnow run:\n{nvflare} poc start\n{nvflare} job submit -j {quote(str(job))}")


def _choose_site(name: str, everyone: Simulation) -> str:
    """Return the site whose data a site of the POC has."""
    known = name_sites(everyone.sites)
    if name not in known:
        raise ConfigError(
            f"site {name!r} of the POC must be among {', '.join(everyone.sites)}, whose data are in {everyone.data}, "
            f"or one of {len(everyone.sites)} that NVFlare has numbered; run nvflare poc prepare --force "
            f"-c {' '.join(everyone.sites)}, or give --data"
        )
    return known[name]


def _tell_numbers(sites: dict[str, str]) -> str:
    """Say which sites NVFlare calls by a number."""
    return ", ".join(f"{name} is {site}" for name, site in sites.items() if name != site)


def _find_nvflare() -> str:
    """Return the command of this Python's NVFlare: another one would not have this package."""
    own = Path(sys.executable).with_name("nvflare")
    found = shutil.which("nvflare")
    is_first = found is not None and own.exists() and Path(found).samefile(own)
    return "nvflare" if is_first or not own.exists() else quote(str(own))
