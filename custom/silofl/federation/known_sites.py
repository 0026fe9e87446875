"""What the server knows of its sites: who takes part and until when, what they run, and which state they have lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from silofl.base.errors import AggregationError, ConfigError
from silofl.core.recipe import Recipe
from silofl.core.training_end import LEAST_RISE, is_finished
from silofl.federation.ledger import measure_rise_after
from silofl.parts.load import is_learning, keeps_in_extra_rounds, list_client_state
from silofl.parts.model import ModelPart
from silofl.parts.part import ClientState
from silofl.parts.task import Exchange
from silofl.setup.software import Software, read_software
from silofl.study import Study

if TYPE_CHECKING:
    from silofl.federation.server import ServerRounds

NEVER = "it was not connected: see that it runs, and it joins if deploy_map names it; else continue the run with it"
BATCHNORM = ClientState("its BatchNorm, which no site sends", is_of_model=True)


def find_recipe_in_use(server: ServerRounds) -> Recipe:
    """Return the study's recipe, with BatchNorm at home where no site sends it."""
    recipe = server.study.recipe
    if recipe.stays == "nothing" and _keeps_batchnorm(server):
        return replace(recipe, stays="batchnorm")
    return recipe


def _keeps_batchnorm(server: ServerRounds) -> bool:
    return any(isinstance(part, ModelPart) and part.home for part in server.parts.values())


def list_present_sites(server: ServerRounds) -> list[str]:
    """Return the sites that have not left the study."""
    return [site for site in server.sites if site not in server.study.federation.sites_left]


def list_expected_sites(study: Study, here: Iterable[str]) -> list[str]:
    """Return the sites that may take part, of those that are there: those that the study names, or all."""
    return sorted({*here} & {*study.federation.named} if study.federation.named else here)


def is_expected(study: Study, site: str) -> bool:
    """Return whether a site that is there may take part: one that the study names and has not let go."""
    return bool(list_expected_sites(study, [site])) and site not in study.federation.sites_left


def find_absent_sites(server: ServerRounds) -> dict[str, str]:
    """Return why the sites that the study names and that never came take no part.

    The run is that of the others: nobody has a model of a site that has never trained.
    """
    settings = server.study.federation
    return dict.fromkeys(sorted({*settings.named} - {*server.sites, *settings.sites_left}), NEVER)


def find_departed_sites(server: ServerRounds) -> dict[str, int]:
    """Return site -> the last round that its update went into, 0 for none, of the sites that have left the study."""
    rounds = {}
    for site in server.sites:
        if site in server.study.federation.sites_left:
            rounds[site] = should_hold(server, site, server.finished_rounds)
    return rounds


def is_over(server: ServerRounds) -> bool:
    """Return whether all rounds are finished, or as many as the study has patience for."""
    if server.finished_rounds >= server.study.total_rounds:
        return True
    return ends_early(server) and not server.study.recipe.extra_rounds


def has_validated(server: ServerRounds) -> bool:
    """Return whether the last round that trained models has been validated; without a round nothing is left to be."""
    if not server.ledger or server.finished_rounds > server.study.last_training:
        return True
    return bool(server.ledger[-1].validation)


def ends_early(server: ServerRounds) -> bool:
    """Return whether training ends early with the last finished round, which may lack its validation yet."""
    study = server.study
    patience = study.federation.patience
    if patience is None or server.finished_rounds >= study.joint_rounds:
        return False
    start = server.finished_rounds - patience
    # Until sites listen to each other in their own way, all have the same model, which a later one need not beat.
    if study.recipe.mixing and start < study.recipe.shared_rounds(study.rounds):
        return False
    return start >= 0 and is_finished(measure_rise_after(server.ledger, start))


def early_end(server: ServerRounds) -> str | None:
    """Return why training ended although the study had more rounds; None where it did not."""
    study = server.study
    if study.joint_rounds == study.rounds:
        return None
    return (
        f"training ended after round {study.joint_rounds} of {study.rounds} by federation.patience: none of its last "
        f"{study.patience} rounds raised the sites' validation by more than {LEAST_RISE}, the median of their changes"
    )


def take_software(server: ServerRounds, site: str, said: Software | None) -> None:
    """Let the server know what a site runs, which may be another release where the site was started again.

    Raises:
        AggregationError: The site's first answer does not say it, or an answer names a release that does not work
            together with the server's.
    """
    if said is None:
        # A process says it with its first answer only.
        if site in server.software:
            return
        raise AggregationError(f"site {site!r} does not say which software it runs; install the study's wheel there")
    try:
        read_software().check_compatible(said, f"site {site!r}")
    except ConfigError as error:
        # It is asked again before each further answer.
        server.software.pop(site, None)
        raise AggregationError(str(error)) from None
    server.software[site] = said


def check_sites(server: ServerRounds) -> None:
    """Refuse names that are roles.

    Raises:
        ConfigError: A site has the name of a model.
    """
    for site in server.sites:
        if site in server.parts:
            raise ConfigError(f"site {site!r} is called as one of the models is; give it another name")


def last_with_state(study: Study) -> int:
    """Return the last round of a study that leaves the sites a state."""
    return study.total_rounds if keeps_in_extra_rounds(study) else study.last_training


def should_hold(server: ServerRounds, site: str, number: int) -> int:
    """Return the newest round <= ``number`` that took the site's update and left it a state; 0 if none."""
    # The later exchanges of a round begin from the state that its training has just left.
    if number > server.finished_rounds and site in server.trained:
        return server.finished_rounds + 1
    rounds = server.ledger[: min(number, last_with_state(server.study))]
    return max((record.round for record in rounds if site in record.answered), default=0)


def find_lost(server: ServerRounds, exchange: Exchange, held: Mapping[str, int]) -> dict[str, int]:
    """Return the sites that have lost the state from which a task begins, each with the last round whose state it has.

    Args:
        exchange: What they were asked to do.
        held: Site -> the last round whose state it says it has.
    """
    # A site that has what it should, or more, has failed for another reason: to be asked again would not help it.
    return {site: number for site, number in held.items() if number < server.held(site, exchange.models_round)}


def list_state_for(server: ServerRounds, site: str, exchange: Exchange) -> list[ClientState]:
    """Return what of its state a site needs for a task."""
    kept = list_client_state(server.study, should_hold(server, site, exchange.models_round))
    if _keeps_batchnorm(server):
        kept.append(BATCHNORM)
    if is_learning(server.study, exchange.task, exchange.round):
        return kept
    return [state for state in kept if not state.is_for_training]


def vital_sentence(server: ServerRounds, site: str, exchange: Exchange) -> str | None:
    """Return why a site that has lost its state takes no part in an exchange; None where it goes on without it."""
    vital = [state.what for state in list_state_for(server, site, exchange) if state.is_required]
    if not vital:
        return None
    return (
        f"the state of site {site!r} lacks {' and '.join(vital)} of round "
        f"{should_hold(server, site, exchange.models_round)}; restore its state folder, or start the study anew"
    )


def lost_sentence(server: ServerRounds, site: str, exchange: Exchange) -> str | None:
    """Return what a site lacked of its state in an exchange, and what of that the server sent; None where nothing."""
    number = exchange.models_round
    states = list_state_for(server, site, exchange)
    if not server.has_lost(site, number) or not states:
        return None
    held = server.held(site, number)
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
        f"{should_hold(server, site, number)}, {older}: {'; '.join(clauses)}"
    )


def is_lost_for_good(server: ServerRounds, site: str, exchange: Exchange) -> bool:
    """Return whether a site went into an exchange without something that nobody can send it again."""
    states = list_state_for(server, site, exchange)
    return server.has_lost(site, exchange.models_round) and not all(state.is_recoverable for state in states)
