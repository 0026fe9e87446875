"""What the server knows of its sites: who takes part and until when, what they run, and which state they have lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from silofl.base.errors import AggregationError, ConfigError
from silofl.core.recipe import Recipe
from silofl.federation.ledger import Round
from silofl.parts.load import is_learning, keeps_in_extra_rounds, list_client_state
from silofl.parts.model import ModelPart
from silofl.parts.part import ClientState, Part
from silofl.parts.task import Exchange
from silofl.setup.software import Software, read_software
from silofl.study import Study

NEVER = "it was not connected: see that it runs, and it joins if deploy_map names it; else continue the run with it"
BATCHNORM = ClientState("its BatchNorm, which no site sends", is_of_model=True)


@dataclass(kw_only=True)
class Roster:
    """The sites of a run after its last finished round.

    Attributes:
        sites: The sites' names, in their order.
        parts: Role -> the part whose arrays travel under it.
        ledger: One record a round.
        lost: Site -> the round whose state it goes on from, of sites that have lost a later one.
        trained: The sites whose training has been accepted in the round that is not finished yet.
        software: Site -> what it runs, of sites that have answered since this process began.
    """

    study: Study
    sites: list[str]
    parts: dict[str, Part]
    ledger: list[Round] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)
    trained: frozenset[str] = frozenset()
    software: dict[str, Software] = field(default_factory=dict)

    @property
    def finished_rounds(self) -> int:
        """The number of the last finished round, 0 before the first."""
        return len(self.ledger)

    def find_recipe_in_use(self) -> Recipe:
        """Return the study's recipe, with BatchNorm at home where no site sends it."""
        recipe = self.study.recipe
        if recipe.stays == "nothing" and self._keeps_batchnorm():
            return replace(recipe, stays="batchnorm")
        return recipe

    def list_present_sites(self) -> list[str]:
        """Return the sites that have not left the study."""
        return [site for site in self.sites if site not in self.study.federation.sites_left]

    def find_absent_sites(self) -> dict[str, str]:
        """Return why the sites that the study names and that never came take no part.

        The run is that of the others: nobody has a model of a site that has never trained.
        """
        settings = self.study.federation
        return dict.fromkeys(sorted({*settings.named} - {*self.sites, *settings.sites_left}), NEVER)

    def find_departed_sites(self) -> dict[str, int]:
        """Return, of the sites that have left the study, the last round that took each one's update; 0 if none."""
        rounds = {}
        for site in self.sites:
            if site in self.study.federation.sites_left:
                rounds[site] = self.should_hold(site, self.finished_rounds)
        return rounds

    def take_software(self, site: str, said: Software | None) -> None:
        """Let the server know what a site runs, which may be another release where the site was started again.

        Raises:
            AggregationError: The site's first answer does not say it, or an answer names a release that does not work
                together with the server's.
        """
        if said is None:
            # A process says it with its first answer only.
            if site in self.software:
                return
            raise AggregationError(
                f"site {site!r} does not say which software it runs; install the study's wheel there"
            )
        try:
            read_software().check_compatible(said, f"site {site!r}")
        except ConfigError as error:
            # It is asked again before each further answer.
            self.software.pop(site, None)
            raise AggregationError(str(error)) from None
        self.software[site] = said

    def check_sites(self) -> None:
        """Refuse names that are roles.

        Raises:
            ConfigError: A site has the name of a model.
        """
        for site in self.sites:
            if site in self.parts:
                raise ConfigError(f"site {site!r} has the name of a model; give it another one")

    def describe_partners(self, site: str, number: int) -> dict[str, Any]:
        """Return what a task tells a site of its partners, for the site's own record.

        Args:
            number: The finished round after which the sites begin; 0 where the task is about no round's models.

        Returns:
            ``sites``: how many are asked. ``partners``: their names. ``mixed``: the last round, and of how many sites
            an answer was mixed in it, 0 where this site's was not. ``rows``: site -> this site's weight in that site's
            own model after round ``number``; nothing where such models stay with their sites, or there are none.
        """
        present = self.list_present_sites()
        facts: dict[str, Any] = {"sites": len(present), "partners": present}
        if not self.ledger:
            return facts
        answered = self.ledger[-1].answered
        facts["mixed"] = [self.finished_rounds, len(answered) if site in answered else 0]
        models = [part for part in self.parts.values() if isinstance(part, ModelPart)]
        leaves = any(part.own for part in models) and not any(part.stays for part in models)
        if leaves and 0 < number <= len(self.ledger):
            weights = self.ledger[number - 1].weights
            facts["rows"] = {owner: row[site] for owner, row in weights.items() if site in row}
        return facts

    def should_hold(self, site: str, number: int) -> int:
        """Return the newest round <= ``number`` that took the site's update and left it a state; 0 if none."""
        # The later exchanges of a round begin from the state that its training has just left.
        if number > self.finished_rounds and site in self.trained:
            return self.finished_rounds + 1
        rounds = self.ledger[: min(number, last_with_state(self.study))]
        return max((record.round for record in rounds if site in record.answered), default=0)

    def held(self, site: str, number: int) -> int:
        """Return the newest round <= ``number`` whose saved state the site still has; 0 if none."""
        should = self.should_hold(site, number)
        return min(should, self.lost.get(site, should))

    def has_lost(self, site: str, number: int) -> bool:
        """Return whether a site goes on, after a round, from an older state than it should."""
        return self.held(site, number) < self.should_hold(site, number)

    def find_lost(self, exchange: Exchange, held: Mapping[str, int]) -> dict[str, int]:
        """Return the sites that have lost the state from which a task begins, with the last round whose state each has.

        Args:
            exchange: What they were asked to do.
            held: Site -> the last round whose state it says it has.
        """
        # A site that has what it should, or more, has failed for another reason: to be asked again would not help it.
        return {site: number for site, number in held.items() if number < self.held(site, exchange.models_round)}

    def list_state_for(self, site: str, exchange: Exchange) -> list[ClientState]:
        """Return what of its state a site needs for a task."""
        kept = list_client_state(self.study, self.should_hold(site, exchange.models_round))
        if self._keeps_batchnorm():
            kept.append(BATCHNORM)
        if is_learning(self.study, exchange.task, exchange.round):
            return kept
        return [state for state in kept if not state.is_for_training]

    def vital_sentence(self, site: str, exchange: Exchange) -> str | None:
        """Return why a site that has lost its state takes no part in an exchange; None where it goes on without it."""
        vital = [state.what for state in self.list_state_for(site, exchange) if state.is_required]
        if not vital:
            return None
        return (
            f"the state of site {site!r} lacks {' and '.join(vital)} of round "
            f"{self.should_hold(site, exchange.models_round)}; restore its state folder, or start the study anew"
        )

    def lost_sentence(self, site: str, exchange: Exchange) -> str | None:
        """Return what a site lacked of its state in an exchange, and what of it the server sent; None where nothing."""
        number = exchange.models_round
        states = self.list_state_for(site, exchange)
        if not self.has_lost(site, number) or not states:
            return None
        held = self.held(site, number)
        lost: list[str] = []
        sent: list[str] = []
        for state in states:
            (sent if state.is_recoverable else lost).append(state.what)
        clauses = []
        if lost:
            clauses.append(f"{' and '.join(lost)} could not be restored")
        if sent:
            clauses.append(f"{' and '.join(sent)} came from the server, to within rounding")
        older = f"from that of round {held}" if held else "from none"
        return (
            f"site {site!r} began the {exchange.task} of round {exchange.round} without its state of round "
            f"{self.should_hold(site, number)}, {older}: {'; '.join(clauses)}"
        )

    def is_lost_for_good(self, site: str, exchange: Exchange) -> bool:
        """Return whether a site went into an exchange without something that nobody can send it again."""
        states = self.list_state_for(site, exchange)
        return self.has_lost(site, exchange.models_round) and not all(state.is_recoverable for state in states)

    def _keeps_batchnorm(self) -> bool:
        return any(isinstance(part, ModelPart) and part.home for part in self.parts.values())


def list_expected_sites(study: Study, here: Iterable[str]) -> list[str]:
    """Return the sites that may take part, of those that are there: those that the study names, or all."""
    return sorted({*here} & {*study.federation.named} if study.federation.named else here)


def is_expected(study: Study, site: str) -> bool:
    """Return whether a site that is there may take part: one that the study names and has not let go."""
    return bool(list_expected_sites(study, [site])) and site not in study.federation.sites_left


def last_with_state(study: Study) -> int:
    """Return the last round of a study that leaves the sites a state."""
    return study.total_rounds if keeps_in_extra_rounds(study) else study.last_training
