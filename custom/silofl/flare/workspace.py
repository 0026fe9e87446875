"""The workspace of NVFlare's simulator: its class allow list and the settings of the simulated machines."""

from pathlib import Path

import yaml

from silofl.files import write_json, write_text
from silofl.flare.places import local_file
from silofl.flare.policy import SERVER_CLASSES, SITE_CLASSES
from silofl.settings import load
from silofl.site import Server, Site


def prepare_workspace(workspace: Path, site: Site, server: Server) -> None:
    """Write ``local/`` of a simulator workspace: resources.json, site.yaml and server.yaml.

    Args:
        workspace: The simulator's workspace; the simulator keeps its ``local/`` and deletes everything else.
        site: Settings of all simulated sites; ``{site}`` in them tells the sites apart.
        server: Settings of the simulated server.
    """
    local = workspace / "local"
    # One list: in the simulator the server and all sites share a workspace. A job may name the filters there, to see
    # what they record.
    filters = ("silofl.flare.egress.RunNote", "silofl.flare.egress.Egress")
    resources = {"format_version": 2, "class_allow_list": [*SERVER_CLASSES, *SITE_CLASSES, *filters]}
    write_json(local / "resources.json", resources)
    write_text(local / "site.yaml", yaml.safe_dump(site.model_dump(exclude_none=True)))
    write_text(local / "server.yaml", yaml.safe_dump(server.model_dump()))


def simulated_site(workspace: Path, name: str) -> Site:
    """Read a simulated site's settings as they are now: its own ``NAME/local/site.yaml``, or that of all sites.

    Raises:
        ConfigError: There is none, or it is wrong.
    """
    return load(Site, local_file(workspace / name, "site.yaml") or workspace / "local" / "site.yaml")
