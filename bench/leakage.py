"""What an update and a model tell of the images: gradient inversion and membership inference on phantoms.

    python bench/leakage.py RUN [--out DIR] [--images 4] [--steps 600] [--sites east,west]

RUN is a finished simulation with a model for each site, as ``silofl simulate jobs/fedavg_phantoms --out RUN`` makes it.

*Gradient inversion* (Geiping et al., Inverting Gradients, NeurIPS 2020: cosine distance of the gradients and total
variation, by Adam). The attacker is the server. It has the weights that it sent, the gradient of one step, as if the
site took a single step of plain descent, and, in its favour, the true label maps. Batches of 1 and 8 images, before
training and with the run's model. Where BatchNorm travels, the attacker also has its gradients, and the mean and
variance of the batch in each layer, which the moved running statistics give away (as in Yin et al., See through
Gradients, CVPR 2021). Where it stays at home the attacker knows neither these nor, after training, the site's scale and
shift, and takes 1 and 0. The score is the best correlation of an image that it finds with one of the batch; beside it,
the best of as many other images of the same site, which need no gradient. That the attack itself works is shown by a
control on the same images: a small network of three convolutions without BatchNorm, which learns a class, made up here,
of each image.

*Membership inference* (Yeom et al., CSF 2018: a low loss means a member). From the loss of each image, whether it was
in training: the area under the ROC curve, of the site's training images against its test images, with its 95 %
interval by the bootstrap over images; 0.5 is a guess.
"""

import argparse
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu
from torch import Tensor, nn

from silofl.data.batches import evaluation_batches
from silofl.data.parts import Examples
from silofl.models import build_plain_model
from silofl.training.device import set_threads
from silofl.training.losses import Loss, make_loss
from silofl_desk.studies.runs.finished import read_finished_run
from silofl_desk.studies.runs.leave_out import load_site_networks
from silofl_desk.studies.runs.simulation import UNMOVED
from silofl_hospital.report.canvas import encode_png, make_panels

BATCHES = (1, 8)
LEARNING_RATE, SMOOTHNESS, STATISTICS = 0.1, 1e-2, 0.1
CLASSES = 4
CPU = torch.device("cpu")


def main() -> None:
    """Attack, print both tables, and draw what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, help="where leakage.png goes; the run's folder by default")
    parser.add_argument("--images", type=int, default=4, help="attempts at each site")
    parser.add_argument("--sites", type=lambda text: text.split(","), help="to invert gradients of; all by default")
    parser.add_argument("--steps", type=int, default=600, help="of the attacker's descent")
    options = parser.parse_args()
    models, data = read_finished_run(options.run, UNMOVED)
    study, loss = models.study, make_loss(models.study)
    set_threads(study.torch_threads)
    networks = dict(load_site_networks(models, CPU))
    print("| site | AUC of membership | training images | test images |")
    print("|---|---|---|---|")
    for site, network in networks.items():
        losses = [losses_of(network, part, loss) for part in (data[site].training, data[site].test)]
        low, high = interval(*losses)
        print(f"| {site} | {auc(*losses):.3f} [{low:.3f}, {high:.3f}] | {len(losses[0])} | {len(losses[1])} |")
    fresh, shape = build_plain_model(study, study.seed), data[next(iter(networks))].training.image_shape
    sites = options.sites or list(networks)
    # Name -> the network of each site, the loss, and whether BatchNorm travels.
    attacked = {
        "control | none": (dict.fromkeys(sites, control(shape)), of_classes, True),
        "before training | sent": (dict.fromkeys(sites, fresh), loss, True),
        "before training | at home": (dict.fromkeys(sites, fresh), loss, False),
        "trained | sent": (networks, loss, True),
        "trained | at home": (networks, loss, False),
    }
    print()
    print("| model | BatchNorm | batch | found from the gradient | other images of the site |")
    print("|---|---|---|---|---|")
    pictures = []
    for size in BATCHES:
        for name, (of_site, its_loss, is_shared) in attacked.items():
            scores = []
            for site in sites:
                attack = Inversion(of_site[site], its_loss, is_shared, options.steps)
                for images, targets, others in batches(data[site].training, size, options.images):
                    result = attack.invert(images, targets)
                    scores.append((best_match(result, images), best_match(others, images)))
                    if size == 1 and is_shared:
                        pictures.append((f"{site}, {name.partition(' |')[0]}", images[0], result[0]))
            columns = zip(*scores, strict=True)
            cells = [f"{np.mean(column):.2f} ({min(column):.2f} to {max(column):.2f})" for column in columns]
            print(f"| {name} | {size} | {' | '.join(cells)} |", flush=True)
    ((options.out or options.run) / "leakage.png").write_bytes(picture(pictures))


def control(shape: Sequence[int]) -> nn.Module:
    """Return a network whose gradient is known to show its image: three convolutions and a layer of classes."""
    torch.manual_seed(0)
    sides = [side // 4 for side in shape[1:]]
    layers = [nn.Conv2d(shape[0], 12, 5, 2, 2), nn.LeakyReLU(), nn.Conv2d(12, 12, 5, 2, 2), nn.LeakyReLU()]
    layers += [nn.Conv2d(12, 12, 5, 1, 2), nn.LeakyReLU(), nn.Flatten(), nn.Linear(12 * sides[0] * sides[1], CLASSES)]
    return nn.Sequential(*layers)


def of_classes(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of the control, with the remainder of a label map's area as the class."""
    return nn.functional.cross_entropy(logits, (targets > 0).flatten(1).sum(dim=1) % CLASSES)


class Inversion:
    """An attacker who looks for the images whose gradient is the one that a site has sent.

    Args:
        network: The site's network, as it computes the gradient.
        loss: Of the study.
        is_shared: Whether BatchNorm travels.
        steps: Of the descent.
    """

    def __init__(self, network: nn.Module, loss: Loss, is_shared: bool, steps: int) -> None:
        # A model that only answers has no gradients.
        self.network, self.loss, self.steps = deepcopy(network).train().requires_grad_(), loss, steps
        self.copy, self.is_shared = deepcopy(self.network), is_shared
        layers = () if is_shared else batchnorm(self.network)
        at_home = {f"{name}.{own}" for name, layer in layers for own, _ in layer.named_parameters()}
        self.sent = [name for name, _ in self.network.named_parameters() if name not in at_home]
        with torch.no_grad():
            for name, parameter in self.copy.named_parameters():
                if name in at_home:
                    parameter.fill_(1.0 if name.endswith("weight") else 0.0)

    def invert(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the images (N, C, H, W) that the attacker finds for the gradient of a batch."""
        wanted, moments = ([one.detach() for one in told] for told in self._told(self.network, images, targets))
        guess = torch.rand(images.shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
        optimizer = torch.optim.Adam([guess], LEARNING_RATE)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        for _ in range(self.steps):
            optimizer.zero_grad()
            own, seen = self._told(self.copy, guess, targets, create_graph=True)
            loss = _distance(own, wanted) + SMOOTHNESS * _variation(guess)
            loss = loss + STATISTICS * sum((a - b).norm() / b.norm() for a, b in zip(seen, moments, strict=True))
            loss.backward(inputs=[guess])
            guess.grad.sign_()
            optimizer.step()
            scheduler.step()
            with torch.no_grad():
                guess.clamp_(0, 1)
        return guess.detach()

    def _told(
        self, network: nn.Module, images: Tensor, targets: Tensor, create_graph: bool = False
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the gradients that are sent, and the batch's mean and variance in each BatchNorm layer that is."""
        parameters, moments = dict(network.named_parameters()), []
        layers = [module for _, module in batchnorm(network)] if self.is_shared else []
        hooks = [layer.register_forward_pre_hook(lambda _, seen: moments.extend(_moments(seen[0]))) for layer in layers]
        value = self.loss(network(images), targets)
        for hook in hooks:
            hook.remove()
        sent = [parameters[name] for name in self.sent]
        return list(torch.autograd.grad(value, sent, create_graph=create_graph)), moments


def batchnorm(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield all BatchNorm layers with their names."""
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            yield name, module


def _moments(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance of a layer's inputs (N, C, H, W) by channel."""
    return inputs.mean(dim=(0, 2, 3)), inputs.var(dim=(0, 2, 3))


def _distance(own: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    """Return 1 - the cosine between two gradients, all their arrays as one vector."""
    product = sum((a * b).sum() for a, b in zip(own, wanted, strict=True))
    lengths = [torch.sqrt(sum((one * one).sum() for one in several)) for several in (own, wanted)]
    return 1 - product / (lengths[0] * lengths[1])


def _variation(images: Tensor) -> Tensor:
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()


def batches(part: Examples, size: int, number: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield random batches of training images that show something, their label maps, and as many other images."""
    shown = [i for i in range(len(part)) if np.ptp(part.images[i]) > 0 and np.any(part.targets[i])]
    draw = np.random.default_rng(0)
    for _ in range(number):
        order = draw.permutation(shown)
        own, others = order[:size], order[size : 2 * size]
        images = torch.from_numpy(np.array(part.images[own]))
        yield images, torch.from_numpy(np.array(part.targets[own])).long(), torch.from_numpy(part.images[others])


def best_match(found: Tensor, images: Tensor) -> float:
    """Return the best correlation of a found image with an image of the batch."""
    return max(_correlation(one, image) for one in found.numpy() for image in images.numpy())


def _correlation(one: NDArray, other: NDArray) -> float:
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1]) if np.ptp(one) else 0.0


@torch.no_grad()
def losses_of(network: nn.Module, part: Examples, loss: Loss) -> NDArray[np.float64]:
    """Return the loss of each image of a part, with the model as it is deployed."""
    batches_of_one = evaluation_batches(part, 1, CPU)
    return np.array([float(loss(network(images), targets)) for images, targets in batches_of_one])


def auc(members: NDArray, others: NDArray) -> float:
    """Return how often a member's loss is below another image's; equal ones count half."""
    return float(1 - mannwhitneyu(members, others).statistic / (len(members) * len(others)))


def interval(members: NDArray, others: NDArray, resamples: int = 1000) -> tuple[float, float]:
    """Return the 95 % interval of `auc` by the bootstrap over images."""
    draw = np.random.default_rng(0)
    found = [auc(draw.choice(members, len(members)), draw.choice(others, len(others))) for _ in range(resamples)]
    return float(np.quantile(found, 0.025)), float(np.quantile(found, 0.975))


def picture(found: Sequence[tuple[str, Tensor, Tensor]]) -> bytes:
    """Draw each attacked image above what was found."""
    figure, axes = make_panels(2, len(found), (1.4 * len(found), 3.2))
    for column, (name, image, result) in enumerate(found):
        for place, title, one in zip(axes[:, column], (name, "found"), (image, result), strict=True):
            place.imshow(one.mean(dim=0).numpy(), cmap="gray", vmin=0, vmax=1)
            place.set_title(title, fontsize=7)
            place.set_axis_off()
    return encode_png(figure)


if __name__ == "__main__":
    main()
