"""A run in one process, without NVFlare: the same course and the same weights, but no process for each site."""

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from silofl.base.errors import SiloFLError
from silofl.core.mixing import Arrays
from silofl.federation.course import Answers, Course, separate_failures
from silofl.federation.outcome import describe_failure
from silofl.federation.run_folder import RunFolder
from silofl.federation.server import ServerRounds
from silofl.federation.site import SiteRounds
from silofl.parts.task import Message
from silofl.setup.site import Site
from silofl.study import Study

logger = logging.getLogger(__name__)


def run_in_process(
    study: Study,
    folder: Path,
    sites: Sequence[str],
    settings: Site,
    pretrained: Arrays | None,
    on_round: Callable[[], None] = lambda: None,
) -> None:
    """Carry out a study with its sites one after the other; the results are in the run's folder.

    An interrupted run continues after its last finished round.

    Args:
        settings: Settings of all sites; ``{site}`` in them tells the sites apart.
        pretrained: All arrays of the pretrained model, where the study needs one.
        on_round: Called after every exchange with the sites.
    """
    site_rounds = {name: SiteRounds(name, study, settings) for name in sites}

    def ask(task: str, messages: Mapping[str, Message]) -> Answers:
        replies = {site: site_rounds[site].answer(task, message) for site, message in messages.items()}
        on_round()
        return separate_failures(replies)

    kept = RunFolder(folder, study)
    # A second command on the same folder would write between the rounds of this one.
    with kept.locked():
        try:
            run = f"{study.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
            server = kept.load(pretrained) or ServerRounds.start(study, kept.name_run(run), sites, pretrained)
            course = Course(
                server,
                ask,
                save=lambda: kept.save(server),
                before=lambda: kept.load_before(server),
                begin=kept.write_phase,
            )
            kept.finish(server, course.run())
        except Exception as error:
            # Only a fault of the program needs its traceback.
            if not isinstance(error, (SiloFLError, OSError)):
                logger.exception("the run failed")
            kept.write_failure(describe_failure(error))
