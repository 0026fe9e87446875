"""``silofl prepare``: make a workspace of NVFlare's own simulator, or of its POC, ready for a job."""

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from silofl.base.errors import ConfigError, ExitCode
from silofl.flare.commands import check_whole
from silofl.setup.extensions import list_allowed_extensions
from silofl.setup.site import Server
from silofl.study import Study
from silofl_desk.flare.poc import prepare_poc, read_poc
from silofl_desk.flare.workspace import link_sites, name_sites, other_classes, prepare_workspace
from silofl_desk.options import path_to_text
from silofl_desk.studies.simulated_sites import read_data, site_settings
from silofl_desk.studies.simulation import Simulation, check_code, check_pretrained, settle_job


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
    results, sites = prepare_simulation(workspace, job, wanted)
    if numbers := tell_numbers(name_sites(list(sites))):
        print(f"with -n in place of -c: {numbers}")
    places = f"{quote(str(job))} -w {quote(str(workspace))}"
    print(f"results: {results}\nnow run:\n{_find_nvflare()} simulator {places} -c {','.join(sites)} -t {len(sites)}")


def prepare_simulation(
    workspace: Path, job: Path, wanted: Simulation, names: Sequence[str] = ()
) -> tuple[Path, dict[str, str]]:
    """Prepare the workspace of NVFlare's simulator for a job, and read the sites' data.

    Args:
        names: What NVFlare will call the sites, by their names or by numbers; all sites where empty.

    Returns:
        The folder of the results, and name in NVFlare -> site of the data.

    Raises:
        ConfigError: The job, the command or the workspace is wrong, or a name is no site's.
        DataError: A site's data is wrong.
    """
    chosen = _choose_sites(job, wanted, names)
    results = write_workspace(workspace, job, chosen.everyone)
    read_data(chosen.study, chosen.simulation, results)
    return results, chosen.sites


def write_workspace(workspace: Path, job: Path, simulation: Simulation) -> Path:
    """Write ``local/`` of a workspace for NVFlare's own simulator: what it may build, and where the data lie.

    The simulator may call the sites by their names, or by numbers as `name_sites` does.

    Args:
        job: The job, whose other classes it may build too, where they are trusted.
        simulation: Names the sites, the data and the decoded images, as `settle_job` returns them, and says whether the
            job is trusted.

    Returns:
        The folder of the results, one folder per run, and of the sites' own states. The simulator deletes all but
        ``local/`` and ``startup/`` of the workspace when it starts, therefore the folder lies next to it.

    Raises:
        ConfigError: The simulator cannot use a workspace of this path, or would delete what lies there, or the job is
            not trusted.
    """
    workspace = workspace.resolve()
    check_whole("the workspace", workspace)
    if workspace.is_dir() and any(workspace.iterdir()) and not (workspace / "local" / "resources.json").is_file():
        raise ConfigError(
            f"the workspace must be a new folder, or one that was prepared before, not {workspace}, which holds other "
            "files; NVFlare's simulator would delete them: name another"
        )
    check_code(job, simulation)
    results = find_results_folder(workspace)
    # Outside local/, which NVFlare copies for every site, and with it what links lead to.
    links = results / "data"
    site = site_settings(simulation, results).model_copy(update={"data": f"{links}/{{site}}", "has_progress": False})
    link_sites(links, Path(simulation.data), simulation.sites)
    prepare_workspace(workspace, site, _server_settings(results), other_classes(job))
    return results


def find_results_folder(workspace: Path) -> Path:
    """Return the folder of the results of a simulator's workspace, next to it."""
    workspace = workspace.resolve()
    return workspace.with_name(workspace.name + "-results")


def _server_settings(results: Path) -> Server:
    """Return the settings of a server whose results go to a folder per run in ``results``, and to the lead."""
    return Server(run_dir=f"{results}/{{run}}", extensions=list_allowed_extensions())


def _prepare_poc(job: Path, wanted: Simulation) -> None:
    results, sites = prepare_poc_kits(job, wanted)
    if numbers := tell_numbers(sites):
        print(numbers)
    nvflare = _find_nvflare()
    print(f"results: {results}\nnow run:\n{nvflare} poc start\n{nvflare} job submit -j {quote(str(job))}")


def prepare_poc_kits(job: Path, wanted: Simulation) -> tuple[Path, dict[str, str]]:
    """Prepare the kits of NVFlare's POC for a job, and read the sites' data.

    Returns:
        The folder of the results, and name in the POC -> site of the data.

    Raises:
        ConfigError: There is no POC, the job or the command is wrong, or the POC has a site without data.
        DataError: A site's data is wrong.
    """
    poc = read_poc()
    chosen, results = _choose_sites(job, wanted, list(poc.sites)), poc.folder / "results"
    check_code(job, chosen.simulation)
    read_data(chosen.study, chosen.simulation, results)
    common, data = site_settings(chosen.simulation, results), chosen.simulation.data
    sites = {
        name: common.model_copy(update={"data": f"{data}/{site}", "has_progress": False})
        for name, site in chosen.sites.items()
    }
    prepare_poc(poc, _server_settings(results), sites, other_classes(job))
    return results, chosen.sites


@dataclass(frozen=True)
class _Chosen:
    """The sites that NVFlare names.

    Attributes:
        study: The job's.
        sites: Name in NVFlare -> site of the data.
        simulation: Of these sites.
        everyone: Of all sites that NVFlare may name.
    """

    study: Study
    sites: dict[str, str]
    simulation: Simulation
    everyone: Simulation


def _choose_sites(job: Path, wanted: Simulation, names: Sequence[str]) -> _Chosen:
    """Find the sites that NVFlare calls by these names or numbers, all where there are none, and check their study."""
    manifests = [Path(wanted.data or "") / name / "dataset.json" for name in names]
    if wanted.data and not wanted.sites and all(manifest.is_file() for manifest in manifests):
        # As --sites would; numbers are given to all sites.
        wanted = replace(wanted, sites=tuple(names))
    _, everyone = settle_job(job, wanted, {})
    sites = {name: _choose_site(name, everyone) for name in names or everyone.sites}
    study, simulation = settle_job(job, replace(wanted, sites=tuple(sites.values())), {})
    check_pretrained(job, study, simulation)
    return _Chosen(study, sites, simulation, everyone)


def _choose_site(name: str, everyone: Simulation) -> str:
    """Return the site of the data that NVFlare calls by this name or number."""
    known = name_sites(everyone.sites)
    if name not in known:
        raise ConfigError(
            f"site {name!r} of NVFlare must be among {', '.join(everyone.sites)}, whose data are in {everyone.data}, "
            f"or one of {len(everyone.sites)} that NVFlare has numbered; name its clients so, as nvflare poc prepare "
            f"--force -c {' '.join(everyone.sites)} does, or name other data"
        )
    return known[name]


def tell_numbers(sites: Mapping[str, str]) -> str:
    """Say which sites NVFlare calls by a number."""
    return ", ".join(f"{name} is {site}" for name, site in sites.items() if name != site)


def _find_nvflare() -> str:
    """Return the command of this Python's NVFlare: another one would not have this package."""
    own = Path(sys.executable).with_name("nvflare")
    found = shutil.which("nvflare")
    is_first = found is not None and own.exists() and Path(found).samefile(own)
    return "nvflare" if is_first or not own.exists() else quote(str(own))
