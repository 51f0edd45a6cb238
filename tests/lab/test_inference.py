"""Holm's correction, shares, ratios and kappa: by hand, and as other packages do."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from influences import NAMES, by_numbers
from scipy.stats import binomtest, ttest_1samp
from scipy.stats import t as student
from statsmodels.stats.multitest import multipletests

from paraguard_lab.core.inference import (
    adjust_holm,
    degrees_of_freedom,
    exact_share,
    jackknife_t,
    share_of_clusters,
    wilson_interval,
)
from paraguard_lab.core.ratios import ratio_difference
from paraguard_utils.core.estimates import (
    ClusterBootstrap,
    Estimate,
    binomial_interval,
)


def test_the_share_of_prompts_on_their_own_is_exact():
    assert exact_share(0, 9)["share_high"] == pytest.approx(1 - 0.025 ** (1 / 9))
    assert np.isnan(list(exact_share(0, 0).values())).all()


@pytest.mark.slow
def test_statsmodels_adjusts_alike():
    p = np.concatenate(
        [np.random.default_rng(1).random(20) ** 4, [0.0, 1.0, 0.01, 0.01]]
    )  # ties, and what is above 1
    np.testing.assert_allclose(
        adjust_holm(pd.Series(p)), multipletests(p, method="holm")[1], rtol=1e-12
    )


@pytest.mark.slow
def test_holm_by_hand():
    # three p: 0.01 * 3, 0.03 * 2, and 0.04 * 1, which may not be the smaller: 0.06
    assert adjust_holm(pd.Series([0.01, np.nan, 0.04, 0.03])).tolist() == pytest.approx(
        [0.03, np.nan, 0.06, 0.06], nan_ok=True
    )
    assert np.isnan(adjust_holm(pd.Series([np.nan, np.nan]))).all()


def test_shares_of_clusters_by_hand():
    # four of the corpus's five clusters have a value, one of them hits; Wilson's
    # interval of 1 of 4: (1/4 + z^2/8 -+ z sqrt(3/16/4 + z^2/64)) / (1 + z^2/4) with z
    # = 1.96
    clusters = ClusterBootstrap(list("abcde"), 50)
    found = share_of_clusters(clusters, list("abcd"), [1, 0, 0, 0])
    z = 1.959964
    middle, reach = 1 / 4 + z**2 / 8, z * np.sqrt(3 / 64 + z**2 / 64)
    assert found == pytest.approx(
        (1 / 4, (middle - reach) / (1 + z**2 / 4), (middle + reach) / (1 + z**2 / 4))
    )
    a, e = clusters.counts[:, 0], clusters.counts[:, 4]
    assert found.draws == pytest.approx(a / (5 - e)), (
        "five are drawn, of which e has no value"
    )
    assert np.isnan(share_of_clusters(clusters, [], [])).all()


def test_degrees_of_freedom_by_hand():
    # Twenty clusters have the mean 0. Two have the squares 9, two 1, the others 0: the
    # shares 0.45, 0.45, 0.05 and 0.05, whose squares sum to 0.41.
    influence = np.array([3.0, -3, 1, -1, *np.zeros(16)])
    assert degrees_of_freedom(influence) == pytest.approx(2 / (0.41 - 1 / 20))
    assert degrees_of_freedom(3 * influence + 5) == pytest.approx(2 / (0.41 - 1 / 20))
    # Nobody knows more than one less than there are clusters.
    assert degrees_of_freedom(np.array([4.0, 6.0])) == 1
    assert degrees_of_freedom(np.array([-1.0, 1, -2, 2])) == 3
    assert degrees_of_freedom(np.zeros(5)) == 4


def test_of_one_cluster_s_variance_two_degrees_are_left():
    influence = np.zeros(1000)
    influence[3] = 1
    assert degrees_of_freedom(influence) == pytest.approx(2, abs=0.01)


def test_the_jackknife_of_a_mean_has_its_standard_error():
    values = np.array([1.0, 2, 2, 3, 4, 4, 5, 11])
    left_out = (values.sum() - values) / 7
    mean = Estimate(values.mean(), 0, 0, np.array([]))
    found = jackknife_t(mean, left_out)
    # the t-test's interval has n - 1 degrees of freedom
    usual = ttest_1samp(values, 0).confidence_interval(0.95)
    degrees = degrees_of_freedom(values)
    wanted = (usual.high - mean.value) * student.ppf(0.975, degrees)
    wanted /= student.ppf(0.975, 7)
    assert degrees < 7
    assert found == pytest.approx(
        (mean.value, mean.value - wanted, mean.value + wanted)
    )


@pytest.mark.parametrize("left_out", [[0.4, np.nan, 0.5], [0.4, 0.4, 0.4], [np.inf, 1]])
def test_what_no_jackknife_shows_has_no_interval(left_out):
    found = jackknife_t(Estimate(0.4, 0.3, 0.5, np.array([])), np.array(left_out))
    assert found.value == 0.4
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize(
    ("interval", "method"), [(binomial_interval, "exact"), (wilson_interval, "wilson")]
)
@pytest.mark.parametrize("n", [1, 2, 5, 40, 1200])
def test_intervals_of_shares_are_scipys(interval, method, n):
    for hits in {0, 1, n // 3, n - 1, n}:
        expected = binomtest(hits, n).proportion_ci(method=method)
        assert interval(hits, n) == pytest.approx(expected, abs=1e-10)


def test_a_difference_of_ratios_by_hand():
    clusters = ClusterBootstrap(list("abc"), 40)
    first = np.array([2.0, 4, 2]), np.array([1.0, 1, 2])
    second = np.array([2.0, 0, 3]), np.array([2.0, 0, 1])
    # 4/8 - 3/5, where one cluster has nothing of the other
    assert ratio_difference(clusters, first, second)[0] == pytest.approx(4 / 8 - 3 / 5)
    # of all and none there is no spread
    n = np.array([2.0, 4, 0])
    both = ratio_difference(clusters, (n, n), (n, np.zeros(3)))
    assert both[0] == 1 and np.isnan(both[1:]).all()
    # and of nothing no ratio
    found = ratio_difference(clusters, (n, n), (0 * n, 0 * n))
    assert np.isnan(found).all() and np.isnan(found.draws).all()


@pytest.mark.parametrize("seed", range(3))
def test_intervals_of_differences_by_numbers(seed):
    rng = np.random.default_rng(seed)
    clusters = ClusterBootstrap(NAMES, 80)
    n, other_n = rng.integers(1, 6, (2, 20)).astype(float)
    hits = rng.binomial(n.astype(int), 0.4)
    other = rng.binomial(other_n.astype(int), 0.6)
    columns = np.column_stack([n, hits, other_n, other])
    expected = by_numbers(
        lambda sums: sums[1] / sums[0] - sums[3] / sums[2], columns, clusters.counts
    )[:3]
    found = ratio_difference(clusters, (n, hits), (other_n, other))
    assert found == pytest.approx(expected, rel=1e-5) and found[1] < found[0] < found[2]


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_a_difference_turns_round_with_its_sides(seed):
    rng = np.random.default_rng(seed)
    clusters, size = ClusterBootstrap(NAMES, 40), rng.integers(2, 6, (2, 20))
    one, other = ((n.astype(float), rng.binomial(n, 0.5).astype(float)) for n in size)
    found = ratio_difference(clusters, one, other)
    turned = ratio_difference(clusters, other, one)
    assert found == pytest.approx((-turned[0], -turned[2], -turned[1]))
    np.testing.assert_allclose(found.draws, -turned.draws)
    assert -1 <= found[1] < found[2] <= 1
    assert ratio_difference(clusters, one, one)[0] == 0
