"""What people and machine of a kit follow: INSTALL.md, pages, and files for systemd, nftables, containers and Slurm."""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from nvflare.tool.cert.fingerprint import cert_fingerprint_sha256

from provisioning.supply import LOCK, SBOM, digest_file, is_for_gpu, list_own, read_lock, read_target
from provisioning.workspace import REPOSITORY
from silofl.base.files import make_folder, write_text
from silofl.base.settings import load_settings, read_yaml
from silofl.federation.needs import GIB, site_disk_bytes, site_memory_bytes
from silofl.flare.kit import Kit
from silofl.flare.policy import count_job_gpus
from silofl.flare.stores import read_stores
from silofl.setup.site import Site
from silofl.setup.software import find_installed_version
from silofl.study import load_study
from silofl_hospital.site.candidate import Candidate

# INSTALL.md has a hospital put the software, everything else, and the kit here.
SOFTWARE = "/opt/silofl"
HOME = "/var/lib/silofl"
FOLDER = f"{HOME}/kit"
STUDY = "study.yaml"
SYSTEM = "system"
PAGES = "docs"
SUMS = "SHA256SUMS"
# These files come with a kit; its logs and jobs come later.
CAME = ("*.whl", LOCK, SBOM, STUDY, "startup/*", "local/*", f"{SYSTEM}/*", f"{PAGES}/*")
TEMPLATES = Path(__file__).parent
ENVIRONMENT = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True)
# Only a site gets this one: a server is no batch job.
BATCH = "silofl.sbatch"
# Page of a kit -> the repository's, and where links of these lead in a kit.
READ = {name: f"docs/{name}" for name in ("hospital-it.md", "privacy.md", "security.md")}
READ["reporting.md"] = "SECURITY.md"
MOVED = {"](../site_configs/": "](../local/", "](../SECURITY.md": "](reporting.md", "](docs/": "]("}
CHECKER = "check_dossier.py"
# These kinds of kits are machines with a service of their own.
ROLES = {"hospital": "site", "server": "server"}
LINK = re.compile(r"\[(?P<words>[^]]+)\]\((?P<file>[^)#]*)(#[^)]*)?\)")
GUIDES = {
    "hospital": "INSTALL.md.j2",
    "server": "INSTALL_server.md.j2",
    "admin": "INSTALL_person.md.j2",
}
# The packages of a lock once installed: with torch for the CPU as measured, for a GPU by the size of its files.
SOFTWARE_BYTES = 2 * GIB
GPU_BYTES = 7 * GIB


def write_guide(kit: Kit, facts: Mapping[str, Any]) -> None:
    """Write the INSTALL.md of a server or a hospital, and the files for its machine.

    Args:
        kit: The kit, with its policies and, where the lead gives one, its study.
        facts: What INSTALL.md has people compare: ``packages``, each with ``name`` and ``checksum``, and
            ``lock_checksum``.

    Raises:
        ConfigError: The kit's study or site.yaml is wrong.
    """
    values = _common_facts(kit) | _lock_facts(kit.folder / LOCK) | facts
    if kit.kind == "hospital":
        values |= _folder_facts(kit) | _resource_facts(kit)
    if kit.kind == "server":
        values |= _server_folders(kit)
    values["role"] = ROLES[kit.kind]
    make_folder(kit.folder / SYSTEM)
    values |= _container_facts(kit)
    for template in sorted((TEMPLATES / SYSTEM).glob("*.j2")):
        if kit.kind == "server" and template.stem == BATCH:
            continue
        text = ENVIRONMENT.get_template(f"{SYSTEM}/{template.name}").render(values)
        write_text(kit.folder / SYSTEM / template.stem, text)
    _put_pages(kit.folder)
    # The checksums come last, when all that they are of is there; INSTALL.md itself names theirs.
    write_text(kit.folder / SUMS, _format_checksums(kit.folder))
    values["sums"] = digest_file(kit.folder / SUMS)
    _write_install(kit, values)


def write_persons_guide(kit: Kit) -> None:
    """Write the INSTALL.md of a person, and the checksums of what came, where the role installs something."""
    values = _common_facts(kit) | {"nvflare": find_installed_version("nvflare")}
    if list_own(kit.role):
        write_text(kit.folder / SUMS, _format_checksums(kit.folder))
        values |= _lock_facts(kit.folder / LOCK) | {"sums": digest_file(kit.folder / SUMS)}
    _write_install(kit, values)


def _common_facts(kit: Kit) -> dict[str, Any]:
    return {
        "kit": kit,
        "host": kit.address.host,
        "port": kit.address.port,
        "root": cert_fingerprint_sha256(kit.root),
        "software": SOFTWARE,
    }


def _lock_facts(lock: Path) -> dict[str, Any]:
    python, size = read_target(lock)
    number = python or "3.11"
    return {
        "python": f"Python {number}",
        "command": f"python{number}",
        "size": size,
        "for_gpu": is_for_gpu(read_lock(lock)),
    }


def _write_install(kit: Kit, values: Mapping[str, Any]) -> None:
    write_text(kit.folder / "INSTALL.md", ENVIRONMENT.get_template(GUIDES[kit.kind]).render(values))


def _put_pages(folder: Path) -> None:
    # A link to what is not in the kit becomes its words.
    for name, source in READ.items():
        text = (REPOSITORY / source).read_text(encoding="utf-8")
        for old, new in MOVED.items():
            text = text.replace(old, new)
        make_folder(folder / PAGES)
        write_text(folder / PAGES / name, LINK.sub(lambda link: _rewrite_link(link, folder), text))
    write_text(folder / PAGES / CHECKER, (TEMPLATES / CHECKER).read_text(encoding="utf-8"))


def _rewrite_link(link: re.Match[str], folder: Path) -> str:
    target = link["file"]
    is_in_kit = not target or target in READ or (folder / PAGES / target).is_file()
    return link[0] if is_in_kit else link["words"]


def _format_checksums(folder: Path) -> str:
    lines = []
    for pattern in CAME:
        for path in sorted(folder.glob(pattern)):
            # The key is nobody's business, and the certificate is renewed every year.
            if path.is_file() and path.suffix not in (".key", ".crt"):
                lines.append(f"{digest_file(path)}  {path.relative_to(folder)}\n")
    return "".join(lines)


def _folder_facts(kit: Kit) -> dict[str, Any]:
    settings = read_yaml(kit.folder / "local" / "site.yaml")
    study = load_study(kit.folder / STUDY).name if (kit.folder / STUDY).is_file() else "STUDY"
    data = settings["data"]
    if isinstance(data, dict):
        data = data.get(study, f"{HOME}/data/{{study}}")
    data = data.replace("{study}", study).replace("{site}", kit.name)
    state = _fixed_part(settings["state_dir"])
    # Without a cache_dir of its own a site's cache is beside its state.
    cache = _fixed_part(settings.get("cache_dir") or settings["state_dir"])
    return {
        "home": HOME,
        "folder": FOLDER,
        "data": data,
        "data_parent": str(Path(data).parent),
        "state_parent": state,
        "written": _list_written({state, cache}),
        "keeps_all": settings.get("keep_days") is None,
    }


def _container_facts(kit: Kit) -> dict[str, Any]:
    # A name of Kubernetes has small letters, digits and hyphens, and at most 63 of them.
    words = "-".join(re.findall("[a-z0-9]+", kit.name.lower()))
    is_numeric = False
    with suppress(ValueError):
        is_numeric = bool(ip_address(kit.address.host))
    return {"namespace": f"silofl-{words}"[:63].rstrip("-"), "is_numeric": is_numeric, "gpus": count_job_gpus(kit)}


def _server_folders(kit: Kit) -> dict[str, str]:
    runs = _fixed_part(read_yaml(kit.folder / "local" / "server.yaml")["run_dir"])
    folders = {runs, *read_stores(kit.local("resources.json")[1])}
    places = " ".join(sorted(folders))
    return {"home": HOME, "folder": FOLDER, "places": places, "written": _list_written(folders)}


def _list_written(folders: Collection[str]) -> str:
    # systemd lets a service write there; what lies in its home needs no word of its own.
    outside = [folder for folder in folders if not Path(folder).is_relative_to(HOME)]
    return " ".join([HOME, *sorted(outside)])


def _fixed_part(folder: str) -> str:
    # Up to the first name that is filled in, the path is the same for all studies.
    return re.split(r"[{$]", folder)[0].rstrip("/")


def _resource_facts(kit: Kit) -> dict[str, Any]:
    size = GPU_BYTES if is_for_gpu(read_lock(kit.folder / LOCK)) else SOFTWARE_BYTES
    software = f"{size / GIB:.0f} GiB"
    path = kit.folder / STUDY
    if not path.is_file():
        return {"study": None, "disk": software}
    study = load_study(path)
    candidate = Candidate(kit, study, path, load_settings(Site, kit.folder / "local" / "site.yaml"))
    return {
        "study": study,
        "disk": software,
        "state": f"{site_disk_bytes(study, candidate.num_sites) / GIB:.2f} GiB",
        "memory": f"{site_memory_bytes(study) / GIB:.1f} GiB",
    }
