"""The parts of DR: by hand, and against other packages."""

import krippendorff
import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from statsmodels.stats import inter_rater

from paraguard_lab.core.disagreement import cluster_profiles, disagreement_parts


def counted(*words):
    """Profiles of clusters from one word each: a accepts, r rejects."""
    rows = [(len(word), word.count("r")) for word in words]
    return cluster_profiles(pd.DataFrame(rows, columns=["n", "rejected"]))


def ratio(*words):
    return disagreement_parts(*counted(*words).to_numpy().T)


def test_parts_by_hand():
    # Within: 2 of 6 ordered pairs of rraa times 4 prompts ... = (4 * 2/3 + 3 * 0) / 7;
    # aaa is all alike. Between: r with aaa, 2 * 3 of the 4 * 3 pairs.
    assert ratio("rraa", "aaa") == pytest.approx((8 / 21, 1 / 2, 16 / 21))
    # Meaning decides everything, or nothing: one of two in every cluster is rejected.
    assert ratio("rr", "aa") == (0, 1, 0)
    assert ratio("ra", "ra") == (1, 0.5, 2)
    for undefined in (("aaa", "aa"), ("rr", "rr"), ("ra",)):
        assert np.isnan(ratio(*undefined)[2])


clusters_of_letters = st.lists(
    st.text("ar", min_size=2, max_size=7), min_size=2, max_size=12
)


@pytest.mark.slow
@given(clusters_of_letters)
def test_krippendorff_agrees(clusters):
    letters = "".join(clusters)
    assume(len(set(letters)) == 2)
    within, between, _ = ratio(*clusters)
    units = [[word.count("a"), word.count("r")] for word in clusters]
    alpha = krippendorff.alpha(
        value_counts=np.array(units), level_of_measurement="nominal"
    )
    n, rejected, squares = (
        len(letters),
        letters.count("r"),
        sum(len(word) ** 2 for word in clusters),
    )
    own = sum(2 * word.count("r") * word.count("a") for word in clusters)
    # He expects the disagreement of any two of all n; DR that of two in different
    # clusters.
    expected = (between * (n**2 - squares) + own) / (n * (n - 1))
    assert expected == pytest.approx(2 * rejected * (n - rejected) / (n * (n - 1)))
    assert 1 - within / expected == pytest.approx(alpha, abs=1e-9)


@pytest.mark.slow
@given(st.lists(st.text("ar", min_size=6, max_size=6), min_size=2, max_size=12))
def test_statsmodels_agrees(clusters):
    letters = "".join(clusters)
    assume(len(set(letters)) == 2)
    rate = letters.count("r") / len(letters)
    within = ratio(*clusters)[0]
    table = np.array([[word.count("a"), word.count("r")] for word in clusters])
    assert 1 - within / (2 * rate * (1 - rate)) == pytest.approx(
        inter_rater.fleiss_kappa(table), abs=1e-9
    )
