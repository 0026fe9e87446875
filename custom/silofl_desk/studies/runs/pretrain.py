"""``silofl pretrain``: train AdaFed's model f on a share of all sites' training data, which only a simulation can pool.

Chen et al., Personalized Federated Learning with Adaptive Batchnorm for Healthcare, arXiv:2112.00734: 20 % of the data.
Only training examples are used, so that the model has seen no test example.
"""

import argparse
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from silofl.base.errors import ConfigError, ExitCode
from silofl.base.files import save_tensors
from silofl.base.options import make_console
from silofl.core.steps import Batch, plain_step
from silofl.data.batches import training_batches
from silofl.data.parts import Examples
from silofl.data.progress import track_progress
from silofl.data.transforms import build_augmentation
from silofl.models import build_plain_model
from silofl.models.seeds import seed_torch
from silofl.study import Study
from silofl.training.device import choose_device, derive_seed, set_threads
from silofl.training.evaluation import evaluate
from silofl.training.home_statistics import fix_home_statistics
from silofl.training.loop import Learner, make_optimizer, train
from silofl.training.losses import make_loss
from silofl_desk.options import path_to_text, read_changes
from silofl_desk.studies.runs.joined_examples import join_examples
from silofl_desk.studies.runs.simulated_sites import read_data
from silofl_desk.studies.runs.simulation import Simulation, settle_job

WARNING = (
    "PRETRAIN: this pools {count} training examples of {sites} sites, {share:.0%} of each, in one place. It is "
    "possible in a simulation alone; in a federation no example leaves its site: take a model trained on public data, "
    "or statistics: running, which needs none."
)


def run(options: argparse.Namespace) -> int:
    """Train and write a pretrained model."""
    wanted = Simulation(data=path_to_text(options.data), cache=path_to_text(options.cache), is_in_process=True)
    pretrain(
        options.job,
        options.out,
        wanted,
        read_changes(options),
        options.share,
        options.epochs,
        make_console(options),
    )
    return ExitCode.COMPLETE


def pretrain(
    job: Path,
    out: Path,
    wanted: Simulation,
    changes: Mapping[str, object],
    share: float,
    epochs: int | None,
    console: Console,
) -> Path:
    """Train a job's network on a share of every site's training data, and write it for ``--pretrained``.

    Args:
        job: Job folder whose study names network, training and seed.
        out: New file, ending in ``.pt``.
        changes: To the study, by dotted key.
        share: Of each site's training examples, above 0 and at most 1.
        epochs: Passes over the pooled examples; as many as the study has rounds times local epochs where None.
        console: Shows what is pooled, and the model's score.

    Raises:
        ConfigError: The job, the share or the file is wrong.
        DataError: A site's data is wrong.
    """
    if out.suffix != ".pt" or out.exists():
        raise ConfigError(f"--out must be a new file that ends in .pt, not {out}; name another")
    if not 0 < share <= 1:
        raise ConfigError(f"--share must be above 0 and at most 1, not {share}")
    study, simulation = settle_job(job, wanted, changes)
    if study.model.weights:
        raise ConfigError(
            f"The study begins with {study.model.weights!r}, but a pretrained model begins with the seed's weights. "
            "Remove model.weights from study.yaml."
        )
    sites = read_data(study, simulation, out.parent)
    # What the study freezes in the federation must learn here.
    study = study.unfrozen
    pool = join_examples({site: draw_share(data.training, share, study.seed, site) for site, data in sites.items()})
    console.print(
        WARNING.format(count=len(pool), sites=len(sites), share=share), style="bold red", markup=False, highlight=False
    )
    epochs = epochs or study.rounds * study.training.local_epochs
    model, loss = _train_on_pool(study, pool, epochs)
    # No site's test examples were trained on: they tell what the model is worth.
    test = join_examples({site: data.test for site, data in sites.items()})
    fix_home_statistics(model, pool.images, study, choose_device(study.device))
    _, score = evaluate(model, test, study, choose_device(study.device))
    save_tensors(out, {name: value.cpu() for name, value in model.state_dict().items()})
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    console.print(
        f"{out}: {epochs} epoch{'s' * (epochs != 1)} on {len(pool)} examples, loss {loss:.3f} in the last; "
        f"{study.metric} {score.value:.3f} on all sites' test data, which it has not seen"
    )
    console.print(f"a study that starts from it alone has model.pretrained_sha256: {digest}", markup=False)
    return out


def draw_share(part: Examples, share: float, seed: int, site: str) -> Examples:
    """Return a share of a part's examples, at least one, drawn by a seed."""
    # A share of few examples may round to none.
    count = max(1, round(share * len(part)))
    rows = np.random.default_rng(derive_seed(seed, site, "pretrain")).permutation(len(part))[:count]
    # The order of the examples stays, as the slices of a volume follow one another.
    return part.select_rows(sorted(rows.tolist()))


def _train_on_pool(study: Study, pool: Examples, epochs: int) -> tuple[torch.nn.Module, float]:
    """Return the trained model and its loss in the last epoch."""
    set_threads(study.torch_threads)
    device = choose_device(study.device)
    model = build_plain_model(study, study.seed).to(device)
    # The loop trains several models side by side; there is one here, and it needs no name.
    learners: Mapping[str, Learner] = {
        "": Learner(
            model,
            make_optimizer(study.training, model),
            make_loss(study, pool.annotated, pool.has_ignored, pool.targets),
            plain_step,
        )
    }
    for batches in track_progress(_make_epochs(study, pool, epochs, device), epochs, "pretraining", unit="epochs"):
        result = train(learners, [batches])[""]
    return model, result.loss


def _make_epochs(study: Study, pool: Examples, epochs: int, device: torch.device) -> Iterator[Iterator[Batch]]:
    augment = build_augmentation(study, has_label_map=study.task == "segmentation")
    for epoch in range(epochs):
        seed = derive_seed(study.seed, "pretrain", epoch)
        # Dropout draws from torch's global generator.
        seed_torch(seed)
        yield training_batches(pool, study.training.batch_size, augment, seed, device, sampler=study.training.sampler)
