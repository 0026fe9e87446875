"""Count the bytes that a run will send and receive, from the server's real messages but without training.

The course of the study runs over a network that weighs each task and answers as the parts expect it, with zeros or the
least values. All sites are sent as much, so that the first is counted for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from silofl.core.mixing import Arrays
from silofl.federation import needs
from silofl.federation.course import Answers, Course
from silofl.federation.server import ServerRounds
from silofl.models.names import read_arrays
from silofl.models.networks import build_plain_model
from silofl.models.precision import bytes_on_wire
from silofl.parts.task import VALIDATE, Exchange, Message
from silofl.setup.software import read_software
from silofl.study import Study


@dataclass
class Traffic:
    """The bytes of a run, for each site.

    Attributes:
        bytes_to: To a site, by round.
        bytes_from: From a site, by round.
        finish_bytes_to: What each site is sent after the rounds: models to validate and test, or the super model.
        finish_bytes_from: What each site sends after the rounds: a personal model for the super model.
    """

    bytes_to: list[int] = field(default_factory=list)
    bytes_from: list[int] = field(default_factory=list)
    finish_bytes_to: int = 0
    finish_bytes_from: int = 0

    @property
    def site_bytes(self) -> int:
        """Bytes on a site's line in the entire run, both ways."""
        return sum(self.bytes_to) + sum(self.bytes_from) + self.finish_bytes_to + self.finish_bytes_from


def count_traffic(study: Study, num_sites: int, image_shape: Sequence[int]) -> Traffic:
    """Count the traffic of a study by playing its course.

    Args:
        num_sites: Sites that take part in every round.
        image_shape: (C, *spatial) of the images, or patches, on which the size of an input normalisation depends.

    Raises:
        SiloFLError: The study does not allow so many sites, or a part fails, or refuses what it expects.
    """
    server = ServerRounds.start(study, "estimate", needs.site_names(num_sites), _random_pretrained(study))
    server.image_shape = tuple(image_shape)
    traffic = Traffic()

    # It stands in for the network: the course asks it as it asks the sites.
    def weigh(task: str, messages: Mapping[str, Message]) -> Answers:
        site, message = next(iter(messages.items()))
        expected = server.payload_spec(site, Exchange(task, message.meta["round"], message.meta["step"]))
        size = 0
        # A test's answer has a few kilobytes, not all of which leave.
        if task != server.test.task:
            size = sum(bytes_on_wire(spec.dtype, spec.num_bytes, study) for spec in expected.values())
        if server.finished_rounds == study.total_rounds or task.startswith(VALIDATE):
            traffic.finish_bytes_to += message.num_bytes
            traffic.finish_bytes_from += size
        else:
            # A round may have several exchanges: only its first one begins a new number.
            new = server.finished_rounds + 1 - len(traffic.bytes_to)
            traffic.bytes_to += [0] * new
            traffic.bytes_from += [0] * new
            traffic.bytes_to[-1] += message.num_bytes
            traffic.bytes_from[-1] += size
        arrays = {}
        for name, spec in expected.items():
            least = 0 if spec.minimum is None else np.maximum(0, spec.minimum)
            arrays[name] = np.full(spec.shape or (), least, spec.dtype)
        # Every site reports these numbers.
        metrics = {"loss": 0.0, "drift": 0.0}
        if study.is_private:
            metrics["epsilon"] = 0.0
        meta = {
            "round": message.meta["round"],
            "num_examples": 1,
            "steps": 1,
            "metrics": metrics,
            "software": read_software().model_dump(),
        }
        return Answers(dict.fromkeys(messages, Message(arrays, meta)), {})

    Course(server, weigh).run()
    return traffic


def _random_pretrained(study: Study) -> Arrays | None:
    """Return random arrays with the shapes of the model in the study's file, where the study names one."""
    if study.model_file is None:
        return None
    state = build_plain_model(study, study.seed).state_dict()
    return read_arrays(state, [name for name, value in state.items() if value.is_floating_point()])
