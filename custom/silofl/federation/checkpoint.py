"""The server's checkpoint: a run as plain values and tensors, and the way back."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from silofl.base import schema
from silofl.base.errors import ConfigError, StateError, quote_value
from silofl.base.settings import flatten_keys, parse
from silofl.core.mixing import Arrays
from silofl.data.data_profile import DataProfile
from silofl.federation.ledger import FILE as LEDGER
from silofl.federation.ledger import Round
from silofl.federation.more_rounds import find_obstacle
from silofl.federation.server import ServerRounds
from silofl.parts.load import start_parts
from silofl.study import STORED, Study, plain_study

# 4: with the run that it is of. Raised whenever an older file would be misread.
FORMAT = 4
# What a lead may change before a run goes on: how long the server waits and for whom, which run it is, and `rounds`
# where the finished ones keep their meaning. Everything else would make two runs of one.
MAY_CHANGE = ("continue_run", "federation")


def checkpoint(server: ServerRounds, records: Iterable[str] | None = None) -> dict[str, Any]:
    """Return a run as plain values and tensors.

    Args:
        records: The records of its ledger as JSON, where they have been put into words already.
    """
    plain = {
        "study": plain_study(server.study),
        "run": server.id,
        "sites": server.sites,
        "shape": server.image_shape,
        "lost": server.lost,
        "losses": server.losses,
        "domain": schema.dump_record(server.data_profile),
    }
    # Until an extra round has begun, a lead with more patience may let the training go on.
    if server.study.joint_rounds < min(server.study.rounds, server.finished_rounds):
        plain["joint_rounds"] = server.study.joint_rounds
    if records is None:
        records = [json.dumps(schema.dump_record(record)) for record in server.ledger]
    return {
        # The ledger joins as text: a record is put into JSON when it is new, and not at every save.
        "json": json.dumps(plain)[:-1] + f', "ledger": [{", ".join(records)}]}}',
        "parts": {role: part.state() for role, part in server.parts.items()},
        "best_parts": {role: part.state() for role, part in server.best_parts.items()},
    }


def restore_run(study: Study, state: Mapping[str, Any], pretrained: Arrays | None = None) -> ServerRounds:
    """Return the run that `checkpoint` described.

    Raises:
        StateError: The study has changed since.
        ConfigError: The study names sites that have left and never took part, or all that did.
    """
    plain = json.loads(state["json"])
    # First of all: what the parts have saved means something under the same study only.
    check_study(study, state)
    _check_sites_left(study, plain)
    study = study.ended_after(plain.get("joint_rounds"))
    parts = start_parts(study, plain["sites"], pretrained)
    return ServerRounds(
        study=study,
        id=plain["run"],
        sites=plain["sites"],
        parts={role: part.restored(state["parts"].get(role, {})) for role, part in parts.items()},
        ledger=read_finished_rounds(state),
        best_parts={role: parts[role].restored(saved) for role, saved in state["best_parts"].items()},
        image_shape=plain["shape"] and tuple(plain["shape"]),
        data_profile=schema.read_record(DataProfile, plain["domain"], "the checkpoint's data profile"),
        lost=plain["lost"],
        losses=plain["losses"],
    )


def read_finished_rounds(state: Mapping[str, Any]) -> list[Round]:
    """Return the finished rounds in a checkpoint."""
    return [schema.read_record(Round, record, LEDGER) for record in json.loads(state["json"])["ledger"]]


def check_study(study: Study, state: Mapping[str, Any]) -> None:
    """Refuse to go on with a run by another study than it was begun with, except in what it may change.

    Raises:
        StateError: Names the keys, with the values of the run.
    """
    plain = json.loads(state["json"])
    before = dict(flatten_keys(_add_defaults(plain["study"])))
    now = dict(flatten_keys(plain_study(study)))
    changed = []
    for key in sorted(before | now):
        if before.get(key) != now.get(key) and key.partition(".")[0] not in MAY_CHANGE:
            changed.append(key)
    if changed == ["rounds"]:
        # A run that patience has ended is compared by the rounds that it had.
        begun = parse(Study, plain["study"], "checkpoint", STORED).ended_after(plain.get("joint_rounds"))
        _check_rounds(begun, study, len(plain["ledger"]), plain["run"])
    elif changed:
        values = [f"{key} was {_format_value(before.get(key))} and is {_format_value(now.get(key))}" for key in changed]
        raise StateError(
            f"study.yaml has changed since run {plain['run']} was begun: {', '.join(values)}; set it back, or start "
            "anew"
        )


def _check_sites_left(study: Study, plain: Mapping[str, Any]) -> None:
    left = study.federation.sites_left
    sites = plain["sites"]
    if not set(left) < set(sites):
        raise ConfigError(
            f"federation.sites_left must name some of the sites of run {plain['run']}, {', '.join(sites)}, not "
            f"{quote_value([*left])}; correct it"
        )
    named = study.federation.named
    if named and (missing := sorted({*sites} - {*named, *left})):
        raise ConfigError(
            f"federation.sites must name all sites of run {plain['run']}, not leave out {', '.join(missing)}; add "
            "them, or name them in federation.sites_left"
        )


def _add_defaults(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a study with the defaults of keys that are younger than it is."""
    try:
        return plain_study(parse(Study, plain, "checkpoint", STORED))
    except ConfigError:
        # A key that is gone, which the caller names.
        return plain


def _check_rounds(before: Study, now: Study, finished: int, run: str) -> None:
    """Refuse a new number of rounds with which the finished ones would have been others.

    Raises:
        StateError: Says why.
    """
    if now.rounds < finished:
        raise StateError(
            f"rounds must be at least {finished}, as many as run {run} has finished, not {now.rounds}; ask for more, "
            "or leave it"
        )
    if obstacle := find_obstacle(before, now, finished):
        raise StateError(
            f"Run {run} cannot go on to {now.rounds} rounds: {obstacle}. Leave rounds at {before.rounds}, or start a "
            "new run."
        )


def _format_value(value: object) -> str:
    return "absent" if value is None else json.dumps(value)
