"""A site that wants to join a study: its kit, the study, its settings, and what several checks share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from silofl.base.settings import load_settings
from silofl.core.mixing import Arrays
from silofl.data.site_data import SiteData, load_site_data
from silofl.flare.kit import Kit, read_kit
from silofl.models.weights import read_start
from silofl.setup.extensions import allow_extensions
from silofl.setup.site import Site
from silofl.study import Study, load_study

if TYPE_CHECKING:
    from silofl.federation.server import ServerRounds

RUN = "check-site"


class Participant(Protocol):
    """A machine of a network, site or server, as far as its kit says what it is."""

    @property
    def kit(self) -> Kit:
        """Its startup kit."""


@dataclass(frozen=True)
class Candidate:
    """A site that wants to join a study.

    Attributes:
        study_file: The study's file; a pretrained model or weights are in the same folder.
    """

    kit: Kit
    study: Study
    study_file: Path
    settings: Site

    @property
    def data_folder(self) -> Path:
        """The folder that holds dataset.json."""
        return self.settings.data_folder(self.study.name, self.kit.name)

    @property
    def state_folder(self) -> Path:
        """The folder of the site's own state."""
        return self.settings.state_folder(self.study.name, self.kit.name)

    @property
    def cache_folder(self) -> Path:
        """The folder of decoded images."""
        return self.settings.cache_folder(self.study.name, self.kit.name)

    @property
    def num_sites(self) -> int:
        """Sites that the study names, at least two."""
        return max(self.study.federation.num_sites or self.study.federation.min_sites, 2)

    # cached_property writes to __dict__ directly, which a frozen dataclass does not prevent.
    @cached_property
    def data(self) -> SiteData:
        """The site's data, which the network can take; decoded images stay in the site's cache for the first round."""
        site = self.settings
        data = load_site_data(self.data_folder, self.study, self.cache_folder, site.has_progress, site.skip_unreadable)
        if self.study.asks_alone:
            return data
        # Imported here, as below: torch takes seconds, which the checks before this one need not wait for.
        from silofl.models.networks import check_network
        from silofl.training.extra_metrics import check_extra_metrics
        from silofl.training.losses import check_loss

        check_network(self.study, data.image_shape)
        check_loss(self.study, data.image_shape)
        check_extra_metrics(self.study, data.image_shape)
        return data

    @cached_property
    def pretrained(self) -> Arrays | None:
        """The pretrained model or the weights in the study's folder, where the study names such a file."""
        start = read_start(self.study_file.parent, self.study)
        return start.arrays if start else None

    @cached_property
    def server(self) -> ServerRounds:
        """A server of the study in this process, which builds the messages that the real one will send."""
        from silofl.federation.server import ServerRounds

        # Only their number matters, because nothing is sent to them.
        peers = [f"{self.kit.name}-peer{number}" for number in range(1, self.num_sites)]
        return ServerRounds.start(self.study, RUN, [self.kit.name, *peers], self.pretrained)


def read_candidate(kit: Path, study: Path, site_config: Path | None) -> Candidate:
    """Read kit, study and the site's settings, by default those in the kit's ``local/site.yaml``.

    Raises:
        ConfigError: One of them is missing or wrong.
    """
    # The kit comes first: in a folder that is none nobody need write a site.yaml.
    read = read_kit(kit, ("hospital",))
    settings = load_settings(Site, site_config or kit / "local" / "site.yaml")
    allow_extensions(settings.extensions)
    return Candidate(read, load_study(study), study, settings)
