"""The networks that a study may name, from MONAI and from this folder, each behind its input normalisation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_parameter_registration_hook

from silofl.base.errors import ConfigError, error_text
from silofl.models.activity_cnn import ActivityCNN
from silofl.models.alexnet import AlexNet
from silofl.models.features import add_projection_head
from silofl.models.frozen import freeze_parameters, frozen_names, list_still_layers
from silofl.models.lenet5 import LeNet5
from silofl.models.monai_networks import FORMS, build_monai_network, build_named
from silofl.models.names import traveling_names
from silofl.models.normalization import INSTANCE_NORMS, count_groups, replace_batchnorm
from silofl.models.seeds import seed_torch
from silofl.setup.extensions import NETWORKS as GROUP
from silofl.setup.extensions import is_extension, load_extension
from silofl.study import Study
from silofl.study.data_settings import PatchSettings
from silofl.study.sections import ModelSettings

# Windows of a volume that the network sees at a time.
WINDOWS_AT_ONCE = 2
# How a network in training answers a batch; `silofl.training.processes` has several processes answer it.
ANSWER_BATCH: ContextVar[Callable[[nn.Module, Tensor], Tensor]] = ContextVar("answer_batch", default=nn.Module.__call__)
# Parameters, and arrays of them, of a network: 4 GiB in float32, as much as a job may bring, and some seconds to build.
MOST_PARAMETERS = 1 << 30
MOST_ARRAYS = 10_000


class HarmonizedModel(nn.Module):
    """A network behind its input normalisation; it may run under bfloat16 autocast.

    Channels come last in memory: the same numbers, of 2D images a step about a quarter faster on the CPU.

    A network that learns from patches looks through larger volumes, in evaluation mode, by overlapping windows of a
    patch's size, whose answers are averaged with the weights of a Gaussian (MONAI's sliding_window_inference).

    Attributes:
        input_norm: The layer of the recipe's input normalisation, or the identity.
        network: The study's network.
        precision: ``auto`` is ``bfloat16`` on a GPU, and ``float32`` elsewhere.
        patches: The size of its windows, and their overlap; None where it sees whole images.
        is_autocast: Whether the network may run in bfloat16 at the moment.
        frozen: Names of the arrays that neither learn nor travel.
    """

    frozen: frozenset[str] = frozenset()

    def __init__(
        self, input_norm: nn.Module, network: nn.Module, precision: str, patches: PatchSettings | None = None
    ) -> None:
        super().__init__()
        self.input_norm = input_norm
        is_3d = any(parameter.ndim == 5 for parameter in network.parameters())
        self._memory_format = torch.channels_last_3d if is_3d else torch.channels_last
        self.network = network.to(memory_format=self._memory_format)  # type: ignore[call-overload]
        self.precision = precision
        self.patches = patches
        self.is_autocast = precision != "float32"
        self._still: list[nn.Module] = []

    def freeze(self) -> None:
        """Keep from now on what no optimiser moves: it does not travel, and its running statistics stay."""
        self.frozen = frozen_names(self)
        self._still = list_still_layers(self)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; frozen BatchNorm is always in evaluation mode."""
        super().train(mode)
        for layer in self._still:
            layer.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return logits in float32: (B, out_channels, *spatial) or (B, classes) for images (B, C, *spatial)."""
        # In training the images are patches already.
        if self.training:
            return self._compute_logits(images)
        return self._apply_by_windows(self._compute_logits, images)

    def normalized(self, images: Tensor) -> Tensor:
        """Return what the network sees of images, of volumes what it sees through its windows."""
        return self._apply_by_windows(self.input_norm, images)

    def _apply_by_windows(self, function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        if self.patches is None:
            return function(images)
        return apply_by_windows(function, images, self.patches.size, self.patches.overlap)

    def _compute_logits(self, images: Tensor) -> Tensor:
        images = self.input_norm(images).contiguous(memory_format=self._memory_format)
        is_bfloat16 = self.is_autocast and (images.is_cuda or self.precision == "bfloat16")
        # bfloat16 has float32's range, so gradients need no scaling as in float16.
        with torch.autocast(images.device.type, torch.bfloat16, enabled=is_bfloat16):
            logits = ANSWER_BATCH.get()(self.network, images) if self.training else self.network(images)
        return logits.float()


def apply_by_windows(
    function: Callable[[Tensor], Tensor], images: Tensor, size: Sequence[int], overlap: float
) -> Tensor:
    """Return a function of images (B, C, *spatial), looked at by overlapping windows of a size."""
    if tuple(images.shape[2:]) == tuple(size):
        return function(images)
    from monai.inferers.utils import sliding_window_inference

    return sliding_window_inference(images, size, WINDOWS_AT_ONCE, function, overlap=overlap, mode="gaussian")  # type: ignore[return-value]


def build_model(study: Study, image_shape: Sequence[int], seed: int) -> HarmonizedModel:
    """Build a study's model with weights drawn from a seed; torch's own random state is left alone.

    Args:
        study: Names the network, its normalisation layer and the recipe's input normalisation.
        image_shape: (C, *spatial) of the images, or patches, to which the input normalisation may belong.
        seed: Seed of the initial weights.
    """
    norm: Any = study.recipe.input
    return _build_behind(norm.make_layer(image_shape) if norm else nn.Identity(), study, seed)


def has_free_normalization(settings: ModelSettings) -> bool:
    """Whether a network can be built with any normalisation: not where its class or a package decides it."""
    if settings.network is None:
        return True
    form = FORMS.get(settings.network.rpartition(".")[2])
    return not is_extension(settings.network) and form is not None and form.norm is not None


def build_plain_model(study: Study, seed: int) -> HarmonizedModel:
    """Build the same model without input normalisation, for the server, which sees no image and knows no size."""
    return _build_behind(nn.Identity(), study, seed)


def check_network(study: Study, image_shape: Sequence[int]) -> None:
    """Refuse a network that does not take a study's images, by trying it once.

    Args:
        image_shape: (C, *spatial) of the images, or patches.

    Raises:
        ConfigError: The network cannot be built, cannot learn from blank images, or gives no answer of its size for one
            that is alone.
    """
    model = build_plain_model(study, study.seed)
    size = tuple(image_shape[1:])
    expected = (1, study.out_channels, *size) if study.task == "segmentation" else (1, study.out_channels)
    answer: tuple[int, ...] = ()
    try:
        # devices=[]: as where a network is built; dropout draws.
        with torch.inference_mode(), torch.random.fork_rng(devices=[]):
            # Some layers refuse in training alone what they would answer afterwards.
            model.train()(torch.zeros(min(2, study.training.batch_size), *image_shape))
            # Others refuse one image, whose maps come to one value that nothing is there to normalise with.
            answer = tuple(model.eval()(torch.zeros(1, *image_shape)).shape)
        fault = f"its answer has shape {answer} instead of {expected}"
    except Exception as error:  # a network raises whatever torch does where sizes do not fit
        fault = error_text(error, 160)
    if answer != expected:
        keys = "model.normalization, model.arguments" if study.model.network else "model.normalization"
        section = "data.patches" if study.data.patches else "data.transforms"
        raise ConfigError(
            f"{study.model.network or study.model.name} does not take images of {' x '.join(map(str, size))}: {fault}; "
            f"change {keys}, or the size in {section}"
        )


def find_influence(network: nn.Module, images: Tensor) -> Literal["", "others", "draws"]:
    """Return what changes a network's answer to an image: ``others`` of its batch, or random ``draws``; else nothing.

    Args:
        images: (B, C, *spatial); the network is tried with random ones of this form.
    """
    with torch.random.fork_rng([images.device] if images.is_cuda else []), torch.no_grad():
        probe = torch.rand(3, *images.shape[1:], dtype=images.dtype, device=images.device)
        answers = []
        for pair, seed in (([0, 1], 0), ([0, 2], 0), ([0, 1], 1)):
            # Equal seeds for equal drop-out.
            torch.manual_seed(seed)
            answers.append(network(probe[pair])[0])
    answer, beside_another, drawn_anew = answers
    if not torch.allclose(answer, beside_another, equal_nan=True):
        return "others"
    if not torch.allclose(answer, drawn_anew, equal_nan=True):
        return "draws"
    return ""


def build_models(study: Study, image_shape: Sequence[int] | None) -> dict[str, HarmonizedModel]:
    """Build a site's models by role, all with the same initial weights.

    Args:
        image_shape: (C, *spatial) of the images, or patches; None leaves out the input normalisation.
    """

    def model() -> HarmonizedModel:
        return build_model(study, image_shape, study.seed) if image_shape else build_plain_model(study, study.seed)

    return {role: model() for role in study.recipe.roles}


def _build_behind(input_norm: nn.Module, study: Study, seed: int) -> HarmonizedModel:
    """Build a study's model with its frozen parameters."""
    network = _build_network(study, seed)
    model = HarmonizedModel(input_norm, network, study.model.precision, study.data.patches)
    if study.training.frozen:
        model.freeze()
        home = study.recipe.stays
        if home != "everything" and not traveling_names(model, study.recipe):
            raise ConfigError(
                f"with training.frozen and stays: {home} no parameter learns and travels; remove a pattern, or choose "
                "stays: nothing"
            )
    return model


def _build_network(study: Study, seed: int) -> nn.Module:
    # devices=[]: by default fork_rng initialises every GPU to save its generator.
    shape = (study.data.in_channels, study.out_channels, study.data.dimensions)
    settings = study.model
    has_home_statistics = settings.normalization == "batch_home"
    if has_home_statistics:
        # Builders, those of packages too, know BatchNorm alone.
        settings = settings.model_copy(update={"normalization": "batch"})
    with torch.random.fork_rng(devices=[]), _limit_size():
        seed_torch(seed)
        network = _find_builder(settings)(settings, *shape)
        if has_home_statistics:
            replace_batchnorm(network)
        # By the names that its class gives it, which an answer may change.
        freeze_parameters(network, study.training.frozen)
        for traits in study.recipe.traits:
            if traits.projection_head:
                # Drawn after the rest, which therefore begins as it would without what is added.
                return add_projection_head(network, traits.projection_head)
        return network


@contextmanager
def _limit_size() -> Iterator[None]:
    """Refuse a network that grows beyond all bounds while it is built."""
    arrays = parameters = 0

    # Layers name their parameters before they write their first values, so that no memory is filled.
    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal arrays, parameters
        arrays += 1
        parameters += parameter.numel()
        if arrays > MOST_ARRAYS or parameters > MOST_PARAMETERS:
            raise ConfigError(
                f"model must be a network of at most {MOST_PARAMETERS} parameters in {MOST_ARRAYS} arrays, not more; "
                "lower its widths or depths in model.arguments"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _find_builder(settings: ModelSettings) -> Callable[[ModelSettings, int, int, int], nn.Module]:
    if settings.network is None:
        return NETWORKS[settings.name]
    return _build_from_package if is_extension(settings.network) else _build_from_monai


def _build_from_package(settings: ModelSettings, in_channels: int, out_channels: int, dimensions: int) -> nn.Module:
    """Build a package's network, by ``part(in_channels, out_channels, normalization, **model.arguments)``."""
    name = str(settings.network)
    build = load_extension("model.network", GROUP, name)
    return build_named(name, partial(build, in_channels, out_channels, settings.normalization), settings)


def _unet(settings: ModelSettings, in_channels: int, out_channels: int, dimensions: int) -> nn.Module:
    # Imported here: MONAI takes seconds, which studies with other networks need not wait.
    from monai.networks.nets.basic_unet import BasicUNet

    network = BasicUNet(
        spatial_dims=dimensions,
        in_channels=in_channels,
        out_channels=out_channels,
        features=settings.features,
        norm=NORMS[settings.normalization],
        dropout=settings.dropout,
    )
    return _replace_norms(network, settings.normalization)


def _densenet121(settings: ModelSettings, in_channels: int, out_channels: int, dimensions: int) -> nn.Module:
    from monai.networks.nets.densenet import DenseNet121

    network = DenseNet121(
        spatial_dims=dimensions,
        in_channels=in_channels,
        out_channels=out_channels,
        norm=NORMS[settings.normalization],
        dropout_prob=settings.dropout,
    )
    return _replace_norms(network, settings.normalization)


def _build_from_monai(settings: ModelSettings, in_channels: int, out_channels: int, dimensions: int) -> nn.Module:
    network = build_monai_network(settings, NORMS[settings.normalization], in_channels, out_channels, dimensions)
    return _replace_norms(network, settings.normalization)


NETWORKS: dict[str, Callable[[ModelSettings, int, int, int], nn.Module]] = {
    "unet": _unet,
    "densenet121": _densenet121,
    "lenet5": lambda settings, seen, told, _: LeNet5(seen, told, settings.normalization),
    "alexnet": lambda settings, seen, told, _: AlexNet(seen, told, settings.normalization, settings.dropout),
    "activity_cnn": lambda settings, seen, told, _: ActivityCNN(seen, told, settings.normalization),
}


# In MONAI's form.
NORMS: dict[str, tuple[str, dict[str, object]]] = {
    "batch": ("batch", {}),
    "batch_stateless": ("batch", {}),
    "instance": ("instance", {"affine": True}),
    "group": ("group", {"num_groups": 1}),
}


def _replace_norms(network: nn.Module, normalization: str) -> nn.Module:
    # MONAI takes one number of groups for all levels, gives its DenseNet no BatchNorm without state, and takes torch's
    # own InstanceNorm.
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.GroupNorm):
            module.num_groups = count_groups(module.num_channels)
        elif type(module) in INSTANCE_NORMS and not module.track_running_stats:
            faster = INSTANCE_NORMS[type(module)]
            network.set_submodule(name, faster(module.num_features, module.eps, affine=module.affine))
        elif isinstance(module, _BatchNorm) and normalization == "batch_stateless":
            stateless = type(module)(module.num_features, affine=False, track_running_stats=False)
            network.set_submodule(name, stateless)
    return network
