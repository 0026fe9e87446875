import pytest
import torch

from silofl.models.selector import build_selector


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture
def study_with(make_study):
    return lambda network, **data: make_study(algorithm={"name": "fedsm", "selector": {"network": network}}, **data)


def test_the_light_selector_has_under_a_million_parameters(study_with):
    selector = build_selector(study_with("light"), 6, seed=0)
    # 3x3 convolutions of 16, 32, 64, 64, 128, 128, 128, 128 channels, two numbers a channel for bias and for GroupNorm
    channels = [1, 16, 32, 64, 64, 128, 128, 128, 128]
    weights = sum(9 * a * b + 3 * b for a, b in zip(channels, channels[1:], strict=False))
    assert count(selector) == weights + 128 * 6 + 6
    assert selector.eval()(torch.rand(2, 1, 64, 48)).shape == (2, 6)


def test_the_published_selector_is_vgg11_with_its_wide_head(study_with):
    with torch.device("meta"):
        selector = build_selector(study_with("vgg11"), 6, seed=0)
    # Configuration A: 9,220,480 in the convolutions of a colour image, here grey: 2 * 64 * 9 fewer; the head is
    # 25088 x 4096, 4096 x 4096 and 4096 x 6 with their biases
    head = (25088 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 6
    assert count(selector) == 9_220_480 - 2 * 64 * 9 + head


def test_the_same_seed_draws_the_same_selector(study_with):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = (build_selector(study_with("light"), 3, seed=7).state_dict() for _ in range(2))
    assert torch.rand(1) == expected
    assert all(torch.equal(first[name], second[name]) for name in first)
