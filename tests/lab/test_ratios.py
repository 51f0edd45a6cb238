"""Ratios of totals over clusters: by hand, and against influences by difference
quotients.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from influences import NAMES, by_numbers

from paraguard_lab.core.ratios import ratio_of_totals
from paraguard_utils.core.estimates import ClusterBootstrap


def test_a_ratio_by_hand():
    clusters = ClusterBootstrap(list("abc"), 40)
    n, hits = np.array([2.0, 4, 2]), np.array([1.0, 1, 2])
    found = ratio_of_totals(clusters, (n, hits))
    assert found[0] == 4 / 8, "of all prompts, not the mean of 1/2, 1/4 and 1"
    np.testing.assert_allclose(
        found.draws, clusters.counts @ hits / (clusters.counts @ n)
    )


@pytest.mark.parametrize("seed", range(3))
def test_intervals_of_ratios_by_numbers(seed):
    rng = np.random.default_rng(seed)
    clusters = ClusterBootstrap(NAMES, 80)
    n = rng.integers(1, 6, 20).astype(float)
    hits = rng.binomial(n.astype(int), 0.4)
    columns = np.column_stack([n, hits])
    value, low, high, _ = by_numbers(
        lambda sums: sums[1] / sums[0], columns, clusters.counts
    )
    assert ratio_of_totals(clusters, (n, hits)) == pytest.approx(
        (value, max(low, 0), min(high, 1)), rel=1e-5
    )


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_what_misses_is_what_does_not_hit(seed):
    rng = np.random.default_rng(seed)
    clusters, size = ClusterBootstrap(NAMES, 40), rng.integers(2, 6, 20)
    n, hit = size.astype(float), rng.binomial(size, 0.5).astype(float)
    hits = ratio_of_totals(clusters, (n, hit))
    misses = ratio_of_totals(clusters, (n, n - hit))
    assert hits == pytest.approx((1 - misses[0], 1 - misses[2], 1 - misses[1]))


def test_a_ratio_of_none_or_all_is_exact_on_the_clusters_that_count():
    clusters = ClusterBootstrap(list("abc"), 40)
    n = np.array([2.0, 4, 0])
    # six prompts, but two clusters: 1 - 0.025^(1/2)
    assert ratio_of_totals(clusters, (n, np.zeros(3))) == pytest.approx(
        (0, 0, 1 - 0.025 ** (1 / 2))
    )
    assert ratio_of_totals(clusters, (n, n)) == pytest.approx((1, 0.025 ** (1 / 2), 1))


def test_what_does_not_count_has_no_ratio():
    clusters, n = ClusterBootstrap(list("abc"), 40), np.array([2.0, 4, 1])
    found = ratio_of_totals(clusters, (0 * n, 0 * n))
    assert np.isnan(found).all() and np.isnan(found.draws).all()
