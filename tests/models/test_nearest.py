"""The selector without training: Fisher's linear discriminant on a few numbers of each image."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import multivariate_normal

from silofl.models.nearest import (
    FLOOR,
    NUM_FEATURES,
    RINGS,
    SHRINKAGE,
    FeatureMoments,
    NearestSite,
    discriminant,
    measure_features,
)


def waves(frequency, size=64, amplitude=1.0):
    """Return an image (1, 1, size, size) of one wave of so many cycles a pixel along its rows."""
    row = amplitude * np.cos(2 * np.pi * frequency * np.arange(size))
    return torch.from_numpy(np.tile(row, (size, 1)))[None, None]


def normal_sites(means, covariance, counts, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.multivariate_normal(mean, covariance, count) for mean, count in zip(means, counts, strict=True)]


def logits(sites, points):
    state = discriminant([FeatureMoments.of(torch.from_numpy(site)) for site in sites])
    head = torch.nn.functional.linear
    standardised = (torch.from_numpy(points) - state["center"]) / state["scale"]
    return head(standardised, state["head.weight"], state["head.bias"]).numpy()


def test_features_are_mean_deviation_and_the_amplitude_of_each_ring():
    image = np.random.default_rng(0).random((2, 3, 32, 24))
    found = measure_features(torch.from_numpy(image)).numpy()
    assert found.shape == (2, 3 * NUM_FEATURES) and found.dtype == np.float64
    np.testing.assert_allclose(found[:, :3], image.mean(axis=(2, 3)))
    np.testing.assert_allclose(found[:, 3:6], image.std(axis=(2, 3), ddof=1))
    amplitude = np.abs(np.fft.rfft2(image, norm="ortho"))
    radius = np.hypot(np.fft.fftfreq(32)[:, None], np.fft.rfftfreq(24)[None])
    for ring, (low, high) in enumerate(zip(RINGS[:-1], RINGS[1:], strict=True)):
        inside = (radius > low) & (radius <= high)
        wanted = np.log(amplitude[:, :, inside].mean(axis=2) + 1e-6)
        # a channel's rings follow one another
        np.testing.assert_allclose(found[:, [6 + channel * 7 + ring for channel in range(3)]], wanted)


@pytest.mark.parametrize(("frequency", "ring"), [(1 / 32, 0), (5 / 32, 2), (9 / 32, 4), (15 / 32, 5)])
def test_a_wave_is_found_in_its_own_ring_alone(frequency, ring):
    found = measure_features(waves(frequency))[0, 2:].numpy()
    assert found.argmax() == ring and sorted(found)[-2] < found[ring] - 5


@pytest.mark.parametrize("size", [16, 28, 33])
def test_small_and_blank_images_have_finite_features(size):
    images = torch.cat([torch.zeros(1, 1, size, size), torch.rand(1, 1, size, size)])
    assert torch.isfinite(measure_features(images)).all()


def test_the_softmax_is_the_probability_of_normal_sites_with_one_covariance():
    covariance = np.array([[1.0, 0.6], [0.6, 2.0]])
    sites = normal_sites([(0, 0), (2, 1), (-1, 3)], covariance, (40, 25, 60))
    points = np.random.default_rng(1).normal(size=(20, 2)) * 3
    means = np.array([site.mean(axis=0) for site in sites])
    deviations = np.concatenate([site - site.mean(axis=0) for site in sites])
    within = deviations.T @ deviations / (len(deviations) - 3)
    scale = np.sqrt(np.diag(within) + FLOOR * means.var(axis=0))
    shrunk = (1 - SHRINKAGE) * within + SHRINKAGE * np.diag(scale**2)
    log_densities = np.stack([multivariate_normal(mean, shrunk).logpdf(points) for mean in means], axis=1)
    np.testing.assert_allclose(softmax(logits(sites, points), axis=1), softmax(log_densities, axis=1), atol=1e-9)


def test_what_never_varies_and_sites_of_one_image_give_finite_numbers():
    same, one = np.array([[1.0, 5.0], [1.0, 6.0]]), np.array([[2.0, 5.5]])
    for sites in ([same, one], [one, one + 1], [one, one]):
        assert np.isfinite(logits(sites, np.array([[1.5, 5.0], [9.0, -9.0]]))).all()
    # what differs between sites and never within them decides
    assert logits([same, one], np.array([[2.0, 5.5]])).argmax() == 1


def test_the_network_holds_the_discriminant():
    rng = np.random.default_rng(3)
    images = [torch.from_numpy(rng.normal(shift, 1, (12, 2, 16, 16)).astype(np.float32)) for shift in (0, 0.5, 1)]
    network = NearestSite(2, 3)
    network.load_state_dict(discriminant([FeatureMoments.of(measure_features(site)) for site in images]))
    with torch.no_grad():
        chosen = [network(site).argmax(dim=1) for site in images]
    assert [float((found == k).double().mean()) for k, found in enumerate(chosen)] == [1, 1, 1]
