"""A run's folder at the server: checkpoint, ledger, metrics, models and the result, each written atomically."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from silofl.algorithms.mixing import Arrays
from silofl.errors import ConfigError
from silofl.federation.ledger import metrics_csv
from silofl.federation.outcome import finished_results, without_numbers
from silofl.federation.server import Models, ServerRounds
from silofl.federation.super_rounds import SuperRounds, single_contents
from silofl.files import held, load_tensors, save_tensors, write_json, write_text
from silofl.inference.directory import FOLDER as SUPER_MODEL
from silofl.inference.directory import plain_study
from silofl.inference.directory import write as write_super_model
from silofl.models import build_plain_model
from silofl.models.parts import AMPLITUDE, home_names
from silofl.study import Study

RESULTS = ("results.json", "ledger.json", "weights.json", "metrics.csv", "model", SUPER_MODEL)
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

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder for this process; the errors of `silofl.files.held`."""
        return held(self.path / "lock")

    def load(self, pretrained: Arrays | None = None) -> ServerRounds | None:
        """Return the run as its last checkpoint left it, or None where there is none."""
        path = self.path / "checkpoint.pt"
        if not path.is_file():
            return None
        try:
            return ServerRounds.restore(self.study, load_tensors(path), pretrained)
        except Exception:  # whatever torch and json raise on broken bytes
            raise ConfigError(f"{path} must be a whole checkpoint; it is broken: restore it or start anew") from None

    def save(self, server: ServerRounds) -> None:
        """Write the checkpoint, then what people read: ledger and metrics."""
        save_tensors(self.path / "checkpoint.pt", server.state())
        write_json(self.path / "ledger.json", [record.as_dict() for record in server.ledger])
        if server.similarity is not None:
            write_json(self.path / "weights.json", server.similarity.history)
        self._write_metrics(server, {})

    def finish(
        self,
        server: ServerRounds,
        tests: Mapping[str, dict[str, Any]],
        missing: Mapping[str, str] | None = None,
        together: SuperRounds | None = None,
    ) -> None:
        """Write the models and, last of all, the result.

        Args:
            server: The run after its last round.
            tests: The test score of each site that has one.
            missing: Why other sites have none.
            together: The super model with its selector, of a study that has one.
        """
        self._write_metrics(server, tests)
        if together is None:
            self._save_models("last", server, server.models)
            self._save_models("best", server, server.reported_models())
            write_text(self.path / "model" / "study.yaml", yaml.safe_dump(plain_study(self.study), sort_keys=False))
            write_text(self.path / "model" / "README.md", _model_readme(self.study, server))
        contents = together.contents() if together else single_contents(server)
        if contents is not None:
            write_super_model(self.path / SUPER_MODEL, contents)
        results = finished_results(server, tests, missing or {}, together)
        write_json(self.path / "results.json", results.as_dict())

    def write_failure(self, reason: str) -> None:
        """Write a result that says why there is none."""
        write_json(self.path / "results.json", without_numbers(self.study, "FAILED", [reason]).as_dict())

    def copy_results(self, target: Path) -> None:
        """Copy what the run came to, without its checkpoint, to a folder elsewhere; the same folder is left alone."""
        if target.resolve() == self.path.resolve():
            return
        for name in RESULTS:
            if (self.path / name).is_dir():
                shutil.copytree(self.path / name, target / name, dirs_exist_ok=True)
            elif (self.path / name).is_file():
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.path / name, target / name)

    def _write_metrics(self, server: ServerRounds, tests: Mapping[str, dict[str, Any]]) -> None:
        values = {site: test["value"] for site, test in tests.items()}
        text = metrics_csv(server.ledger, self.study.metric, server.reported_round(), values)
        write_text(self.path / "metrics.csv", text)

    def _save_models(self, name: str, server: ServerRounds, models: Models) -> None:
        """Save one file where all sites have the same model, else one a site."""
        arrays = next(iter(models.values()))
        is_shared = all(other.get(key) is array for other in models.values() for key, array in arrays.items())
        named = {name: arrays} if is_shared else {f"{name}-{site}": own for site, own in models.items()}
        for file, own in named.items():
            if own:
                save_tensors(self.path / "model" / f"{file}.pt", _state_dict(own, server.amplitude))


def _state_dict(arrays: Arrays, amplitude: np.ndarray | None) -> dict[str, torch.Tensor]:
    state = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    if amplitude is not None:
        state |= {AMPLITUDE: torch.from_numpy(amplitude), IS_FIXED: torch.tensor(True)}
    return state


def _model_readme(study: Study, server: ServerRounds) -> str:
    """Return how to load the models, or where they are when they never left their sites."""
    if study.recipe.stays_home == "everything":
        where = "Every site trained alone; each holds its own model in `supermodel/` of its state folder."
        return f"# Models of {study.name}\n\n{where}\n"
    plain = build_plain_model(study, study.seed)
    home = home_names(plain, study.recipe)
    return MODEL_README.format(
        name=study.name,
        best=server.reported_round(),
        last=server.finished_rounds,
        shape=_image_shape(study, server.amplitude),
        size=SIZE_KNOWN if server.amplitude is not None else SIZE_ANY,
        missing=MISSING_HOME.format(count=len(home), home=study.recipe.stays_home) if home else MISSING_COUNTS,
    )


def _image_shape(study: Study, amplitude: np.ndarray | None) -> tuple[int, ...]:
    """Return (C, H, W) of the training images, from the Resize that the study names where no amplitude tells."""
    sizes = [t.options.get("spatial_size") for t in study.data.transforms if t.name.startswith("Resize")]
    size = tuple(sizes[-1]) if sizes and isinstance(sizes[-1], (list, tuple)) else (128, 128)
    if amplitude is not None and amplitude.shape[-1] != size[-1] // 2 + 1:
        size = (amplitude.shape[-2], 2 * (amplitude.shape[-1] - 1))
    return (study.data.channels, *size)


SIZE_KNOWN = "An image must have the size of the training images: the amplitude belongs to it."
SIZE_ANY = "Without amplitude normalisation, images of other sizes pass too."
MISSING_COUNTS = "Only BatchNorm's counters of batches are missing from the files; they play no part in predictions."
MISSING_HOME = (
    "{count} arrays ({home}) never left the sites and are missing from the files: the model below predicts with "
    "untrained ones in their place. For predictions take a site's own complete `supermodel/`, from its state folder."
)
MODEL_README = """# Models of {name}

`best.pt` is the model of round {best}, `last.pt` of round {last}; `study.yaml` is the study that made them.

```python
import torch
from pathlib import Path
from silofl.study import load_study
from silofl.models import build_model

study = load_study(Path("study.yaml"))
model = build_model(study, image_shape={shape}, seed=0)
missing, unexpected = model.load_state_dict(torch.load("best.pt", weights_only=True), strict=False)
assert not unexpected
model.eval()
logits = model(torch.rand(1, *{shape}))
```

{size} {missing}
"""
