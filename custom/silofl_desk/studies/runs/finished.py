"""A finished simulation's sites: each one's model and its data, to measure what only a simulation has in one place."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from silofl.base.errors import ConfigError, DataError
from silofl.base.schema import read_file
from silofl.data.counts import FILE as DATA
from silofl.data.counts import DataCounts, SiteCounts, digest_data
from silofl.data.site_data import SiteData
from silofl.inference.contents import Contents
from silofl.study import STORED, Study, load_study
from silofl_desk.studies.runs import simulate
from silofl_desk.studies.runs.leave_out import assemble_models
from silofl_desk.studies.runs.simulated_sites import read_data
from silofl_desk.studies.runs.simulation import Moved, check_run, read_simulation, study_file


def read_finished_run(path: Path, moved: Moved) -> tuple[Contents, dict[str, SiteData]]:
    """Read the sites' models of a finished simulation, with the study, and each training site's data.

    Args:
        path: Folder of the run.
        moved: Folders that are not where the run read them.

    Raises:
        ConfigError: The folder holds no simulation, it is not finished, or its models or data are gone.
        DataError: A site's data is wrong, or not what the run learnt from.
    """
    check_run(path)
    if not simulate.is_finished(path):
        raise ConfigError(f"{path} has no result yet. Finish the run with silofl resume {quote(str(path))}.")
    models = assemble_models(path)
    study = load_study(study_file(path / "job"), STORED)
    counts = read_file(DataCounts, path / DATA)
    # A run of an older version has not recorded what it learnt from.
    return models, read_sites(study, path, moved, {path: counts.sites} if counts else {})


def read_sites(
    study: Study,
    run: Path,
    moved: Moved,
    learnt: Mapping[Path, Mapping[str, SiteCounts]],
    sites: Sequence[str] = (),
) -> dict[str, SiteData]:
    """Read the data of a simulation's sites, and check that they are those that runs learnt from.

    Args:
        run: Folder of the run.
        moved: Folders that are not where the run read them.
        learnt: Folder of a run -> site -> what it learnt from.
        sites: Their names; all training sites where empty.

    Raises:
        ConfigError: The folder of the data is not there, or that of decoded images is a file.
        DataError: A site's data is wrong, or not what a run learnt from.
    """
    # A site that was left out trained nothing.
    simulation = replace(read_simulation(run, moved), left_out=None)
    simulation = replace(simulation, sites=tuple(sites) or simulation.sites)
    if not simulation.data_folder.is_dir():
        raise ConfigError(f"Folder {simulation.data} of the sites' data is not there. Name it with --data.")
    data = read_data(study, simulation, run)
    for site, site_data in data.items():
        for path, counts in learnt.items():
            if not _is_learnt_from(counts.get(site), site_data):
                raise DataError(
                    f"{path} learnt from other data of {site!r} than those in {simulation.data}; name the folder with "
                    "--data, or compare runs on other data separately"
                )
    return data


def _is_learnt_from(counts: SiteCounts | None, data: SiteData) -> bool:
    if counts is None or data.manifest is None or counts.digest != data.manifest.digest:
        return False
    # A run that may leave unreadable files out records no digest of all files.
    return counts.content is None or counts.content == digest_data(data.manifest)
