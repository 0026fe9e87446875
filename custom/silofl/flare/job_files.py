"""The files that a job may bring, checked by server and hospitals before they use any of them.

NVFlare 2.9 runs code of a job that has no ``custom`` folder: it takes settings from any ``resources.json`` below a kit,
where jobs' folders lie, and imports the module that one names, which may lie there too. And it reads configurations in
HOCON, which includes other files of the machine and addresses of its network. What goes round jobs altogether is in
`silofl.flare.messages`, what a lead says of a job in `silofl.flare.job_meta`; both take effect with the check of files,
which every machine must have.
"""

from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE

from silofl.flare.blocked import BlockList
from silofl.flare.job_meta import refuse_meta
from silofl.flare.messages import MOST_BYTES, guard_messages, restrict_commands
from silofl.flare.nvflare_patches import read_json_only
from silofl.flare.one_machine import refuse_second_machines
from silofl.flare.paths import mark_in_use
from silofl.flare.proxy import use_proxy
from silofl.models.weights import SUFFIXES

FILES = ("config_fed_client.json", "config_fed_server.json", "study.yaml")
FOLDERS = frozenset({"config", "custom"})
SIGNATURES = (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)


class JobFiles(AppValidator, FLComponent):
    """Lets in a study, its two configurations, a model to begin from and NVFlare's signatures; ``app_validator``.

    Where it is built, NVFlare reads JSON alone: it reads a job's configurations before it asks. And from then on a
    hospital shows no files, and a server passes on no commands.

    Args:
        has_custom: Whether a job may bring code in a folder ``custom``: NVFlare then asks for the right ``byoc``.
    """

    def __init__(self, has_custom: bool = False) -> None:
        super().__init__()
        self._folders = FOLDERS if has_custom else FOLDERS - {"custom"}
        self._blocked = BlockList(Path.cwd())
        read_json_only()
        # Kept open for `silofl site forget`, which deletes only where the site does not run.
        self._in_use: IO[str] | None = None
        restrict_commands()
        refuse_second_machines()
        use_proxy(Path.cwd())

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Guard the server's messages once it has begun, and block a job of which its lead says what nobody may."""
        if event_type == EventType.SUBMIT_JOB:
            reason = refuse_meta(fl_ctx.get_prop(FLContextKey.JOB_META))
            if reason is not None:
                fl_ctx.set_prop(FLContextKey.JOB_BLOCK_REASON, reason, private=True, sticky=False)
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self._in_use = mark_in_use(Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()))
            cell = fl_ctx.get_prop(FLContextKey.SITE_OBJ).cell
            if cell.get_fqcn() == FQCN.ROOT_SERVER:
                guard_messages(cell)

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """Return why an app may not be deployed, empty where it may, and no properties."""
        app = Path(app_folder)
        if reason := refuse_app(app, self._folders):
            return reason, {}
        for path in app.rglob(NVFLARE_SUBMITTER_CRT_FILE):
            if name := self._blocked.find_signer(path):
                return f"a job must be signed by somebody whose certificate is not blocked, not by {name}", {}
        return "", {}


def refuse_app(app: Path, folders: Collection[str]) -> str:
    """Return why an app may not be deployed, whoever sends it; empty where it may.

    Args:
        folders: Those that it may hold.
    """
    paths = [path for path in sorted(app.rglob("*")) if not (path.parent == app and path.name in folders)]
    odd = next((path.relative_to(app).as_posix() for path in paths if not _is_known(path, app, folders)), None)
    if odd is not None:
        return f"a job of SiloFL must hold {', '.join(FILES)} and a model alone, not {odd[:200]!r}; delete it"
    num_bytes = sum(path.stat().st_size for path in paths)
    if num_bytes > MOST_BYTES:
        return f"a job must have at most {MOST_BYTES // 1024**3} GiB, not {num_bytes / 1024**3:.1f}"
    return ""


def _is_known(path: Path, app: Path, folders: Collection[str]) -> bool:
    if "custom" in folders and path.is_relative_to(app / "custom"):
        return not path.is_symlink()
    if path.is_symlink() or not path.is_file():
        return False
    if path.name in SIGNATURES:
        return path.parent in (app, app / "config")
    return path.parent == app / "config" and (path.name in FILES or path.suffix in SUFFIXES)
