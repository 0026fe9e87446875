"""AdaFed's settings and formulas: statistics of a site, distances between sites, weights (Eqs. 5-8)."""

from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy.spatial.distance import pdist, squareform
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from silofl.base.errors import ConfigError
from silofl.base.settings import Natural, Share
from silofl.core.algorithm_option import AlgorithmOption, Traits
from silofl.core.moments import measure_inputs
from silofl.core.outliers import BEYOND
from silofl.core.recipe import Recipe
from silofl.study import Study


class Similarity(AlgorithmOption):
    """Sites with similar statistics give each other's models more weight.

    Attributes:
        source: Statistics of the layers' inputs in a ``pretrained`` model, or the BatchNorm layers' ``running``
            statistics after some shared rounds (f-AdaFed).
        layers: Layers of the pretrained model: ``all`` BatchNorm layers, or the ``last`` layer (d-AdaFed).
        rounds: Shared rounds before ``running`` statistics are taken, or ``half`` of the study's.
        refresh_every: Rounds after which ``running`` statistics are taken anew; 0 for once.
        self_weight: The paper's lambda, the weight of a site's own model.
    """

    section: ClassVar[str] = "statistics"
    implementation: ClassVar[str] = "silofl.algorithms.adafed.statistics"
    only_with: ClassVar = {
        "layers": ("source", ("pretrained",)),
        "rounds": ("source", ("running",)),
        "refresh_every": ("source", ("running",)),
    }
    source: Literal["pretrained", "running"] = "running"
    layers: Literal["all", "last"] = "all"
    rounds: Literal["half"] | Annotated[int, Field(strict=True, ge=1)] = "half"
    refresh_every: Natural = 0
    self_weight: Share = 0.5

    @property
    def traits(self) -> Traits:
        """A pretrained model, where sites are compared by one; else all get the same mean in the rounds before."""
        beside = "The statistics by which sites are compared, before the round in which the weights begin."
        if self.source == "pretrained":
            return Traits(beside=beside, needs=("pretrained",), shared_rounds=0)
        return Traits(beside=beside, shared_rounds=self.rounds)

    def check(self, study: Study, shape: Sequence[int] = (), missing: Sequence[str] = ()) -> None:
        """Refuse a study without a round left for its mixing, or without the layers that sites are compared by."""
        shared = study.recipe.shared_rounds(study.rounds)
        if shared >= study.rounds:
            raise ConfigError(
                f"rounds must be more than the {shared} before sites listen to each other by {self.section}, not "
                f"{study.rounds}; give more rounds, or lower algorithm.{self.section}.rounds"
            )
        if study.model.weights and self.source == "pretrained":
            raise ConfigError(
                "model.weights has no effect where sites are compared by a pretrained model; leave it out, or choose "
                f"algorithm.{self.section}.source: running"
            )
        normalization = study.model.normalization
        # The inputs of a layer can be measured whether it keeps statistics of them or not.
        usable = ("batch", "batch_stateless") if self.source == "pretrained" else ("batch",)
        if self.layers == "all" and normalization not in usable:
            raise ConfigError(
                "model.normalization must be batch where sites are compared by their BatchNorm layers "
                f"(algorithm.{self.section}), not {normalization}; choose batch, or another algorithm"
            )

    def conflict(self, recipe: Recipe) -> str | None:
        """Refuse to mix what never leaves a site, and running statistics that travel: averaged, they are all equal."""
        if recipe.stays == "everything":
            return "with stays: everything nothing travels that sites could mix; choose batchnorm"
        if self.source == "pretrained" and recipe.input is not None:
            return (
                "the pretrained model has seen images as they are, and input changes them; leave input out, or choose "
                "statistics.source: running"
            )
        if self.source == "running" and recipe.stays != "batchnorm":
            return (
                "stays must be batchnorm with running statistics, which are the site's own then, not "
                f"{recipe.stays!r}; or choose statistics.source: pretrained"
            )
        return None

    def sentence(self) -> str:
        """Describe the answer for the report."""
        start = (
            f"AdaFed: each site's own model keeps lambda = {self.self_weight:g} of itself and takes the rest from the "
            "others, from each the more, the closer its statistics are. These are"
        )
        if self.source == "pretrained":
            layer = {"all": "every BatchNorm layer", "last": "the last layer (d-AdaFed)"}[self.layers]
            taken = "in a pretrained model, taken once before round 1."
            return f"{start} mean and variance of the inputs of {layer} {taken}"
        after = "half of the rounds" if self.rounds == "half" else _format_rounds(self.rounds)
        again = f", and anew every {_format_rounds(self.refresh_every)}" if self.refresh_every else ""
        return f"{start} the BatchNorm layers' own, taken after {after} of FedBN{again} (f-AdaFed)."


def _format_rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


Statistics = list[tuple[NDArray[np.float64], NDArray[np.float64]]]


def collect_statistics(
    model: nn.Module, batches: Iterable[Tensor], layers: Literal["all", "last"] = "all"
) -> Statistics:
    """Return mean and population variance of each BatchNorm layer's inputs per channel, over all of a site's data.

    The model runs in evaluation mode and is left as it was. Batches are merged exactly, whatever their sizes.

    Args:
        model: The pre-trained model f.
        batches: Input tensors (B, C, ...).
        layers: ``all``: the inputs of every BatchNorm layer, found by module type, in the model's order; ``last``: the
            input of the last linear layer (d-AdaFed).

    Returns:
        One (mean, variance) a layer, each of shape (channels,).

    Raises:
        ConfigError: The model has no such layer, or there are no batches.
    """
    watched = _watched_layers(model, layers)
    was_training = model.training
    # In training mode BatchNorm would normalise by the batch and move f's own running statistics.
    model.eval()
    try:
        moments = measure_inputs(model, watched, batches)
    finally:
        model.train(was_training)
    # A layer that the forward pass never calls counts nothing, just as if there were no batches.
    if any(layer.count == 0 for layer in moments):
        raise ConfigError(
            "no batch has reached every layer, so that there are no statistics of it; give training images"
        )
    return [(layer.mean.cpu().numpy(), (layer.squares / layer.count).cpu().numpy()) for layer in moments]


def distances(statistics: Sequence[Sequence[tuple[ArrayLike, ArrayLike]]]) -> NDArray[np.float64]:
    """Return the distances between sites (Eqs. 5-6): the sum over layers of the Wasserstein distance of Gaussians.

    ``d_ij = sum_l sqrt(||mu_i,l - mu_j,l||^2 + ||sqrt(r_i,l) - sqrt(r_j,l)||^2)``

    Args:
        statistics: One list of (mean, variance) a site, the same layers everywhere.

    Returns:
        Shape (K, K), symmetric, zero on the diagonal.
    """
    count = len(statistics)
    # Each pair once, as `pdist` returns it: the distance is symmetric.
    total = np.zeros(count * (count - 1) // 2)
    for layer in range(len(statistics[0])):
        # For Gaussians with diagonal covariance the Wasserstein distance is the Euclidean one of (mu, sqrt(r)) (Eq. 6).
        means = np.array([site[layer][0] for site in statistics], np.float64)
        variances = np.array([site[layer][1] for site in statistics], np.float64)
        total = total + pdist(np.hstack([means, np.sqrt(variances)]))
    return np.asarray(squareform(total), np.float64)


def adafed_weights(distance: ArrayLike, self_weight: float) -> NDArray[np.float64]:
    """Return AdaFed's matrix (Eqs. 7-8): lambda of a site's own model, the rest by inverse distance to the others.

    A distance of 0 takes the limit: the identical sites share the rest of the row evenly.

    Args:
        distance: Shape (K, K), symmetric, zero on the diagonal.
        self_weight: The paper's lambda, in [0, 1].

    Returns:
        Weights of shape (K, K); rows sum to 1; one site alone has [[1]].
    """
    distance = np.asarray(distance, dtype=np.float64)
    if len(distance) == 1:
        return np.ones((1, 1))
    return np.stack([_weight_row(row, site, self_weight) for site, row in enumerate(distance)])


def lift_distances(distance: NDArray[Any]) -> NDArray[np.float64]:
    """Return distances in which no site is much nearer to another than the others are.

    In each row a distance counts as at least a third of the median of the row's others: a site that copies another's
    statistics, and has the distance 0, does not fill the other's row.

    Args:
        distance: Shape (K, K), zero on the diagonal.

    Returns:
        Shape (K, K), no longer symmetric; of two sites as they are.
    """
    lifted = np.array(distance, np.float64)
    if len(distance) <= 2:
        return lifted
    for i, j in permutations(range(len(distance)), 2):
        lifted[i, j] = max(distance[i, j], np.median(np.delete(distance[i], [i, j])) / BEYOND)
    return lifted


def weigh_known_sites(distance: NDArray[Any], self_weight: float, is_robust: bool = False) -> NDArray[np.float64]:
    """Return AdaFed's matrix where some sites share no statistics, so that their distances are NaN.

    Such a site listens to all sites equally; the others, among whom lambda and the inverse distances hold, do not
    listen to it. Where no site shares, every one listens to all equally.

    Args:
        distance: Shape (K, K); NaN in the row and column of a site that shares nothing.
        self_weight: The paper's lambda, in [0, 1].
        is_robust: Whether distances count as `lift_distances` returns them.

    Returns:
        Weights of shape (K, K); rows sum to 1; one site alone has [[1]].
    """
    count = len(distance)
    weights = np.full((count, count), 1 / count)
    sharing = np.flatnonzero(~np.isnan(np.diag(distance)))
    if len(sharing):
        weights[sharing] = 0
        among = distance[np.ix_(sharing, sharing)]
        if is_robust:
            among = lift_distances(among)
        weights[np.ix_(sharing, sharing)] = adafed_weights(among, self_weight)
    return weights


def running_statistics(model: nn.Module) -> Statistics:
    """Return each BatchNorm layer's running mean and variance, f-AdaFed's statistics.

    Args:
        model: A model that has been trained, with BatchNorm layers found by module type, in the model's order.

    Raises:
        ConfigError: The model has no BatchNorm layer, or one that keeps no running statistics.
    """
    layers = _watched_layers(model, "all")
    if any(layer.running_mean is None for layer in layers):
        raise ConfigError(
            "a BatchNorm layer keeps no running statistics, by which sites are compared; choose normalization: batch"
        )
    return [(_to_array(layer.running_mean), _to_array(layer.running_var)) for layer in layers]


def _to_array(values: Tensor) -> NDArray[np.float64]:
    return values.detach().double().cpu().numpy()


def statistics_sizes(model: nn.Module, layers: Literal["all", "last"] = "all") -> list[int]:
    """Return the number of channels of each layer that `collect_statistics` watches.

    Raises:
        ConfigError: The model has no such layer.
    """
    watched = _watched_layers(model, layers)
    return [layer.in_features if isinstance(layer, nn.Linear) else layer.num_features for layer in watched]


def _weight_row(distance: NDArray[Any], site: int, self_weight: float) -> NDArray[Any]:
    is_peer = np.arange(len(distance)) != site
    peers = distance[is_peer]
    # Relative to the nearest site, so that no inverse overflows. Where the nearest is at 0, this is the limit of
    # Eq. 8: share 1 for each site at 0, and 0 for all others.
    shares = np.divide(peers.min(), peers, out=np.ones(len(peers)), where=peers > 0)
    row = np.full(len(distance), self_weight)
    row[is_peer] = (1 - self_weight) * shares / shares.sum()
    return row


def _watched_layers(model: nn.Module, layers: str) -> list[Any]:
    layer_class = {"all": _BatchNorm, "last": nn.Linear}[layers]
    watched = [module for module in model.modules() if isinstance(module, layer_class)]
    if not watched:
        raise ConfigError(
            f"the model has no {layer_class.__name__.strip('_')} layer to collect statistics of; choose another network"
        )
    return watched if layers == "all" else watched[-1:]
