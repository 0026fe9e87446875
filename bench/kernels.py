"""The promises of single operations: one thread, each beside its rival in turn."""

import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import torch
from measured import Row, medians
from memory import GIB
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from torch import nn
from torch.optim import Optimizer

from silofl.algorithms.adafed import distances
from silofl.algorithms.harmofl import AmplitudeNorm
from silofl.base.settings import parse
from silofl.core.mixing import mix
from silofl.core.steps import Batch, GradientStep, Loss, Step, plain_step
from silofl.models import build_model
from silofl.models.selector import build_selector
from silofl.study import Study
from silofl.training.device import set_threads
from silofl.training.evaluation import compute_softmax
from silofl.training.local_model import LocalModel
from silofl.training.loop import Learner, make_optimizer, train
from silofl.training.losses import make_loss


def amplitude_norm(is_short: bool) -> Iterator[Row]:
    """Compare amplitude normalisation of a batch with a bare rfft2 and irfft2 of the same batch."""
    images = torch.rand(128, 3, 96, 96)
    learning, fixed = AmplitudeNorm((3, 96, 96)), AmplitudeNorm((3, 96, 96))
    learning(images)
    fixed.fix(learning.running_amplitude)
    bare, training, known = medians(
        lambda: torch.fft.irfft2(torch.fft.rfft2(images), s=(96, 96)), lambda: learning(images), lambda: fixed(images)
    )
    # In training all images are transformed before the first is changed, so that the spectra pass no cache.
    yield Row("AmpNorm of 128 x 3 x 96 x 96, learning", training, "bare rfft2 + irfft2", bare, 1.8, aim=1.3)
    yield Row("AmpNorm of 128 x 3 x 96 x 96, fixed", known, "bare rfft2 + irfft2", bare, 1.7, aim=1.1)


def perturbed_steps(is_short: bool) -> Iterator[Row]:
    """Compare the perturbed step with two plain passes of the same model and one of Adam's steps."""
    segmentation, classification = (
        study_of("harmofl", preset="paper"),
        study_of("harmofl", "densenet121", preset="paper"),
    )
    cases = [("U-Net", segmentation, tiles())]
    if not is_short:
        cases.append(("DenseNet-121", classification, (torch.rand(8, 3, 64, 64), torch.randint(0, 2, (8,)))))
    for name, study, batch in cases:
        model, loss = build_model(study, batch[0].shape[1:], seed=0).train(), make_loss(study)
        optimizer, step = make_optimizer(study.training, model), study.recipe.step.make_step()

        def two_passes(
            model: nn.Module = model, optimizer: Optimizer = optimizer, loss: Loss = loss, batch: Batch = batch
        ) -> None:
            for _ in range(2):
                optimizer.zero_grad(set_to_none=True)
                loss(model(batch[0]), batch[1]).backward()
            optimizer.step()

        def perturbed(step: Step = step, arguments: tuple = (model, optimizer, loss, batch)) -> None:
            step(*arguments)

        plain, ours = medians(two_passes, perturbed, repeats=3 if is_short else 9)
        bound = 1.05 if study.task == "segmentation" else 1.15
        yield Row(f"perturbed step, {name}", ours, "two plain passes, one step of Adam", plain, bound, aim=1.03)


def mixing(is_short: bool) -> Iterator[Row]:
    """Compare the mixing of 20 sites with one float32 matrix product, and of a shared row with a sum in float32."""
    millions = 3 if is_short else 30
    rng = np.random.default_rng(0)
    shape = (millions * 1000, 1000)
    params = {f"site-{k}": {"w": rng.standard_normal(shape, dtype=np.float32)} for k in range(20)}
    weights = rng.random((20, 20)) + 0.1
    weights /= weights.sum(axis=1, keepdims=True)
    shared, single = np.tile(weights[0], (20, 1)), weights.astype(np.float32)

    def stack() -> NDArray:
        return np.stack([arrays["w"].reshape(-1) for arrays in params.values()])

    def summed() -> NDArray:
        total = np.zeros(shape, np.float32)
        for arrays, weight in zip(params.values(), single[0], strict=True):
            total += weight * arrays["w"]
        return total

    # The machine hands out fresh memory at its own pace: many gigabytes cost more than the sums.
    one, own, plain, common = medians(
        lambda: single @ stack(), lambda: mix(params, weights), summed, lambda: mix(params, shared), repeats=3
    )
    ready = stack()
    (bare,) = medians(lambda: single @ ready, repeats=3)
    what = f"mixing 20 sites x {millions} M float32, "
    yield Row(f"{what}rows of their own", own, "stacked, and one float32 product", one, 2.5)
    yield Row(f"{what}rows of their own once more", own, "the product of arrays that lie stacked", bare, 5, aim=2.5)
    yield Row(f"{what}one shared row", common, "a float32 sum", plain, 1.5)
    inputs = sum(arrays["w"].nbytes for arrays in params.values()) / GIB
    memory = inputs + peak_of(lambda: mix(params, weights)) / GIB
    yield Row(f"{what}memory", memory, "inputs and outputs", 2 * inputs, 1.15, "GiB")


def peak_of(action: Callable[[], object]) -> int:
    """Return the most bytes that an action holds at a time, its result with them."""
    tracemalloc.start()
    action()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def all_distances(is_short: bool) -> Iterator[Row]:
    """Measure AdaFed's distances of 100 sites; beside them stand the distances of arrays that lie ready."""
    rng = np.random.default_rng(0)
    layers = 12 if is_short else 121
    statistics = [[(rng.normal(size=256), rng.random(256)) for _ in range(layers)] for _ in range(100)]
    ready = [np.stack([np.hstack(site[layer]) for site in statistics]) for layer in range(layers)]
    ours, bare = medians(lambda: distances(statistics), lambda: [pdist(layer) for layer in ready])
    what = f"AdaFed's distances, 100 sites x {layers} layers x 256"
    yield Row(f"{what} (bare distances {1000 * bare:.0f} ms)", ours, "-", None, 0.25, aim=0.2)


def three_models(is_short: bool) -> Iterator[Row]:
    """Compare FedSM's three models, trained in one pass, with the sum of the three alone."""
    study = study_of("fedsm", normalization="instance")
    selector = build_selector(study, 4, seed=0)
    learners = {"global": plain_learner(study), "personal": plain_learner(study)}
    learners["selector"] = Learner(selector, None, _names_first_site, GradientStep())
    yield from _together("FedSM's three models on one batch", learners, "each of the three alone", 1.05, is_short)


def local_model(is_short: bool) -> Iterator[Row]:
    """Compare a federated step with a local model beside it with one federated and one local step."""
    study = study_of("fedavg")
    local = LocalModel(study, torch.device("cpu"), {}, {})
    learners = {"model": plain_learner(study), "local": local.prepare_learner(make_loss(study), 1)}
    yield from _together("a step with a local model beside it", learners, "a federated and a local step", 1.1, is_short)


def threads(is_short: bool) -> Iterator[Row]:
    """Compare training and evaluation on two cores, as ``torch_threads: auto`` has it, with those on one."""
    study, batch = study_of("fedavg"), tiles()
    learner = plain_learner(study)
    found = {}
    for number in (1, 2):
        set_threads(number)
        found[number] = medians(
            lambda: train({"model": learner}, [[batch]]),
            lambda: compute_softmax(learner.model, batch[0].numpy(), len(batch[0]), torch.device("cpu")),
            repeats=3 if is_short else 9,
        )
    set_threads(1)
    for what, one, two in zip(("a step of a U-Net", "the evaluation of a batch"), *found.values(), strict=True):
        yield Row(f"{what} on 2 threads", two, "on 1", one, 0.9)


def _together(what: str, learners: dict[str, Learner], beside: str, bound: float, is_short: bool) -> Iterator[Row]:
    batches = [tiles()]

    def apart() -> None:
        for role, learner in learners.items():
            train({role: learner}, [batches])

    alone, together = medians(apart, lambda: train(learners, [batches]), repeats=3 if is_short else 9)
    yield Row(what, together, beside, alone, bound)


def _names_first_site(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def study_of(algorithm: str, network: str = "unet", normalization: str = "batch", **options: str) -> Study:
    """Return a study of segmentation with a U-Net of six stages, or of classification with another network."""
    is_unet = network == "unet"
    base = {"name": "speed", "task": "segmentation", "labels": {1: "nucleus"}, "rounds": 1}
    base |= {} if is_unet else {"task": "classification", "labels": {0: "normal", 1: "tumour"}, "metric": "accuracy"}
    model = {"name": network, "normalization": normalization} | (
        {"features": [16, 16, 32, 64, 128, 16]} if is_unet else {}
    )
    training = {} if is_unet else {"training": {"loss": "cross_entropy"}}
    algorithm = {"name": algorithm, **options}
    return parse(Study, base | {"model": model, "data": {"channels": 3}, "algorithm": algorithm} | training, "bench")


def tiles() -> Batch:
    """Return a batch of images and label maps."""
    return torch.rand(8, 3, 128, 128), (torch.rand(8, 128, 128) > 0.7).long()


def plain_learner(study: Study) -> Learner:
    """Return a model that learns by plain steps."""
    model = build_model(study, (3, 128, 128), seed=0)
    return Learner(model, make_optimizer(study.training, model), make_loss(study), plain_step)


MEASURES = (amplitude_norm, perturbed_steps, mixing, all_distances, three_models, local_model, threads)
