"""Shares of CT's values in the labelled voxels of a site, with its floor."""

import numpy as np

from silofl.data.ct_values import EDGES, NUM_BINS, count_values, share_values


def scans(count):
    """Return patient -> counts of one scan, an organ of 40 to 60 HU in air; and all values of the organs."""
    rng, counts, values = np.random.default_rng(0), {}, []
    for number in range(count):
        pixels, label = np.full((1, 12, 10, 6), -1000.0), np.zeros((1, 12, 10, 6))
        label[:, 2:9, 2:8] = 1
        pixels[label == 1] = rng.normal(50 + number, 15, int(label.sum())).round()
        counts[True, f"p{number}"] = [count_values(pixels, label)]
        values.append(pixels[label == 1])
    return counts, values


def test_bins_of_few_patients_are_merged_and_lose_no_voxel():
    counts, values = scans(6)
    # A screw in one patient alone.
    counts[True, "p0"][0][-1] += 6
    apart, shared = share_values(counts, 0), share_values(counts, 5)
    assert apart[-1] > 0 and shared[-1] == 0
    held = np.stack([np.histogram(of_patient, EDGES)[0] for of_patient in values])
    assert set(np.flatnonzero(shared)) == set(np.flatnonzero((held > 0).sum(axis=0) >= 5))
    np.testing.assert_allclose([apart.sum(), shared.sum()], 1)
    # Too few patients for any bin.
    assert share_values(counts, 7) is None


def test_each_patient_counts_once_and_unknown_ones_for_no_floor():
    low, high = np.eye(NUM_BINS)[[3, 5]]
    shares = share_values({(True, "a"): [low, low, low], (True, "b"): [high]}, 1)
    assert shares[3] == shares[5] == 0.5
    assert share_values({(False, "a"): [low], (False, "b"): [low]}, 1) is None
