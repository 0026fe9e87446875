"""Checks of a task before a site carries it out."""

from silofl.base.errors import ConfigError, PinError, TrainingError
from silofl.federation.egress import TaskHeader
from silofl.parts.task import TRAIN
from silofl.setup.software import read_software
from silofl.study import Study


def check_task(site: str, task: str, asked: TaskHeader, study: Study) -> None:
    """Refuse a task of another version, of another study than was agreed, or of a round that the study has not.

    Args:
        study: The site's own, with all its rounds.

    Raises:
        TrainingError: The server's version does not work together with the site's, or the round is none.
        PinError: The server has another study, which a job can give it: fewer sites or rounds than were agreed.
    """
    if asked.software is not None:
        try:
            read_software().check_compatible(asked.software, "the server")
        except ConfigError as error:
            raise TrainingError(f"site {site!r}: {error}") from None
    if asked.digest != study.digest:
        raise PinError(
            f"study {study.name!r} differs at the server and at site {site!r}, where its digest is {study.digest}; "
            "have deploy_map of meta.json name one app for all"
        )
    rounds = min(study.ended_after(asked.joint_rounds).total_rounds, study.total_rounds)
    if not (1 if task == TRAIN else 0) <= asked.round <= rounds:
        raise TrainingError(f"a task must be of one of the study's {rounds} rounds, not of round {asked.round}")
