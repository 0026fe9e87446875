"""``silofl prepare``: make a workspace of NVFlare's own simulator ready for a job."""

import argparse
from pathlib import Path
from shlex import quote

from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import make_folder
from silofl.flare.commands import check_whole
from silofl.setup.extensions import list_allowed_extensions
from silofl.setup.site import Server
from silofl_desk.flare.workspace import other_classes, prepare_workspace
from silofl_desk.options import path_to_text
from silofl_desk.studies.runs.simulated_sites import read_data, site_settings
from silofl_desk.studies.runs.simulation import Simulation, check_code, check_pretrained, settle_job


def run(options: argparse.Namespace) -> int:
    """Prepare the workspace and print the command that follows."""
    wanted = Simulation(
        data=path_to_text(options.data),
        sites=tuple(options.sites),
        cache=path_to_text(options.cache),
        trusts_code=options.trust_code,
    )
    study, simulation = settle_job(options.job, wanted, {})
    check_pretrained(options.job, study, simulation)
    # The workspace is refused before data are read, which may take minutes.
    results = write_workspace(options.workspace, options.job, simulation)
    # NVFlare's sites then find the images decoded, and a fault shows here.
    read_data(study, simulation, results)
    sites = simulation.sites
    folders = f"{quote(str(options.job))} -w {quote(str(options.workspace))}"
    print(f"results: {results}\nnow run:\nnvflare simulator {folders} -c {','.join(sites)} -t {len(sites)}")
    return ExitCode.COMPLETE


def write_workspace(workspace: Path, job: Path, simulation: Simulation) -> Path:
    """Write ``local/`` of a workspace for NVFlare's own simulator: what it may build, and where the data lie.

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
            f"The workspace {workspace} holds files that NVFlare's simulator would delete. Name a new folder, or one "
            "that was prepared before."
        )
    check_code(job, simulation)
    results = workspace.with_name(workspace.name + "-results")
    make_folder(results)
    # Progress bars of several processes would write over each other.
    site = site_settings(simulation, results).model_copy(update={"has_progress": False})
    server = Server(run_dir=f"{results}/{{run}}", extensions=list_allowed_extensions())
    prepare_workspace(workspace, site, server, other_classes(job))
    return results
