"""The server's checkpoint: a run as plain values and tensors, and the way back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from silofl import schema
from silofl.algorithms.mixing import Arrays
from silofl.data.domain import Domain
from silofl.errors import ConfigError
from silofl.federation.ledger import Round
from silofl.federation.server import ServerRounds
from silofl.methods.parts import start_parts
from silofl.study import Study

# 2: every array under the role of its part. Raised whenever an older file would be misread.
FORMAT = 2


def checkpoint(server: ServerRounds) -> dict[str, Any]:
    """Return a run as plain values and tensors."""
    plain = {"run": server.id, "sites": server.sites, "best_round": server.best_round, "shape": server.image_shape}
    plain["domain"] = schema.plain(server.domain)
    return {
        "format": FORMAT,
        "json": json.dumps(plain | {"ledger": [record.as_dict() for record in server.ledger]}),
        "parts": {role: part.state() for role, part in server.parts.items()},
        "best_parts": {role: part.state() for role, part in server.best_parts.items()},
    }


def restored(study: Study, state: Mapping[str, Any], pretrained: Arrays | None = None) -> ServerRounds:
    """Return the run that `checkpoint` described.

    Raises:
        ConfigError: Another version of SiloFL wrote it.
    """
    if state.get("format") != FORMAT:
        raise ConfigError(
            f"a checkpoint must have format {FORMAT}, not {state.get('format', 1)}; go on with the version of SiloFL "
            "that wrote it, or start anew"
        )
    plain = json.loads(state["json"])
    parts = start_parts(study, plain["sites"], pretrained)
    return ServerRounds(
        study,
        plain["run"],
        plain["sites"],
        {role: part.restored(state["parts"][role]) for role, part in parts.items()},
        [Round.from_dict(record) for record in plain["ledger"]],
        plain["best_round"],
        {role: parts[role].restored(one) for role, one in state["best_parts"].items()},
        plain["shape"] and tuple(plain["shape"]),
        schema.read(Domain, plain.get("domain", {}), "the checkpoint's domain"),
    )
