"""A run's folder at the server: checkpoint, ledger, metrics, models and the result, each written atomically."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from silofl import __version__
from silofl.algorithms.mixing import Arrays
from silofl.config import Study
from silofl.errors import ConfigError
from silofl.models import build_plain_model
from silofl.models.parts import AMPLITUDE, batchnorm_names
from silofl.rounds.files import load_tensors, save_tensors, write_json, write_text
from silofl.rounds.ledger import Round, metrics_csv
from silofl.rounds.server import Models, ServerRounds
from silofl.training.metrics import pooled

IS_FIXED = "input_norm.is_fixed"


class RunFolder:
    """The folder ``RUN/`` of one run.

    Args:
        path: The folder; made when missing.
        study: The study that runs in it.
    """

    def __init__(self, path: Path, study: Study) -> None:
        self.path, self.study = path, study
        path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process.

        Raises:
            ConfigError: Another process holds it.
        """
        with (self.path / "lock").open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(
                    f"{self.path} must not be in use; another run still writes it: end that first"
                ) from None
            yield

    def load(self) -> ServerRounds | None:
        """Return the run as its last checkpoint left it, or None where there is none."""
        path = self.path / "checkpoint.pt"
        return ServerRounds.restore(self.study, load_tensors(path)) if path.is_file() else None

    def save(self, server: ServerRounds) -> None:
        """Write the checkpoint, then what people read: ledger, metrics, the last model."""
        save_tensors(self.path / "checkpoint.pt", server.state())
        write_json(self.path / "ledger.json", [record.as_dict() for record in server.ledger])
        self._write_metrics(server, {})

    def finish(self, server: ServerRounds, tests: Mapping[str, dict[str, Any]]) -> None:
        """Write the models and, last of all, the result."""
        self._write_metrics(server, tests)
        self._save_models("last", server, server.models)
        self._save_models("best", server, server.reported_models())
        write_text(self.path / "model" / "README.md", _model_readme(self.study, server))
        write_json(self.path / "results.json", results(server, tests))

    def write_failure(self, reason: str) -> None:
        """Write a result that says why there is none."""
        nothing = dict.fromkeys(("best_round", "model", "mean", "spread", "pooled"))
        values = _description(self.study) | {"status": "FAILED", "reasons": [reason], "sites": {}} | nothing
        write_json(self.path / "results.json", values)

    def _write_metrics(self, server: ServerRounds, tests: Mapping[str, dict[str, Any]]) -> None:
        text = metrics_csv(server.ledger, self.study.metric, server.reported_round(), dict(tests))
        write_text(self.path / "metrics.csv", text)

    def _save_models(self, name: str, server: ServerRounds, models: Models) -> None:
        arrays = next(iter(models.values()))
        if arrays:
            save_tensors(self.path / "model" / f"{name}.pt", _state_dict(arrays, server.amplitude))


def results(server: ServerRounds, tests: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a finished run's result: one value a site, their mean, and the mean over all cases together."""
    number = server.reported_round()
    values = {site: tests[site]["value"] if site in tests else None for site in server.models}
    known = [value for value in values.values() if value is not None]
    reasons = _shortcomings(server, tests)
    chosen = f"best validation, round {number}" if server.best_round else f"last round, {number}: no validation data"
    return _description(server.study) | {
        "status": "INCOMPLETE" if reasons else "COMPLETE",
        "reasons": reasons,
        "run": server.run,
        "best_round": number,
        "model": chosen,
        "sites": values,
        "mean": float(np.mean(known)) if known else None,
        "spread": float(np.std(known)) if known else None,
        "pooled": pooled([(score["value"], score["num_cases"]) for score in tests.values()]),
        "cases": {site: score["num_cases"] for site, score in tests.items()},
        "excluded_cases": {site: score["num_excluded"] for site, score in tests.items()},
        "validation": server.ledger[number - 1].validation,
    }


def _description(study: Study) -> dict[str, Any]:
    return study.description() | {"version": __version__}


def _shortcomings(server: ServerRounds, tests: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return why a finished run is not complete: sites that missed too many rounds, or the test."""
    allowed = server.study.federation.max_missed_rounds
    reasons = []
    for site in server.models:
        missed = [record.round for record in server.ledger if site in record.missed]
        if len(missed) > allowed:
            last = next(r for r in reversed(server.ledger) if site in r.missed)
            reasons.append(f"site {site} missed rounds {missed} ({_reason(last, site)}); the study allows {allowed}")
        if site not in tests:
            reasons.append(f"site {site} did not test the model")
    return reasons


def _reason(record: Round, site: str) -> str:
    return record.failed.get(site) or record.refused.get(site) or "no answer in time"


def _state_dict(arrays: Arrays, amplitude: np.ndarray | None) -> dict[str, torch.Tensor]:
    state = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    if amplitude is not None:
        state |= {AMPLITUDE: torch.from_numpy(amplitude), IS_FIXED: torch.tensor(True)}
    return state


def _model_readme(study: Study, server: ServerRounds) -> str:
    home = batchnorm_names(build_plain_model(study, study.seed)) if study.recipe.stays_home == "batchnorm" else set()
    lines = [
        f"# Models of {study.name}",
        "",
        f"`best.pt` is the model of round {server.reported_round()}, `last.pt` of round {server.finished_rounds}.",
        "",
        "```python",
        "import torch",
        "from pathlib import Path",
        "from silofl.config import load_study",
        "from silofl.models import build_model",
        "",
        'study = load_study(Path("study.yaml"))  # the job\'s study.yaml',
        "model = build_model(study, image_shape=(C, H, W), seed=0)  # the size of the training images",
        'model.load_state_dict(torch.load("best.pt", weights_only=True), strict=False)',
        "model.eval()",
        "```",
        "",
    ]
    if home:
        lines += [
            f"{len(home)} BatchNorm arrays never left the sites and are not in these files. Each site holds its own "
            "complete model as `model.pt` in its state folder.",
            "",
        ]
    return "\n".join(lines)
