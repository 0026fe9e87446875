"""The settings of one machine: site.yaml of a site, server.yaml of the server."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from silofl.errors import ConfigError, nearest
from silofl.settings import NAME, WORDS, Name, Section


class Site(Section):
    """What a site decides for itself.

    Attributes:
        data: The folder that holds ``dataset.json``; ``{study}`` and ``{site}`` are filled in, and ``$VARIABLES``. Or
            study -> folder; then the site takes part in these studies alone.
        state_dir: Where the site keeps its own models, BatchNorm, optimiser and pictures, by run.
        cache_dir: Where decoded images are kept; next to the state when not given.
        device: Overrides the study's device.
        has_progress: Whether reading data shows a progress bar.
        min_patients: Patients in training below which the site shares no mean over their images; patients whom
            dataset.json does not know count as none.
        may_leave: Kinds of arrays that a site with the egress filter lets leave, as ``check-site`` names them; all that
            a study sends where not given.
    """

    data: dict[Name, str] | str
    state_dir: str
    cache_dir: str | None = None
    device: Literal["auto", "cpu", "cuda"] | None = None
    has_progress: bool = True
    # The least number of people that a count or a mean may stand for in many health statistics (OHDSI's too).
    min_patients: Annotated[int, Field(ge=0, le=1_000_000)] = 5
    may_leave: tuple[Name, ...] | None = None

    def data_folder(self, study: str, site: str) -> Path:
        """Return the folder that holds the study's ``dataset.json``.

        Raises:
            ConfigError: The site does not take part in the study, or the folder is no absolute path.
        """
        if isinstance(self.data, str):
            return _filled(self.data, study, site)
        if study not in self.data:
            known = ", ".join(sorted(self.data)) or "none"
            raise ConfigError(
                f"data of site.yaml must name a folder for study {study!r}, not only for {known}"
                f"{nearest(study, self.data)}; add it to take part"
            )
        return _filled(self.data[study], study, site)

    def state_folder(self, study: str, site: str) -> Path:
        """Return the folder of the site's own state."""
        return _filled(self.state_dir, study, site)

    def run_folder(self, study: str, site: str, run: str) -> Path:
        """Return the folder of one run in the site's own state.

        Raises:
            ConfigError: The server's run id is no plain name, or the folder is no absolute path.
        """
        # The id comes over the network and becomes a path, which must not lead out of the state folder.
        if not re.fullmatch(NAME, run):
            raise ConfigError(f"the server's run id must be {WORDS['string_pattern_mismatch']}, not {run!r}")
        return self.state_folder(study, site) / run

    def cache_folder(self, study: str, site: str) -> Path:
        """Return the folder of decoded images."""
        return _filled(self.cache_dir, study, site) if self.cache_dir else self.state_folder(study, site) / "cache"


class Server(Section):
    """What the server decides for itself.

    Attributes:
        run_dir: Where a run's results and checkpoint go; ``{study}`` and ``{run}`` are filled in, and ``$VARIABLES``.
        is_downloadable: Whether results are also put into the job's own folder, which NVFlare's ``job download`` brings
            to the study lead.
    """

    run_dir: str
    is_downloadable: bool = True

    def run_folder(self, study: str, run: str) -> Path:
        """Return the folder of one run."""
        return Path(os.path.expandvars(self.run_dir.replace("{run}", run).replace("{study}", study))).expanduser()


def _filled(template: str, study: str, site: str) -> Path:
    path = Path(os.path.expandvars(template.replace("{study}", study).replace("{site}", site))).expanduser()
    if not path.is_absolute():
        raise ConfigError(f"a folder of site.yaml must be an absolute path, not {path}; write it from / on")
    return path
