"""What can be known of a job before its lead submits it: what every server refuses, and what sites may refuse."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from silofl.base.bundled_jobs import META
from silofl.base.errors import ConfigError
from silofl.base.files import read_json
from silofl.base.settings import read_yaml
from silofl.flare.components import check_components
from silofl.flare.job_files import FILES, FOLDERS, refuse_app
from silofl.flare.job_meta import find_unreached, refuse_meta
from silofl.flare.policy import SERVER_CLASSES, SITE_CLASSES
from silofl.models.weights import read_start
from silofl.parts.load import list_outbound_payloads
from silofl.study import Study

CLASSES = {"config_fed_client.json": SITE_CLASSES, "config_fed_server.json": SERVER_CLASSES}
# A link to site_configs/hospital/site.yaml, from which a hospital's kit is made.
READY_MADE = Path(__file__).parent / "site.yaml"


def check_job(job: Path, study: Study) -> list[str]:
    """Return what a lead must know of a job, in sentences: the digest that some sites pin, what they may refuse.

    Raises:
        ConfigError: The job holds files, or says of itself, what no server takes, lacks a file that it must hold, or
            names the executor or controller of another algorithm.
    """
    app = job / "app"
    reason = refuse_app(app, FOLDERS) or refuse_meta(read_json(job / META))
    if reason:
        raise ConfigError(f"{job}: {reason}")
    _check_deployed(job, study)
    for name in FILES:
        if not (app / "config" / name).is_file():
            raise ConfigError(f"{app}/config has no {name}; take it from a job of jobs/")
    check_components(app / "config", study.algorithm.name)
    notices = [f"hospitals that pin their studies take part where they have pinned this digest: {study.digest}"]
    # An evaluation and a survey train no model.
    if study.rounds:
        notices.append(study.recipe.delivered)
    notices += study.cautions
    if (app / "custom").exists():
        notices.append(f"{app}/custom is code, which server and hospitals refuse but laboratories that allow it")
    for name, allowed in CLASSES.items():
        for path in list_classes(read_json(app / "config" / name)):
            if path not in allowed:
                notices.append(
                    f"{name} names {path}, which sites refuse whose class_allow_list lacks it, as the ready-made ones "
                    "do"
                )
    packages = sorted({name for _, _, name in study.extensions})
    if packages:
        notices.append(f"for hospitals to install, and name under extensions of site.yaml: {', '.join(packages)}")
    # A network of a package may run at hospitals and not here.
    if study.model.network in packages:
        return notices
    read_start(app / "config", study)
    if study.recipe.needs_pretrained and not study.model.pretrained_sha256:
        content = (app / "config" / study.model.pretrained).read_bytes()
        notices.append(
            "the digest does not settle from which pretrained model everybody starts; write into study.yaml: "
            f"model.pretrained_sha256: {hashlib.sha256(content).hexdigest()}"
        )
    ready = read_yaml(READY_MADE)["may_leave"]
    further = sorted({kind.name for kind in list_outbound_payloads(study)}.difference(ready))
    if further:
        notices.append(
            f"for hospitals to add to may_leave of site.yaml, since the ready-made one lacks it: {', '.join(further)}"
        )
    return notices


def _check_deployed(job: Path, study: Study) -> None:
    """Refuse a job that does not go to each hospital that its study names; others get no task."""
    named = study.federation.named
    if missing := find_unreached(read_json(job / META), named):
        raise ConfigError(
            f"deploy_map of {job / META} leaves out {', '.join(missing)} of federation.sites; "
            f'write {{"app": {json.dumps(["server", *named])}}}'
        )


def list_classes(config: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield the classes that a configuration has NVFlare build."""
    for key, value in config.items() if isinstance(config, dict) else enumerate(config):
        if key == "path" and isinstance(value, str):
            yield value
        elif key != "args" and isinstance(value, dict | list):
            yield from list_classes(value)
