"""What a run sends and receives, counted on the server's own messages while nobody trains.

All sites are sent the same, so one stands for all; their answers are as large as what they answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from silofl.algorithms.mixing import Arrays
from silofl.federation.ledger import Round
from silofl.federation.message import Message
from silofl.federation.selector import is_selectors
from silofl.federation.server import ServerRounds
from silofl.federation.similarity import statistics_arrays
from silofl.federation.super_rounds import SuperRounds
from silofl.models.members import Members
from silofl.models.networks import build_plain_model
from silofl.models.parts import AMPLITUDE, read_arrays
from silofl.study import Study

NUMBERS = {"num_examples": 1, "metrics": {"loss": 0.0, "drift": 0.0}}


@dataclass(frozen=True)
class Traffic:
    """The bytes of a run, for each site.

    Attributes:
        rounds: The ledger's records of all rounds, with ``bytes_to`` and ``bytes_from`` of one site.
        finish_bytes_to: What each site is sent after the rounds: models to validate and test, or the super model.
    """

    rounds: list[Round]
    finish_bytes_to: int

    @property
    def bytes_to(self) -> list[int]:
        """Bytes to a site by round."""
        return [sum(record.bytes_to.values()) for record in self.rounds]

    @property
    def bytes_from(self) -> list[int]:
        """Bytes from a site by round."""
        return [sum(record.bytes_from.values()) for record in self.rounds]

    @property
    def site_bytes(self) -> int:
        """Bytes on a site's line in the whole run, both ways."""
        return sum(self.bytes_to) + sum(self.bytes_from) + self.finish_bytes_to


def count_traffic(study: Study, num_sites: int, image_shape: Sequence[int]) -> Traffic:
    """Go through all rounds of a study as the server does, with answers that hold nothing new.

    Args:
        study: The study.
        num_sites: Sites that take part in every round.
        image_shape: (C, H, W) of the images, to which an amplitude belongs.

    Raises:
        ConfigError: The study does not allow so many sites.
    """
    sites = [f"site-{number}" for number in range(1, num_sites + 1)]
    server = ServerRounds.start(study, "estimate", sites, _any_pretrained(study))
    amplitude = Members.build(study, image_shape).amplitude()
    while server.finished_rounds < study.total_rounds:
        record = Round(server.finished_rounds + 1)
        _count_round(server, sites, record, amplitude)
        server.ledger.append(record)
    return Traffic(server.ledger, _finish_bytes(server, sites[0]))


def _count_round(server: ServerRounds, sites: list[str], record: Round, amplitude: np.ndarray | None) -> None:
    site, is_selector_alone = sites[0], server.is_selector_alone
    if not is_selector_alone:
        _share_statistics(server, site, record)
        sent = server.train_task(site)
        record.add_traffic({site: sent}, {site: _answer(server, site, sent, amplitude)})
        _note_amplitude(server, sites, sent, amplitude)
    first = 1 if is_selector_alone else 2
    last = server.study.recipe.selector_steps if is_selector_alone else server.selector_steps
    for step in range(first, last + 1):
        task = server.selector_task(site, step)
        record.add_traffic({site: task}, {site: Message(_selectors(server, task))})
    record.close(
        _weights(server, record.round, len(sites)), dict.fromkeys(sites, 1), dict.fromkeys(sites, {"drift": 0})
    )


def _answer(server: ServerRounds, site: str, sent: Message, amplitude: np.ndarray | None) -> Message:
    """Return an answer of the right size: the site's model, the selector's update, the amplitude if it is wanted."""
    arrays = server.models[site] | _selectors(server, sent)
    return Message(arrays | ({AMPLITUDE: amplitude} if sent.meta["wants_amplitude"] else {}))


def _selectors(server: ServerRounds, sent: Message) -> Arrays:
    return {name: array for name, array in sent.arrays.items() if is_selectors(name)}


def _note_amplitude(server: ServerRounds, sites: list[str], sent: Message, amplitude: np.ndarray | None) -> None:
    """Let the server know the amplitude after the first round, and that the sites hold it after the second."""
    given = {AMPLITUDE: amplitude} if sent.meta["wants_amplitude"] else {}
    for site in sites:
        server.accept(site, sent, Message(given, NUMBERS))
    server.amplitude = given.get(AMPLITUDE, server.amplitude)


def _share_statistics(server: ServerRounds, site: str, record: Round) -> None:
    sent = server.statistics_tasks()
    if not sent:
        return
    none = [(np.zeros(size), np.zeros(size)) for size in server.similarity.sizes]
    answers = {name: Message(statistics_arrays(none)) for name in sent}
    server.note_statistics(record, answers, {})
    record.add_traffic({site: sent[site]}, {site: answers[site]})


def _weights(server: ServerRounds, number: int, num_sites: int) -> np.ndarray:
    """Return weights that say no more than whether a site listens to itself alone, for then its model stays there."""
    study, recipe = server.study, server.study.recipe
    is_alone = number > study.rounds or (recipe.mixing != "shared" and recipe.self_weight == 1)
    return np.eye(num_sites) if is_alone else np.full((num_sites, num_sites), 1 / num_sites)


def _finish_bytes(server: ServerRounds, site: str) -> int:
    if server.study.recipe.has_selector:
        together = SuperRounds(server)
        return together.task(site).num_bytes
    # The last round's models are validated, then the best round's are tested.
    return 2 * server.evaluation_task(site, server.finished_rounds).num_bytes


def _any_pretrained(study: Study) -> Arrays | None:
    """Return arrays of the size of a pretrained model, where the study needs one."""
    if not study.recipe.needs_pretrained:
        return None
    state = build_plain_model(study, study.seed).state_dict()
    return read_arrays(state, [name for name, value in state.items() if value.is_floating_point()])
