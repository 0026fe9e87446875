"""The workspace of ``nvflare poc``: a kit per participant, all of them on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nvflare.tool.poc.poc_commands import get_poc_docker_runtime_config, get_poc_workspace, get_prod_dir

from silofl.base.errors import ConfigError
from silofl.base.files import write_json, write_text
from silofl.base.settings import dump_yaml, read_yaml
from silofl.flare.commands import check_start
from silofl.flare.kit import Kit, read_kit
from silofl.flare.policy import SERVER_CLASSES, SITE_CLASSES, read_class_policy
from silofl.setup.site import Server, Site

# What a site must have to take part: its filters, as in site_configs/.
PRIVACY = {
    "scopes": [
        {
            "name": "silofl",
            "task_data_filters": [{"path": "silofl.flare.egress.RunNote", "direction": "in"}],
            "task_result_filters": [{"path": "silofl.flare.egress.Egress", "direction": "out"}],
        }
    ],
    "default_scope": "silofl",
}


@dataclass(frozen=True)
class Poc:
    """A workspace of ``nvflare poc``.

    Attributes:
        folder: Of the workspace.
        server: The server's kit.
        sites: The sites' kits, by name.
    """

    folder: Path
    server: Kit
    sites: dict[str, Kit]


def read_poc() -> Poc:
    """Read the workspace of ``nvflare poc``, where NVFlare itself looks for it.

    Raises:
        ConfigError: ``nvflare poc prepare`` has made none there, or NVFlare cannot start it.
    """
    folder = Path(get_poc_workspace()).resolve()
    if not (folder / "project.yml").is_file():
        raise ConfigError(
            f"{folder} must be a workspace that `nvflare poc prepare` has made, with a project.yml, which is not "
            "there; run nvflare poc prepare first, or name another in NVFLARE_POC_WORKSPACE"
        )
    check_start(folder)
    project = read_yaml(folder / "project.yml")
    if docker := get_poc_docker_runtime_config(project):
        raise ConfigError(
            f"the POC in {folder} must run without Docker, not in image {docker['parent']['docker_image']!r}, whose "
            "containers see neither this environment nor the sites' data; run nvflare poc prepare --force without -d"
        )
    prod = Path(get_prod_dir(str(folder), str(project.get("name"))))
    kits = [read_kit(place.parent) for place in sorted(prod.glob("*/startup"))]
    servers = [kit for kit in kits if kit.kind == "server"]
    if not servers:
        raise ConfigError(f"{prod} must hold the kit of a server, not none; run nvflare poc prepare --force")
    return Poc(folder, servers[0], {kit.name: kit for kit in kits if kit.kind == "hospital"})


def prepare_poc(poc: Poc, server: Server, sites: dict[str, Site], others: Sequence[str] = ()) -> None:
    """Let a POC's participants run SiloFL's jobs: what they may build, their settings, and the record of what leaves.

    What NVFlare lets them build stays, so that its own jobs run there as before.

    Args:
        sites: Name -> settings of the site.
        others: Classes that a job may name beside SiloFL's own.
    """
    _allow(poc.server, [*SERVER_CLASSES, *others])
    write_text(poc.server.folder / "local" / "server.yaml", dump_yaml(server.model_dump()))
    for name, site in sites.items():
        local = poc.sites[name].folder / "local"
        _allow(poc.sites[name], [*SITE_CLASSES, *others])
        write_json(local / "privacy.json", PRIVACY)
        write_text(local / "site.yaml", dump_yaml(site.model_dump(exclude_none=True)))


def _allow(kit: Kit, classes: Sequence[str]) -> None:
    """Add classes to those that a kit's participant builds for jobs."""
    resources, allowed = kit.local("resources.json")[1], [*read_class_policy(kit).allowed]
    allowed += [name for name in classes if name not in allowed]
    write_json(kit.folder / "local" / "resources.json", resources | {"class_allow_list": allowed})
