"""Estimates over resampled clusters: by hand, and against influences by difference
quotients.
"""

import numpy as np
import pytest
from influences import by_numbers

from paraguard_utils.core.estimates import (
    ClusterBootstrap,
    Estimate,
    bootstrap_t_interval,
    estimate_with_error,
    studentize,
)


def test_an_estimate_by_hand():
    found = Estimate.percentile(50.0, np.append(np.arange(101.0), np.nan))
    assert found == (
        50,
        2.5,
        97.5,
    ), "of 101 draws; what is undefined counts for nothing"
    # the difference is taken resample by resample: always 1
    assert Estimate.percentile(51.0, found.draws + 1) - found == (1, 1, 1)
    assert np.isnan(Estimate.percentile(1.0, np.array([1.0, np.nan]))[1:]).all(), (
        "one draw has no spread"
    )
    assert np.isnan(Estimate.percentile(np.nan, np.ones(3)).draws).all()


def test_all_or_none_is_exact_on_clusters():
    clusters = ClusterBootstrap(list("aaabbbccc"), 50)
    # three clusters of nine prompts: the largest share that shows no hit in three with
    # 2.5 % is 1 - 0.025^(1/3)
    assert clusters.share(list("aaabbbccc"), np.zeros(9)) == pytest.approx(
        (0, 0, 1 - 0.025 ** (1 / 3))
    )
    assert clusters.share(list("aaabbbccc"), np.ones(9)) == pytest.approx(
        (1, 0.025 ** (1 / 3), 1)
    )


def test_a_standard_error_by_hand():
    clusters = ClusterBootstrap("abc", 9, 1)
    counts = clusters.counts

    def total(sums):
        return sums[:, 0], np.ones_like(sums)

    # of a sum: squares less the square of the mean of each, 1 + 4 + 36 - 9^2 / 3 = 14
    columns = np.array([[1.0], [2.0], [6.0]])
    (value,), (error,) = estimate_with_error(np.ones((1, 3)), columns, total)
    assert (value, error) == pytest.approx((9, np.sqrt(14)))
    draws, errors = estimate_with_error(counts, columns, total)
    draw = [1, 2, 6] @ counts[0]
    spread = [1, 4, 36] @ counts[0] - draw**2 / 3
    assert (draws[0], errors[0]) == pytest.approx((draw, np.sqrt(spread))), (
        "the resample's own standard error"
    )
    assert studentize(clusters, columns, total).draws.tolist() == draws.tolist()


def test_a_row_that_counts_twice_is_two_rows():
    columns, times = np.array([[2.0, 1], [4, 1], [2, 2]]), np.array([2, 1, 3])
    once = np.repeat(columns, times, axis=0)

    def share(sums):
        n, hits = sums.T
        return hits / n, np.stack([-hits / n**2, 1 / n], axis=-1)

    apart, alike = (
        ClusterBootstrap("abcdef", 30),
        ClusterBootstrap("abc", 30, multiplicity=times),
    )
    counts = apart.counts
    alike.counts = np.stack(
        [counts[:, :2].sum(axis=1), counts[:, 2], counts[:, 3:].sum(axis=1)], axis=-1
    )
    found, other = (
        studentize(*given, share) for given in ((alike, columns), (apart, once))
    )
    assert found == pytest.approx(other)
    np.testing.assert_allclose(found.draws, other.draws)


def test_ends_by_hand():
    # 2.5 % of the draws lie 0.9 errors below the value and 2.5 % 2.9 above: the
    # interval reaches 2.9 down and 0.9 up
    centred = np.linspace(-1, 3, 101)
    assert bootstrap_t_interval(1.0, 2.0, centred) == pytest.approx(
        (1 - 2 * 2.9, 1 + 2 * 0.9)
    )
    # what is undefined, or infinitely far above for want of a standard error, tells
    # nothing
    more = np.append(centred, [np.nan, np.inf])
    assert bootstrap_t_interval(1.0, 2.0, more) == pytest.approx(
        (1 - 2 * 2.9, 1 + 2 * 0.9)
    )
    assert np.isnan(bootstrap_t_interval(1.0, 0.0, centred)).all()
    assert np.isnan(bootstrap_t_interval(1.0, 2.0, centred[:1])).all()


def test_the_standard_error_of_a_ratio_by_hand():
    n, hits = np.array([2.0, 4, 2]), np.array([1.0, 1, 2])
    # what hits beyond half of what counts: 0, -1 and 1, so that the error is sqrt(2) of
    # 8; as by numbers
    error = by_numbers(
        lambda sums: sums[1] / sums[0], np.column_stack([n, hits]), np.ones((2, 3))
    )[3]
    assert error == pytest.approx(np.sqrt(2) / 8)


def test_a_standard_error_is_that_of_the_jackknife():
    """Where clusters are many, leaving each out once gives the same."""
    rng = np.random.default_rng(4)
    n = rng.integers(1, 7, 400).astype(float)
    hits = rng.binomial(n.astype(int), rng.random(400))
    error = by_numbers(
        lambda sums: sums[1] / sums[0], np.column_stack([n, hits]), np.ones((2, 400))
    )[3]
    _, (found,) = estimate_with_error(
        np.ones((1, 400)),
        np.column_stack([n, hits]),
        lambda sums: (
            sums[:, 1] / sums[:, 0],
            np.stack([-sums[:, 1] / sums[:, 0] ** 2, 1 / sums[:, 0]], axis=-1),
        ),
    )
    left_out = (hits.sum() - hits) / (n.sum() - n)
    jackknife = np.sqrt(399 / 400 * ((left_out - left_out.mean()) ** 2).sum())
    assert found == pytest.approx(error, rel=1e-6)
    assert found == pytest.approx(jackknife, rel=0.01)


def test_the_same_clusters_have_the_same_resamples():
    one, same, other = (ClusterBootstrap(list("abc"), 50, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.counts, same.counts)
    assert not np.array_equal(one.counts, other.counts)
