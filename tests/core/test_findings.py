import numpy as np

from silofl.core.findings import decide_findings, list_findings, pack_findings, unpack_findings


def test_a_set_of_findings_sums_powers_of_two():
    # 2^0 + 2^3
    assert (pack_findings([0, 3]), pack_findings([])) == (9, 0)
    assert (list_findings(9), list_findings(0)) == ([0, 3], [])
    result = unpack_findings(np.array([pack_findings(numbers) for numbers in ([], [1], [0, 61])]), 62)
    assert [np.flatnonzero(row).tolist() for row in result] == [[], [1], [0, 61]]


def test_the_answer_is_the_set_of_findings_above_one_half():
    probabilities = np.array([[0.4, 0.5, 0.2], [0.9, 0.1, 0.51]])
    # exactly one half is not above it; 2^0 + 2^2
    assert decide_findings(probabilities).tolist() == [0, 5]
