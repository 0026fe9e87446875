"""Training with differential privacy: DP-SGD (Abadi et al., CCS 2016, arXiv:1607.00133, Algorithm 1), through Opacus.

Each step draws every unit, a patient or an example, with the same probability on its own (Poisson), clips each drawn
unit's gradient to a norm, adds noise to their sum, and divides by the expected number of units. What the steps have
spent is counted for neighbours that differ in one unit. The draws and the noise come from the system's secret random
numbers and never from the study's seed, which the server knows.
"""

import secrets
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from silofl.base.errors import ConfigError, TrainingError
from silofl.core.steps import Batch, Loss, Step, full_precision
from silofl.data.batches import num_batches
from silofl.data.parts import Examples
from silofl.models.networks import find_influence
from silofl.study import Study
from silofl.study.sections import DpSgdSettings
from silofl.training.privacy_budget import PrivacyBudget


def group_rows(examples: Examples, unit: str) -> list[NDArray[np.int64]]:
    """Return the rows of each unit's examples.

    Raises:
        TrainingError: Units are patients, and somebody's is not known.
    """
    if unit == "example":
        return [np.array([row]) for row in range(len(examples))]
    rows: dict[str | None, list[int]] = {}
    for row, patient in enumerate(examples.patients):
        rows.setdefault(patient, []).append(row)
    if None in rows:
        raise TrainingError(
            f"the patients of {len(rows[None])} of {len(examples)} training examples are not known; name them in "
            "dataset.json, or set privacy.dp_sgd.unit to example"
        )
    return [np.array(of_patient) for of_patient in rows.values()]


def measure_round(study: Study, examples: Examples) -> tuple[int, PrivacyBudget]:
    """Return how many units a site's training data have, and what a round of training spends.

    Raises:
        TrainingError: Patients are not known, or delta is too large for so few units.
    """
    # Private studies alone are measured.
    settings: Any = study.privacy.dp_sgd
    units = len(group_rows(examples, settings.unit))
    if settings.delta >= 1 / units:
        raise TrainingError(
            f"privacy.dp_sgd.delta must be below 1 / {units}, the {settings.unit}s in training, not "
            f"{settings.delta:g}, or one of them could be shown whole; lower it"
        )
    rate = compute_rate(units, study.training.batch_size)
    steps = num_batches(examples, study.training.batch_size) * study.training.local_epochs
    return units, PrivacyBudget(settings.noise, rate, steps, settings.unit)


def compute_study_epsilon(study: Study, of_round: PrivacyBudget, before: Sequence[PrivacyBudget] = ()) -> float:
    """Return the epsilon of all rounds of training, and of what was spent before, at the study's delta."""
    whole = of_round._replace(steps=of_round.steps * study.training_rounds)
    settings: Any = study.privacy.dp_sgd
    return compute_epsilon(add_steps(before, whole), settings.delta)


def draw_batches(examples: Examples, batch_size: int, unit: str) -> list[NDArray[np.int64]]:
    """Draw an epoch's batches, secretly: of each drawn unit one example, so that no unit weighs more than another.

    Args:
        batch_size: Units that a batch has on average, or all where there are fewer.
        unit: ``patient`` or ``example``.

    Returns:
        The rows of each batch, as many batches as a plain epoch has; one may be empty.
    """
    rng = np.random.default_rng(secrets.randbits(128))
    units = group_rows(examples, unit)
    rate = compute_rate(len(units), batch_size)
    batches = []
    for _ in range(num_batches(examples, batch_size)):
        is_drawn = rng.random(len(units)) < rate
        rows = [rng.choice(units[index]) for index in np.flatnonzero(is_drawn)]
        batches.append(np.array(rows, dtype=np.int64))
    return batches


def compute_rate(num_units: int, batch_size: int) -> float:
    """Return the probability with which a step draws a unit."""
    return min(1.0, batch_size / num_units)


def private_step(settings: DpSgdSettings, units: float, generators: list[torch.Generator] | None = None) -> Step:
    """Return a step whose gradient is clipped by example and noisy, and whose loss is 0: no noise covers the true one.

    Where an example's gradient is not finite, it counts as 0: else the server could choose weights at which one image
    alone undoes the noise.

    Args:
        units: Examples that a batch has on average.
        generators: The one that draws the noise; the first step puts a secret one into a list that has none.
    """
    opacus = _import_opacus()
    generators = [] if generators is None else generators

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> Tensor:
        inputs, targets = batch
        modules: Iterable[Any] = model.modules()
        for module in modules:
            # Opacus refuses running statistics only of layers that also learn.
            if isinstance(module, nn.modules.batchnorm._BatchNorm) or getattr(module, "track_running_stats", False):
                raise TrainingError(
                    "the network has BatchNorm or running statistics, which the noise of privacy.dp_sgd does not "
                    "cover; take another one, or other model.arguments"
                )
            # Opacus sees what goes into a layer, which an activation in place would change behind its back.
            if getattr(module, "inplace", False):
                module.inplace = False
        if not generators:
            _check_apart(model, inputs)
            generators.append(torch.Generator(inputs.device).manual_seed(secrets.randbits(63)))
        private = opacus.optimizers.DPOptimizer(
            optimizer,
            noise_multiplier=settings.noise,
            max_grad_norm=settings.clip,
            expected_batch_size=units,
            generator=generators[0],
            # Several draws a number, against what the last bits of one would tell (Holohan and Braghin, 2021).
            secure_mode=True,
        )
        private.zero_grad(set_to_none=True)
        _compute_example_gradients(opacus, model, loss, inputs, targets)
        for gradients in private.grad_samples:
            gradients.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        private.step()
        for parameter in model.parameters():
            for name in ("grad_sample", "summed_grad"):
                vars(parameter).pop(name, None)
        return torch.zeros(())

    return step


def _check_apart(model: nn.Module, inputs: Tensor) -> None:
    """Refuse a network whose answer to an image depends on others: only what it does to its own gradient is clipped."""
    if find_influence(model, inputs) == "others":
        raise TrainingError(
            "the network answers an image from the others of its batch too, which the noise of privacy.dp_sgd does not "
            "cover; take another one"
        )


def compute_epsilon(spent: Iterable[PrivacyBudget], delta: float) -> float:
    """Return the epsilon of all steps together at a delta: the smaller of two upper bounds, both of Opacus.

    The privacy losses' distribution, composed numerically (Gopi et al., NeurIPS 2021, arXiv:2106.02848), is the tighter
    one. Rényi divergences also bound the noise that is too small for its numbers.
    """
    return _bound_epsilon(tuple(steps for steps in spent if steps.steps), delta)


# Each round of a site asks for the same count twice.
@cache
def _bound_epsilon(spent: tuple[PrivacyBudget, ...], delta: float) -> float:
    if not spent:
        return 0.0
    accountants = _import_opacus().accountants
    divergences = [steps.steps * _measure_step(steps.noise, steps.rate) for steps in spent]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # An order at the end of Opacus's list gives a bound that holds, if not the best.
        warnings.simplefilter("ignore")
        orders = accountants.RDPAccountant.DEFAULT_ALPHAS
        loose = float(accountants.analysis.rdp.get_privacy_spent(orders=orders, rdp=sum(divergences), delta=delta)[0])
        if loose <= 0:
            # A large delta permits all that these steps show.
            return 0.0
        accountant = accountants.PRVAccountant()
        accountant.history = [(steps.noise, steps.rate, steps.steps) for steps in spent]
        try:
            # Within half a percent, so that its mesh and its seconds do not grow with epsilon.
            tight = float(accountant.get_epsilon(delta, eps_error=0.005 * loose))
        except (RuntimeError, ValueError):
            # So Opacus ends where a distribution is wider than floating-point numbers.
            return loose
    return max(min(loose, tight), 0.0)


@cache
def _measure_step(noise: float, rate: float) -> NDArray[np.float64]:
    """Return the divergences of one step, by order; those of several steps are their sum.

    Kept, as they take Opacus a quarter of a second, and every round asks for the same ones.
    """
    accountants = _import_opacus().accountants
    orders = accountants.RDPAccountant.DEFAULT_ALPHAS
    divergences: NDArray[np.float64] = accountants.analysis.rdp.compute_rdp(
        q=rate, noise_multiplier=noise, steps=1, orders=orders
    )
    return divergences


def add_steps(spent: Sequence[PrivacyBudget], more: PrivacyBudget) -> list[PrivacyBudget]:
    """Return steps with some more, those of one kind together."""
    total = more.steps
    different = []
    for steps in spent:
        if steps._replace(steps=more.steps) == more:
            total += steps.steps
        else:
            different.append(steps)
    return [*different, more._replace(steps=total)]


def _compute_example_gradients(
    opacus: ModuleType, model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor
) -> None:
    """Leave each example's own gradient at the parameters."""
    if not len(inputs):
        # Nobody was drawn: the step is noise alone.
        parameters: Iterable[Any] = model.parameters()
        for parameter in parameters:
            parameter.grad_sample = torch.zeros((0, *parameter.shape), device=parameter.device)
        return
    hooked = opacus.GradSampleModule(model, loss_reduction="sum")
    try:
        with full_precision(model), warnings.catch_warnings():
            # The images need no gradient, which torch remarks on.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            # One by one, or what a loss divides by could let an example change the gradients of the others.
            pairs = zip(hooked(inputs).split(1), torch.split(targets, 1), strict=True)
            total: Any = sum(loss(answer, target) for answer, target in pairs)
            total.backward()
    finally:
        hooked.remove_hooks()


def _import_opacus() -> ModuleType:
    """Return Opacus, which only studies with differential privacy need."""
    try:
        import opacus
        import opacus.accountants
        import opacus.optimizers
    except ImportError:
        raise ConfigError("Opacus, which privacy.dp_sgd needs, is not installed; pip install 'silofl[dp]'") from None
    package: ModuleType = opacus
    return package
