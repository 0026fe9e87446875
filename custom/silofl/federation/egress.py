"""The gate of a site: whether an answer may leave, and a record of each of its arrays and of its numbers.

The records are for the site's privacy officer, and are made from the very message that leaves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, Strict

from silofl.base.errors import LONGEST_NAME, AggregationError, ConfigError, TrainingError, quote_value
from silofl.base.settings import MOST, Section, parse
from silofl.core.mixing import Arrays
from silofl.federation.numbers import check_names
from silofl.federation.server import ServerRounds
from silofl.models.precision import types_on_wire
from silofl.models.roles import split_role
from silofl.parts.answer import SiteAnswer, plain_text
from silofl.parts.load import find_outbound_payload, list_outbound_payloads
from silofl.parts.part import OutboundPayload
from silofl.parts.task import TRAIN, ArraySpec, Exchange, Message
from silofl.setup.site import Site, count_partners
from silofl.setup.software import Software
from silofl.study import Study
from silofl.training.site_score import SiteScore

NUMBERS, REASON, UNKNOWN = "numbers", "reason", "unknown"
# Kinds of no part: the counts and scores of every answer, the sentence in place of one, and arrays that no part of the
# study knows.
OTHERS = {
    NUMBERS: "counts, rounded losses and scores, and what the images are like; no case is named",
    REASON: "the sentence why there is no answer, as of a pause; no number and no array",
    UNKNOWN: "not a part of the study's model",
}
RETURNED = "as the server sent it, back unchanged in a rehearsal; nothing was learnt"
NUMBERS_RISK = (
    "the server sees how many patients, images and cases of each class there are, and how good the models are on them; "
    "min_patients, or no validation and test data in dataset.json"
)

# What the study lead can do about what a site does not let leave.
ASK = "change the study, or ask the site"


Ordinal = Annotated[int, Strict(), Field(ge=1, le=MOST)]
# 0 is before the first.
Number = Annotated[int, Strict(), Field(ge=0, le=MOST)]


class TaskHeader(Section):
    """What every task says, whatever else its parts say.

    Attributes:
        run: The run's id.
        round: The round that it belongs to; 0 where it comes before the first.
        step: Its number among the exchanges of the same task in a round.
        held: The round of the state that the site begins from; 0 for none.
        best_round: The best round so far; None before any validation.
        software: What the server runs, where it does not know yet what the site runs.
        digest: Of the server's study; None of a server of an older version.
        sites: How many sites it asks in this round, by its own word; None of a server of an older version.
        partners: Their names.
        joint_rounds: The round that the extra rounds follow, where it is an earlier one than the study says.
        mixed: The last round, and of how many sites it mixed an answer in it; 0 where this site's was not among them.
        rows: Site -> this site's weight in that site's own model; empty where no such model leaves its hospital.
    """

    # The parts add entries of their own to a task.
    model_config = ConfigDict(extra="ignore", frozen=True)
    run: Annotated[str, Strict()]
    round: Number
    held: Number
    step: Ordinal = 1
    best_round: Ordinal | None = None
    software: Software | None = None
    digest: Annotated[str, Strict()] | None = None
    sites: Ordinal | None = None
    partners: tuple[Annotated[str, Strict(), Field(max_length=LONGEST_NAME)], ...] = ()
    joint_rounds: Ordinal | None = None
    mixed: tuple[Number, Number] | None = None
    rows: dict[str, float] = {}

    @classmethod
    def of(cls, message: Message) -> TaskHeader:
        """Read a message of the server.

        Raises:
            TrainingError: A value is missing, of another type or out of its range.
        """
        try:
            return parse(cls, message.meta, "a task")
        except ConfigError as error:
            # Of the server and not of the site's settings, whose faults stay at the site.
            raise TrainingError(str(error)) from None


@dataclass(frozen=True)
class Request:
    """What a task asked for, without its arrays.

    Attributes:
        run: The run's id.
        round: The round that it belongs to.
        step: Its number among the exchanges of the same task in a round.
        shapes: Name -> shape of the arrays that came with it.
        sites: How many sites the server says that it asks; None where it says nothing.
        partners: Their names.
        mixed: As of `TaskHeader`, and so are the rows.
    """

    task: str
    run: str = ""
    round: int = 1
    step: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sites: int | None = None
    mixed: tuple[int, int] | None = None
    rows: Mapping[str, float] = field(default_factory=dict)
    partners: tuple[str, ...] = ()

    @classmethod
    def of(cls, task: str, message: Message) -> Request:
        """Return what a message of the server asks for; the errors of `TaskHeader.of`, and of arrays of no numbers."""
        for name, array in message.arrays.items():
            if np.asarray(array).dtype.kind not in "biuf":
                raise TrainingError(f"the task's array {quote_value(name)} holds no numbers; have the server mended")
        header = TaskHeader.of(message)
        return cls(
            task,
            run=header.run,
            round=header.round,
            step=header.step,
            shapes={name: np.shape(array) for name, array in message.arrays.items()},
            sites=header.sites,
            mixed=header.mixed,
            rows=header.rows,
            partners=header.partners,
        )


@dataclass(frozen=True)
class Gate:
    """What a site lets out in one study.

    Attributes:
        kinds: All kinds that the study's parts send.
        allowed: Names of the kinds that may leave.
        min_patients: Patients in training that a mean over their images must come from.
        min_partners: Other sites whose answers must be mixed with the site's.
    """

    study: Study
    kinds: tuple[OutboundPayload, ...]
    allowed: frozenset[str]
    min_patients: int
    min_partners: int

    @classmethod
    def of(cls, study: Study, site: Site) -> Gate:
        """Build the gate from the site's settings and the study.

        Raises:
            ConfigError: A part of the study cannot be loaded.
        """
        kinds = tuple(list_outbound_payloads(study))
        # A site without a list of its own lets out all that the study's parts send.
        allowed = {kind.name for kind in kinds} if site.may_leave is None else set(site.may_leave)
        # A site cannot allow arrays that no part knows, even by naming their kind.
        allowed.discard(UNKNOWN)
        if study.recipe.stays == "batchnorm":
            allowed.discard("batchnorm")
        return cls(study, kinds, frozenset(allowed), site.min_patients, site.min_partners)

    def kind(self, name: str) -> str:
        """Return the kind of an array by its name on the wire."""
        of_a_part = find_outbound_payload(self.kinds, *split_role(name))
        return of_a_part.name if of_a_part else UNKNOWN

    @property
    def risks(self) -> dict[str, str]:
        """Kind -> what it can tell of the images, to whom, and the switch that stops it."""
        return {kind.name: kind.risk for kind in self.kinds} | {NUMBERS: NUMBERS_RISK}

    def purpose(self, kind: str) -> str:
        """Return the sentence on a kind for people."""
        for of_a_part in self.kinds:
            if of_a_part.name == kind:
                return of_a_part.purpose
        return OTHERS.get(kind, OTHERS[UNKNOWN])

    def check_partners(self, site: str, request: Request) -> None:
        """Refuse a task whose answer could not be mixed with those of enough others, before anything is computed.

        Raises:
            TrainingError: By its own word the server asks too few sites; the sentence may leave the site.
        """
        partners = (request.sites or 1) - 1
        if partners < self.min_partners and any(map(self._server.is_mixed, self._expected(request))):
            raise TrainingError(
                f"site {site!r} must have at least {count_partners(self.min_partners)} in the round, not {partners}, "
                "as min_partners of its site.yaml asks; add sites to the study, or ask the site to lower it"
            )

    def refusal(self, request: Request, message: Message) -> str | None:
        """Return why an answer must not leave, as a sentence for the server; None where it may.

        The sentence names no array that the study does not know: a name could say anything.
        """
        names: dict[str, list[str]] = {}
        for name in message.arrays:
            names.setdefault(self.kind(name), []).append(name)
        names |= {kind.name: [kind.role] for kind in self.list_entries(message)}
        # The kinds come first, because their sentence names no array.
        forbidden = sorted(names.keys() - self.allowed)
        if forbidden:
            allowed = f"only {', '.join(sorted(self.allowed))}" if self.allowed else "no arrays"
            if len(allowed) > 60:
                # With a long list the sentence would be cut, and be none that may leave.
                allowed = "only other kinds"
            count = len(names[forbidden[0]])
            return f"the site lets {allowed} leave, not {forbidden[0]}; the answer held {count} such arrays: {ASK}"
        answer = self._read_answer(request, message)
        if answer is None:
            return (
                "the site lets only the numbers of an answer leave that the study's schema has, each in its range; ask "
                "the site for its egress.jsonl"
            )
        expected = self._expected(request, answer.numbers.image_shape)
        for name, array in message.arrays.items():
            if name not in expected:
                return (
                    f"the site lets only arrays leave that a task asks for; the answer to {request.task} held others "
                    f"of the kind {self.kind(name)}: ask the site for its egress.jsonl"
                )
            shape = _expected_shape(expected[name], request.shapes.get(name))
            dtype = expected[name].dtype
            if np.shape(array) != shape or np.asarray(array).dtype not in types_on_wire(dtype, self.study):
                return (
                    f"the site lets {name!r} leave only as {dtype} of shape {shape}, not as {np.asarray(array).dtype} "
                    f"of shape {np.shape(array)}; ask the site for its egress.jsonl"
                )
        of_images = [kind.name for kind in self.kinds if kind.is_of_images and kind.name in names]
        if of_images and (answer.numbers.num_patients or 0) < self.min_patients:
            return f"the site lets {of_images[0]} leave only from {self.min_patients} patients or more; it has fewer"
        metrics = answer.numbers.metrics
        for score in (metrics.validation, metrics.round_test, metrics.test):
            if score and score.value is not None and self._is_of_few(score):
                return f"the site lets a score leave only of {self.min_patients} patients or more; it has fewer"
        return None

    def _is_of_few(self, score: SiteScore) -> bool:
        # Cases are at least as many as their patients, which a validation does not count.
        counts = (score.num_cases, score.num_patients, *(score.label_cases or {}).values())
        return any(count is not None and count < self.min_patients for count in counts)

    def records(self, request: Request, message: Message, reason: str | None = None) -> list[dict[str, Any]]:
        """Return one record for each array of an answer, and one for its numbers.

        Args:
            reason: Why it does not leave; None where it does.
        """
        facts = {"round": message.meta.get("round"), "task": request.task, "refused": reason is not None}
        if reason is not None:
            facts["reason"] = reason
        records = []
        for name, array in message.arrays.items():
            record = facts | self._describe_array(name, np.asarray(array))
            if "rehearsal" in message.meta:
                record["purpose"] = RETURNED
            records.append(record)
        for entry in self.list_entries(message):
            content = json.dumps(message.meta[entry.role]).encode()
            digest = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "purpose": entry.purpose}
            records.append(facts | {"name": entry.role, "kind": entry.name, "shape": [], "dtype": "json"} | digest)
        # NaN as a word: other programs cannot read it as a number.
        text = json.dumps(message.meta, default=str)
        kind = REASON if "error" in message.meta and message.meta.keys() <= {"error", "round"} else NUMBERS
        facts |= {"name": kind, "kind": kind, "bytes": len(text), "values": json.loads(text, parse_constant=str)}
        facts |= {"sites": request.sites, "mixed": request.mixed, "rows": dict(request.rows)}
        return [*records, facts | {"purpose": OTHERS[kind]}]

    def select_returned(self, request: Request, arrays: Arrays, image_shape: tuple[int, ...]) -> Arrays:
        """Return those arrays of a task that its answer may hold too."""
        expected = self._expected(request, image_shape)
        return {name: array for name, array in arrays.items() if name in expected}

    def list_withheld(self, rounds: Sequence[int]) -> list[str]:
        """Return the kinds of arrays that the first or the last of some rounds asks for, and that may not leave."""
        return sorted(self.list_asked_kinds(Exchange(TRAIN, rounds[0]), Exchange(TRAIN, rounds[-1])) - self.allowed)

    def list_asked_kinds(self, *exchanges: Exchange) -> set[str]:
        """Return the kinds of arrays that some tasks ask for."""
        names: set[str] = set()
        for exchange in exchanges:
            names |= self._server.payload_spec("site", exchange).keys()
        return {self.kind(name) for name in names}

    def list_entries(self, message: Message) -> list[OutboundPayload]:
        """Return the kinds that leave as an entry of an answer, without an array; not where it is withheld."""
        kinds = []
        for kind in self.kinds:
            entry = message.meta.get(kind.role)
            if kind.is_metadata and isinstance(entry, dict) and "withheld" not in entry:
                kinds.append(kind)
        return kinds

    @cached_property
    def _server(self) -> ServerRounds:
        """A server of this study that has asked for nothing yet, whose parts say what they expect of an answer."""
        return ServerRounds.start(self.study, "", ["site"], {})

    def _expected(self, request: Request, image_shape: tuple[int, ...] | None = None) -> dict[str, ArraySpec]:
        """Return the arrays that an answer may hold."""
        server = replace(self._server, image_shape=image_shape)
        return server.payload_spec("site", Exchange(request.task, request.round, request.step))

    def _read_answer(self, request: Request, message: Message) -> SiteAnswer | None:
        """Return the answer as the server would read it; None where it holds other numbers, texts or names."""
        meta = message.meta
        if "error" in meta:
            # The sentence leaves as it is, so nothing may stand in it that the server would take out.
            is_plain = meta["error"] == plain_text(meta["error"]) and meta.keys() <= {"round", "error", "held"}
            return SiteAnswer() if is_plain and not message.arrays else None
        try:
            answer = self._server.read("site", Exchange(request.task, request.round, request.step), message)
            check_names("site", answer.numbers.metrics, self.study, self._server.parts)
        except AggregationError:
            return None
        # In a rehearsal nothing else leaves, and in no other round what a rehearsal says.
        if (answer.numbers.rehearsal is None) == self.study.rehearsal:
            return None
        metrics = answer.numbers.metrics
        if metrics.round_test and not self.study.evaluate_every_round:
            return None
        if self.study.is_private and (
            metrics.training.keys() - {"epsilon"} or answer.data_profile != answer.data_profile.bare
        ):
            return None
        return answer

    def _describe_array(self, name: str, array: NDArray[Any]) -> dict[str, Any]:
        kind = self.kind(name)
        return {
            "name": name,
            "kind": kind,
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "bytes": array.nbytes,
            # Of the numbers in their order, whatever the array's layout in memory is.
            "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
            "purpose": self.purpose(kind),
        }


def _expected_shape(wanted: ArraySpec, sent: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the shape that an array must have; its first axis is as it was sent, since it may count the sites."""
    if sent is None or wanted.shape is None or len(sent) != len(wanted.shape):
        return wanted.shape
    return sent if sent[1:] == wanted.shape[1:] else wanted.shape
