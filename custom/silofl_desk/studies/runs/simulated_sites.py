"""The sites of a simulation: their settings, and their data, which are read before any training."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from silofl.base.errors import DataError
from silofl.base.files import write_json
from silofl.base.schema import dump_record
from silofl.core.gain import describe_few_units
from silofl.data.counts import FILE as DATA
from silofl.data.counts import DataCounts, SiteCounts, digest_data
from silofl.data.site_data import SiteData, load_site_data
from silofl.data.transforms import check_transforms
from silofl.data.units import count_test_units
from silofl.models.networks import check_network
from silofl.setup.extensions import check_extensions, list_allowed_extensions
from silofl.setup.site import Site
from silofl.study import Study
from silofl.training.device import choose_device
from silofl.training.extra_metrics import check_extra_metrics
from silofl.training.losses import check_loss
from silofl_desk.studies.runs.shared_batchnorm import list_batchnorm_cautions
from silofl_desk.studies.runs.simulation import Simulation
from silofl_hospital.site.input_warnings import count_labels, find_label_warnings, find_warnings


def read_data(study: Study, simulation: Simulation, run: Path) -> dict[str, SiteData]:
    """Read and cache every site's data, so that a fault shows before any training."""
    check_extensions(study.extensions)
    check_transforms(study)
    choose_device(study.device)
    names = list(simulation.sites)
    if simulation.left_out:
        names.append(simulation.left_out)
    # All sites are read before the first one trains, so that a fault at the last one costs no hours.
    data = {name: load_site(study, simulation, run, name) for name in names}
    shape = data[names[0]].image_shape
    check_network(study, shape)
    check_loss(study, shape)
    check_extra_metrics(study, shape)
    return data


def look_at_data(
    run: Path, simulation: Simulation, study: Study, data: Mapping[str, SiteData], console: Console
) -> None:
    """Write what only the sites know in a real federation of the training sites' data, and say what is doubtful."""
    warnings = {site: _find_warnings(site_data, study) for site, site_data in data.items()}
    counts = {}
    for name in simulation.sites:
        counts[name] = SiteCounts.of(data[name], warnings[name])
        manifest = data[name].manifest
        # What is left out stays so, whatever becomes of its files.
        if manifest is not None and not simulation.skip_unreadable:
            counts[name] = replace(counts[name], content=digest_data(manifest))
    write_json(run / DATA, dump_record(DataCounts(counts)))
    cautions = list_batchnorm_cautions(study)
    if study.compares_with_baseline:
        cautions += describe_few_units({name: count_test_units(data[name]) for name in counts})
    for sentence in cautions:
        console.print(f"CAUTION  {sentence}", markup=False)
    for site, sentences in warnings.items():
        for sentence in sentences:
            console.print(f"CAUTION  {site}: {sentence}", markup=False)


def _find_warnings(data: SiteData, study: Study) -> list[str]:
    if study.task != "segmentation":
        # That a site has examples of some classes alone is what many partitions are made for.
        return find_warnings(data, study)
    return find_label_warnings(data, study, count_labels(data.training, study)) + find_warnings(data, study)


def load_site(study: Study, simulation: Simulation, run: Path, name: str) -> SiteData:
    """Read and cache one site's data; the errors of `load_site_data` name the site."""
    site = site_settings(simulation, run)
    cache = site.cache_folder(study.name, name)
    try:
        return load_site_data(site.data_folder(study.name, name), study, cache, skip_unreadable=site.skip_unreadable)
    except DataError as error:
        raise DataError(f"site {name!r}: {error}") from None


def site_settings(simulation: Simulation, run: Path) -> Site:
    """Return the settings of all simulated sites, which keep their own states in ``sites/`` of the run's folder."""
    # The sites' processes have working folders of their own.
    run = run.resolve()
    return Site(
        data=f"{simulation.data}/{{site}}",
        state_dir=f"{run}/sites/{{site}}",
        cache_dir=simulation.cache or f"{simulation.data}/.silofl-cache",
        has_progress=True,
        skip_unreadable=simulation.skip_unreadable,
        # Nothing leaves this machine, and many public sets know no patients.
        min_patients=0,
        min_partners=0,
        extensions=list_allowed_extensions(),
    )
