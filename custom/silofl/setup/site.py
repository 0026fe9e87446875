"""The settings of one machine: site.yaml of a site, server.yaml of the server."""

import os
import re
from collections.abc import Collection, Mapping, Set
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from silofl.base.errors import ConfigError, PauseError, PinError, suggest_nearest
from silofl.base.settings import NAME, SHA256, BelowOne, Count, Name, Natural, Positive, Section
from silofl.setup.divisions import is_personal
from silofl.setup.extensions import Extension


def _check_pin_digest(value: str) -> str:
    if not re.fullmatch(SHA256, value):
        raise ValueError("the 64 digits that site check prints")
    return value


def _check_proxy(value: str) -> str:
    match = re.fullmatch(r"http://([^/@\s]+@)?([\w.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})/?", value)
    # The port is required: programs do not agree on which one is meant without.
    if match is None or not 0 < int(match[3]) < 1 << 16:
        raise ConfigError(
            "proxy is not in the form http://HOST:PORT or http://USER:PASSWORD@HOST:PORT; correct it (it is not shown "
            "here, as it may hold a password)"
        )
    return value


def _check_division(value: str) -> str:
    if is_personal(value):
        raise ValueError("an element of DICOM that names no patient and no day")
    return value


class PinnedStudy(Section):
    """A study that a site has read and agreed to.

    Attributes:
        sha256: The digest of its settings, as ``site check`` prints it.
        lead: Who submits it, by the name in the certificate.
        data: The folder that holds its ``dataset.json``; as ``data`` of site.yaml says where not given.
    """

    sha256: Annotated[str, AfterValidator(_check_pin_digest)]
    lead: str
    data: str | None = None


class Site(Section):
    """What a site decides for itself.

    Attributes:
        data: The folder that holds ``dataset.json``; ``{study}`` and ``{site}`` are filled in, and ``$VARIABLES``. Or
            study -> folder; then the site takes part in these studies alone.
        state_dir: Where the site keeps its own models, BatchNorm, optimiser and pictures, by run.
        studies: Study -> what the site has agreed to; with any, it takes part in these alone, as they are pinned.
        paused: Studies that get no answer for as long as they are named here; read anew before every task.
        cache_dir: Where decoded images are kept; next to the state when not given.
        keep_days: Days after which ``site prune`` deletes a job's folder and full logs in the kit; never where None.
        device: Overrides the study's device.
        processes: Processes over which the images of each batch in training are spread; each has a GPU of its own where
            the site computes on GPUs.
        has_progress: Whether reading data shows a progress bar.
        skip_unreadable: Share of all cases of dataset.json that may be left out because they cannot be read; none where
            not given.
        min_patients: Patients that a mean over the training images, a count or a score must be of to leave the site;
            patients whom dataset.json does not know count as none.
        min_partners: Other sites whose answers must be mixed with this site's; with fewer the server leaves its answer
            out. 0 in a simulation.
        may_leave: Kinds of arrays that a site with the egress filter lets leave, as ``site check`` names them; all that
            a study sends where not given.
        divisions: Elements of DICOM by which a job may divide the test cases, beside sex, age, scanner, slice
            thickness, field strength, year, annotator and groups of dataset.json; none that names a patient or a day.
        repeats: Studies of which another run may have a few other sites than an earlier one that delivered a model.
        max_epsilon: What the differential privacy of a study may spend here, in all its runs together; a study without
            ``privacy.dp_sgd`` then gets no answer, and one that has spent it no more. No limit where not given.
        max_delta: The largest delta of such a study, at which ``max_epsilon`` holds; any where not given.
        privacy_unit: What the epsilon of such a study must stand for: a ``patient`` or an ``example``; any where not
            given. Neither holds for the other: an example of a patient may be shown by twice the patient's epsilon.
        extensions: Networks, losses, transforms and metrics of reviewed packages that may run here, as
            ``package==1.2.0/name``; none where not given.
        proxy: The HTTP proxy by which the server is reached; directly where not given.
    """

    data: dict[Name, str] | str
    state_dir: str
    studies: dict[Name, PinnedStudy] = {}
    paused: tuple[Name, ...] = ()
    cache_dir: str | None = None
    keep_days: Count | None = None
    device: Literal["auto", "cpu", "cuda"] | None = None
    processes: Count = 1
    has_progress: bool = True
    skip_unreadable: BelowOne = 0.0
    # In many health statistics (OHDSI's too) a count or a mean stands for at least so many people.
    min_patients: Natural = 5
    min_partners: Natural = 1
    may_leave: tuple[Name, ...] | None = None
    divisions: tuple[Annotated[Name, AfterValidator(_check_division)], ...] = ()
    repeats: tuple[Name, ...] = ()
    max_epsilon: Positive | None = None
    max_delta: Annotated[Positive, Field(lt=1)] | None = None
    privacy_unit: Literal["patient", "example"] | None = None
    extensions: tuple[Extension, ...] = ()
    proxy: Annotated[str, AfterValidator(_check_proxy)] | None = None

    @property
    def shares_models(self) -> bool:
        """Whether models that are made for single hospitals, and hold this site's updates, may leave their hospital."""
        return self.min_partners == 0 or "personal_model" in (self.may_leave or ())

    def data_folder(self, study: str, site: str) -> Path:
        """Return the folder that holds the study's ``dataset.json``.

        Raises:
            ConfigError: The site does not take part in the study, or the folder is no absolute path.
        """
        folders = self.data_by_study(study)
        if study not in folders:
            listed = ", ".join(sorted(folders)) or "none"
            raise ConfigError(
                f"data of site.yaml names no folder for study {study!r}, only for {listed}"
                f"{suggest_nearest(study, folders)}; add it to take part"
            )
        return _fill_template(folders[study], study, site)

    def data_by_study(self, study: str) -> dict[str, str]:
        """Return study -> its data folder as written, of this study and of all that are named."""
        folders = {study: self.data} if isinstance(self.data, str) else dict(self.data)
        for name, pinned in self.studies.items():
            # A pinned study's own folder goes before that of all studies.
            if pinned.data:
                folders[name] = pinned.data
        return folders

    def check_pinned(self, study: str, digest: str, leads: Set[str | None], named: Collection[str]) -> None:
        """Refuse a study that is not as the site has pinned it; a site without pins takes part in every study.

        Args:
            leads: Who has submitted and who has signed it; None for nobody.
            named: The hospitals that it names.

        Raises:
            PinError: It is not; the sentence is fit for the server.
        """
        pinned = self.studies.get(study)
        if not self.studies:
            return
        if pinned is None:
            raise PinError(f"study {study!r} is not pinned by the site; ask it to pin digest {digest}")
        if digest != pinned.sha256:
            raise PinError(
                f"study {study!r} differs from the one that the site has pinned; submit it as it was agreed, or ask "
                f"the site to pin digest {digest}"
            )
        if not named:
            raise PinError(
                f"study {study!r} does not name its hospitals in federation.sites; two runs with other hospitals would "
                "tell single updates: name them, and agree on the new digest"
            )
        if leads != {pinned.lead}:
            named = " and ".join(sorted(name or "nobody" for name in leads))
            raise PinError(
                f"study {study!r} was submitted or signed by {named} instead of the lead whom the site has pinned; "
                "have that lead submit it, or ask the site to pin another"
            )

    def check_private(self, study: str, promise: tuple[float, str] | None) -> None:
        """Refuse a study without the differential privacy that the site asks for.

        Args:
            promise: The delta and the unit of its differential privacy; None without it.

        Raises:
            PinError: It has none, at a larger delta, or for another unit; the sentence is fit for the server.
        """
        asked = [key for key in ("max_epsilon", "max_delta", "privacy_unit") if getattr(self, key) is not None]
        if not asked:
            return
        if promise is None:
            raise PinError(
                f"study {study!r} has no privacy.dp_sgd, which {asked[0]} of the site asks for; add it, or ask the site"
            )
        delta, unit = promise
        if self.max_delta is not None and delta > self.max_delta:
            raise PinError(
                f"privacy.dp_sgd.delta must be at most {self.max_delta:g}, as max_delta of the site asks, not "
                f"{delta:g}; lower it, or ask the site"
            )
        if self.privacy_unit not in (None, unit):
            raise PinError(
                f"privacy.dp_sgd.unit must be {self.privacy_unit}, as privacy_unit of the site asks, not {unit}; "
                "change it, or ask the site"
            )

    def check_paused(self, study: str) -> None:
        """Refuse a study that the hospital has paused.

        Raises:
            PauseError: It has; the sentence is fit for the server.
        """
        if study in self.paused:
            raise PauseError(f"study {study!r} is paused by the hospital until it ends the pause")

    def state_folder(self, study: str, site: str) -> Path:
        """Return the folder of the site's own state."""
        return _fill_template(self.state_dir, study, site)

    def run_folder(self, study: str, site: str, run: str) -> Path:
        """Return the folder of one run in the site's own state.

        Raises:
            ConfigError: The server's run id is no plain name or that of the cache, or the folder is no absolute path.
        """
        # The id comes over the network and becomes a path, which must not lead out of the state folder. In the cache
        # nobody looks for a record of what left, the command forget neither.
        folder = self.state_folder(study, site) / run
        if not re.fullmatch(NAME, run) or self.cache_folder(study, site).is_relative_to(folder):
            raise ConfigError(f"the server's run id {run!r} is no plain name, or that of the site's cache")
        return folder

    def answered_file(self, site: str) -> Path:
        """Return the file of the test sets whose scores the site has told: one for all studies, whatever their name."""
        # A study's own folder is none of all studies: the file lies above it.
        above, placeholder, _ = self.state_dir.partition("{study}")
        return _fill_template(above.rpartition("/")[0] if placeholder else above, "", site) / f".answered-{site}.json"

    def cache_folder(self, study: str, site: str) -> Path:
        """Return the folder of decoded images."""
        if self.cache_dir is None:
            return self.state_folder(study, site) / "cache"
        return _fill_template(self.cache_dir, study, site)


class Server(Section):
    """What the server decides for itself.

    Attributes:
        run_dir: Where a run's results and checkpoint go; ``{study}`` and ``{run}`` are filled in, and ``$VARIABLES``.
        is_downloadable: Whether results are also put into the job's own folder, which NVFlare's ``job download`` brings
            to the study lead.
        extensions: Networks of reviewed packages that may run here, as ``package==1.2.0/name``; none where not given.
    """

    run_dir: str
    is_downloadable: bool = True
    extensions: tuple[Extension, ...] = ()

    def run_folder(self, study: str, run: str) -> Path:
        """Return the folder of one run."""
        return _fill_places(self.run_dir, {"{run}": run, "{study}": study})


def _fill_places(template: str, names: Mapping[str, str]) -> Path:
    # Variables come first: a study's name that looks like one, as a$HOME, is none.
    path = os.path.expanduser(os.path.expandvars(template))
    for placeholder, name in names.items():
        path = path.replace(placeholder, name)
    return Path(path)


def _fill_template(template: str, study: str, site: str) -> Path:
    # Variables of the environment may stand in braces.
    for name in re.findall(r"(?<!\$)\{\w*\}", template):
        if name not in ("{study}", "{site}"):
            raise ConfigError(
                f"a folder of site.yaml holds {name}{suggest_nearest(name, ('{study}', '{site}'))}; only {{study}} and "
                "{site} are filled in"
            )
    path = _fill_places(template, {"{study}": study, "{site}": site})
    if not path.is_absolute():
        raise ConfigError(f"{path} in site.yaml is not an absolute path; write it from / on")
    return path


def count_partners(count: int) -> str:
    """Return a number of other sites in words."""
    return f"{count} other site{'' if count == 1 else 's'}"
