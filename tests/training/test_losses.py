import math

import numpy as np
import pytest
import torch
from torch import nn

from silofl.base.errors import ConfigError
from silofl.data.targets import IGNORED
from silofl.training.losses import make_loss, weigh_classes

ORGANS = {1: "organ", 2: "lesion"}
WEIGHTS = {"normal": 1, "benign": 3, "malignant": 2}


def soft_dice(probabilities, truth, is_pooled=False):
    """Return 1 - Dice of probabilities against one-hot truth, both (B, C, H, W), as the mean of (B, C) or (C,)."""
    axes = (0, 2, 3) if is_pooled else (2, 3)
    both = (probabilities * truth).sum(axes)
    return (1 - 2 * both / (probabilities.sum(axes) + truth.sum(axes))).mean()


def random_batch(classes, outputs, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, outputs, 6, 6, generator=generator)
    return logits, torch.randint(classes, (3, 6, 6), generator=generator)


def binary_terms(logits, targets, is_pooled=False):
    truth = targets[:, None].float()
    probabilities = torch.sigmoid(logits)
    entropy = -(truth * probabilities.log() + (1 - truth) * (1 - probabilities).log()).mean()
    return soft_dice(probabilities, truth, is_pooled), entropy


def several_terms(logits, targets, is_pooled=False):
    truth = nn.functional.one_hot(targets, logits.shape[1]).movedim(-1, 1).float()
    probabilities = torch.softmax(logits, 1)
    entropy = -(truth * probabilities.log()).sum(1).mean()
    # the first channel is the background, which does not count
    return soft_dice(probabilities[:, 1:], truth[:, 1:], is_pooled), entropy


@pytest.mark.parametrize(
    ("labels", "classes", "outputs", "terms"),
    [({1: "organ"}, 2, 1, binary_terms), (ORGANS, 3, 3, several_terms)],
    ids=["one label", "two labels"],
)
@pytest.mark.parametrize(
    ("name", "combine"),
    [
        ("dice", lambda dice, entropy: dice),
        ("cross_entropy", lambda dice, entropy: entropy),
        ("dice_ce", lambda dice, entropy: dice + entropy),
    ],
)
@pytest.mark.parametrize("is_pooled", [False, True])
def test_a_segmentation_loss_is_its_formula(make_study, labels, classes, outputs, terms, name, combine, is_pooled):
    study = make_study(labels=labels, training={"loss": name, "batch_dice": is_pooled})
    logits, targets = random_batch(classes, outputs)
    wanted = combine(*terms(logits, targets, is_pooled))
    torch.testing.assert_close(make_loss(study)(logits, targets), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["dice", "cross_entropy", "dice_ce"])
@pytest.mark.parametrize("labels", [{1: "organ"}, ORGANS], ids=["one label", "two labels"])
def test_an_image_without_any_label_has_a_finite_gradient(make_study, name, labels):
    study = make_study(labels=labels, training={"loss": name})
    logits = random_batch(2, study.out_channels)[0].requires_grad_()
    make_loss(study)(logits, torch.zeros(3, 6, 6, dtype=torch.long)).backward()
    assert torch.isfinite(logits.grad).all() and logits.grad.any()


@pytest.mark.parametrize("name", ["dice", "dice_ce", "cross_entropy"])
def test_the_loss_of_some_labels_is_a_smaller_networks(make_study, name):
    logits, targets = random_batch(3, 4)
    labels = {1: "a", 2: "b", 3: "c"}
    merged = torch.stack([torch.logsumexp(logits[:, [0, 2]], 1), logits[:, 1], logits[:, 3]], dim=1)
    wanted = make_loss(make_study(labels=ORGANS, training={"loss": name}))(merged, targets)
    # The sites' label maps hold 1 and 3, which are the merged network's 1 and 2.
    loss = make_loss(make_study(labels=labels, training={"loss": name}), annotated=[1, 3])
    result = loss(logits, torch.where(targets == 2, 3, targets))
    assert result.item() == pytest.approx(wanted.item(), rel=1e-6)


@pytest.mark.parametrize(("labels", "classes", "outputs"), [({1: "organ"}, 2, 1), (ORGANS, 3, 3)], ids=["one", "two"])
@pytest.mark.parametrize("name", ["dice", "cross_entropy", "dice_ce"])
@pytest.mark.parametrize("is_pooled", [False, True])
def test_pixels_that_nobody_annotated_are_left_out(make_study, labels, classes, outputs, name, is_pooled):
    study = make_study(labels=labels, training={"loss": name, "batch_dice": is_pooled})
    logits, targets = random_batch(classes, outputs)
    loss = make_loss(study, has_ignored=True)
    torch.testing.assert_close(loss(logits, targets), make_loss(study)(logits, targets), rtol=1e-5, atol=1e-6)
    # The lower half of all images: what is there has no part in the value, and no gradient.
    targets[:, 3:] = IGNORED
    logits.requires_grad_()
    value = loss(logits, targets)
    value.backward()
    torch.testing.assert_close(value, make_loss(study)(logits[:, :, :3], targets[:, :3]), rtol=1e-5, atol=1e-6)
    assert not logits.grad[:, :, 3:].any() and logits.grad[:, :, :3].any()


def test_an_image_that_nobody_annotated_counts_zero(make_study):
    study = make_study(labels=ORGANS)
    logits, targets = random_batch(3, 3)
    alone = make_loss(study)(logits[:1], targets[:1])
    targets[1:] = IGNORED
    # one of three images
    torch.testing.assert_close(make_loss(study, has_ignored=True)(logits, targets), alone / 3)
    logits.requires_grad_()
    nothing = make_loss(study, has_ignored=True)(logits, torch.full_like(targets, IGNORED))
    nothing.backward()
    assert nothing == 0 and not logits.grad.any()


# --- weights of classes


@pytest.mark.parametrize("has_privacy", [False, True])
def test_given_weights_of_classes_are_those_of_the_mean(make_study, has_privacy):
    network = {"name": "densenet121", "normalization": "group"}
    noise = {"privacy": {"dp_sgd": {"noise": 1.0, "clip": 1.0}}, "baseline_comparison": False} if has_privacy else {}
    training = {"loss": "cross_entropy", "class_weights": WEIGHTS}
    study = make_study("classification", training=training, model=network, **noise)
    # e^logits: 1, 2 and 1 of 4, then 1, 1 and 6 of 8; the losses are log 4 of class 0 and log 8 of class 1.
    logits = torch.tensor([[1.0, 2.0, 1.0], [1.0, 1.0, 6.0]]).log()
    # With privacy what the one weighs does not divide the other.
    wanted = (1 * math.log(4) + 3 * math.log(8)) / (2 if has_privacy else 1 + 3)
    assert make_loss(study)(logits, torch.tensor([0, 1])).item() == pytest.approx(wanted, rel=1e-6)


def test_balanced_weights_give_all_classes_the_same_sum(make_study):
    study = make_study("classification", training={"loss": "cross_entropy", "class_weights": "balanced"})
    targets = np.array([0] * 19 + [1])
    # 20 / (2 x 19) and 20 / (2 x 1)
    # A class that the site has not weighs 1, and counts for no other.
    assert weigh_classes(study, targets) == pytest.approx([20 / 38, 10, 1])
    # The healthy ones have log 4, the sick one log 2 of class 1: their mean, as of one example each.
    logits = torch.tensor([[1.0, 2.0, 1.0]] * 20).log()
    loss = make_loss(study, targets=targets)(logits, torch.from_numpy(targets))
    assert loss.item() == pytest.approx((math.log(4) + math.log(2)) / 2, rel=1e-6)


# --- findings

# logits log(p / (1 - p)) of the probabilities 1/2, 1/4, 1/4 and 1/2, 1/2, 3/4
FINDINGS = torch.tensor([[1.0, 1 / 3, 1 / 3], [1.0, 1.0, 3.0]]).log()
# the first example has findings 0 and 2, the second none
SETS = torch.tensor([5, 0])


def test_the_loss_of_findings_is_binary_cross_entropy(make_study):
    study = make_study("multilabel")
    # -log of 1/2, 3/4, 1/4 and of 1/2, 1/2, 1/4, mean over all six
    wanted = -sum(map(math.log, (1 / 2, 3 / 4, 1 / 4, 1 / 2, 1 / 2, 1 / 4))) / 6
    assert make_loss(study)(FINDINGS, SETS).item() == pytest.approx(wanted, rel=1e-6)


def test_the_weight_of_a_finding_is_that_of_its_presence(make_study):
    weights = {"effusion": 3, "nodule": 5, "mass": 2}
    study = make_study("multilabel", training={"loss": "cross_entropy", "class_weights": weights})
    # Finding 0 is there with 1/2 and weighs 3, finding 2 with 1/4 and weighs 2; nothing else is there.
    first = 3 * math.log(1 / 2) + math.log(3 / 4) + 2 * math.log(1 / 4)
    second = math.log(1 / 2) + math.log(1 / 2) + math.log(1 / 4)
    assert make_loss(study)(FINDINGS, SETS).item() == pytest.approx(-(first + second) / 6, rel=1e-6)


def test_balanced_weights_of_findings_are_their_absences_per_presence(make_study):
    study = make_study("multilabel", training={"loss": "cross_entropy", "class_weights": "balanced"})
    # Finding 0 is in 1 of 4, finding 1 in all, finding 2 in none.
    assert weigh_classes(study, np.array([3, 2, 2, 2])) == [3, 1, 1]


@pytest.mark.parametrize("key", ["class_weights", "sampler"])
def test_numbers_of_classes_do_not_pass_the_noise(make_study, key):
    with pytest.raises(ConfigError, match=f"noise of privacy.dp_sgd does not cover .* training.{key} balances"):
        make_study(
            "classification",
            training={"loss": "cross_entropy", key: "balanced"},
            model={"name": "densenet121", "normalization": "group"},
            privacy={"dp_sgd": {"noise": 1.0, "clip": 1.0}},
            baseline_comparison=False,
        )
