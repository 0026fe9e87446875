"""The workspace of NVFlare's simulator: its class allow list and the settings of the simulated machines."""

from collections.abc import Sequence
from pathlib import Path

from silofl.base.files import read_json, write_json, write_text
from silofl.base.settings import dump_yaml
from silofl.flare.policy import SERVER_CLASSES, SITE_CLASSES
from silofl.setup.site import Server, Site
from silofl_desk.flare.submission import list_classes

# One list: in the simulator the server and all sites share a workspace. A job may name the filters there, to see what
# they record.
SIMULATED = (
    *SERVER_CLASSES,
    *SITE_CLASSES,
    "silofl.flare.filters.ExcludeBatchNorm",
    "silofl.flare.egress.RunNote",
    "silofl.flare.egress.Egress",
)


def other_classes(job: Path) -> list[str]:
    """Return what a job has NVFlare build beside the classes of SiloFL's own jobs, such as an MLflow receiver."""
    configurations = sorted(job.glob("*/config/config_fed_*.json"))
    named: set[str] = set()
    for file in configurations:
        named.update(list_classes(read_json(file)))
    return sorted(named - {*SIMULATED})


def prepare_workspace(workspace: Path, site: Site, server: Server, others: Sequence[str] = ()) -> None:
    """Write ``local/`` of a simulator workspace: resources.json, site.yaml and server.yaml.

    Args:
        workspace: The simulator's workspace; the simulator keeps its ``local/`` and deletes everything else.
        site: Settings of all simulated sites; ``{site}`` in them tells the sites apart.
        server: Settings of the simulated server.
        others: Classes that a job may name beside SiloFL's own.
    """
    local = workspace / "local"
    write_json(local / "resources.json", {"format_version": 2, "class_allow_list": [*SIMULATED, *others]})
    write_text(local / "site.yaml", dump_yaml(site.model_dump(exclude_none=True)))
    write_text(local / "server.yaml", dump_yaml(server.model_dump()))
