"""Disagreement of paraphrases: by hand, by loops, and in worlds of known truth."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded_systems
from scipy import stats

from paraguard_utils import stores
from paraguard_utils.analysis.system import System
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import ClusterBootstrap


def frames(*clusters):
    """Corpus and labels from one word a cluster: a accepts, r rejects, b is blocked."""
    names = {"a": "accept", "r": "reject", "b": "blocked"}
    label = [names[letter] for word in clusters for letter in word]
    cluster = [f"c{i:04d}" for i, word in enumerate(clusters) for _ in word]
    return pd.DataFrame({"cluster_id": cluster}), pd.DataFrame({"label": label})


def ratio(*clusters):
    return System.of("t", *frames(*clusters)).dr().value


def test_ratio_by_hand():
    # Within: 2 of 6 ordered pairs of rraa times 4 prompts ... = (4 * 2/3 + 3 * 0) / 7;
    # aaa is all alike. Between: r with aaa, 2 * 3 of the 4 * 3 pairs.
    assert ratio("rraa", "aaa") == pytest.approx(8 / 21 / (1 / 2))
    # Meaning decides everything, or nothing: one of two in every cluster is rejected.
    assert ratio("rr", "aa") == 0
    assert ratio("ra", "ra") == pytest.approx(2)
    # What is blocked, and who stands alone then, is no pair.
    assert ratio("rraab", "aaa", "r", "ab") == pytest.approx(ratio("rraa", "aaa"))
    for undefined in (("aaa", "aa"), ("rr", "rr"), ("ra",)):
        assert np.isnan(ratio(*undefined))


def test_isolation_by_hand():
    found = System.of("t", *frames("rraab", "rr", "rb", "aa")).isolation
    # 2 of the 3 others; none of one; nobody else; acceptances have none
    assert found.tolist() == pytest.approx(
        [2 / 3, 2 / 3, *[np.nan] * 3, 0, 0, *[np.nan] * 4], nan_ok=True
    )
    # mean isolation over acceptance among other meanings is DR, where clusters are
    # equally large
    system = System.of("t", *frames("rraa", "raaa", "aaaa", "rrrr"))
    isolated = np.nanmean(system.isolation)
    # other meanings of the 7 rejections: 2 * (3+4+0) + (2+4+0) + 4 * (2+3+4) = 56
    # acceptances of 7 * 12
    assert isolated / (56 / 84) == pytest.approx(system.dr().value)


clusters_of_letters = st.lists(
    st.text("ar", min_size=2, max_size=7), min_size=2, max_size=12
)


RECORDED = stores.Store(stores.RECORDED)


@pytest.mark.parametrize(
    "name",
    [name for kind in ("chat", "guard") for name in recorded_systems(kind)],
)
def test_it_is_one_minus_the_intra_class_correlation(name):
    """Fisher's, by analysis of variance, on every recorded system; kappa and alpha are
    nearly that too.
    """
    system = System.of(
        name,
        RECORDED.read("corpus", "paraguard_mini"),
        RECORDED.read("labels", "paraguard_mini", name),
    )
    decided = system.decided
    n, rejected = decided["n"].to_numpy(), decided["rejected"].to_numpy()
    if not rejected.any():
        pytest.skip("this system refuses nothing")
    share, rate, k = rejected / n, rejected.sum() / n.sum(), len(n)
    between = (n * (share - rate) ** 2).sum() / (k - 1)
    within = (n * share * (1 - share)).sum() / (n.sum() - k)
    size = (n.sum() - (n**2).sum() / n.sum()) / (k - 1)
    correlation = (between - within) / (between + (size - 1) * within)
    dr = system.dr().value
    assert 1 - dr == pytest.approx(correlation, abs=1e-9 if len(set(n)) == 1 else 1e-3)
    # alpha: 1 minus observed over expected disagreement, of any two of all prompts
    observed = (2 * rejected * (n - rejected) / (n - 1)).sum() / n.sum()
    expected = 2 * rejected.sum() * (n - rejected).sum() / (n.sum() * (n.sum() - 1))
    # kappa: the same, drawn with replacement
    others = [1 - observed / expected, 1 - observed / (2 * rate * (1 - rate))]
    assert others == pytest.approx(
        [1 - dr] * 2,
        abs=0.002 if not disagreement.too_few_for_disagreement(decided) else 0.006,
    )


@pytest.mark.slow
@given(clusters_of_letters, st.randoms())
def test_order_and_names_do_not_matter(clusters, random):
    before = ratio(*clusters)
    random.shuffle(clusters)
    swapped = [word.translate(str.maketrans("ar", "ra")) for word in clusters]
    for changed in (clusters, swapped):
        assert ratio(*changed) == pytest.approx(before, nan_ok=True)


def drawn(rng, n_clusters, rate, correlation, sizes=(6, 7)):
    """Rejections in clusters with a latent correlation: columns n, rejected,
    cluster_id.
    """
    spread = np.sqrt(correlation / (1 - correlation))
    n = rng.integers(*sizes, n_clusters)
    chance = stats.norm.cdf(
        stats.norm.ppf(rate) * np.sqrt(1 + spread**2)
        + spread * rng.normal(size=n_clusters)
    )
    found = pd.DataFrame({"n": n, "rejected": rng.binomial(n, chance)})
    return found.assign(cluster_id=[f"c{i:05d}" for i in range(n_clusters)])


def estimate_of_profiles(decided):
    """DR of clusters merged by their counts, each with its multiplicity."""
    profiles = decided.groupby(["n", "rejected"]).size().rename("times").reset_index()
    merged = ClusterBootstrap(profiles.index, multiplicity=profiles["times"])
    return disagreement.estimate_disagreement(
        merged, profiles.assign(cluster_id=profiles.index)
    )


def test_estimate_agrees_between_clusters_and_profiles():
    decided = drawn(np.random.default_rng(3), 300, 0.3, 0.4)
    by_cluster = disagreement.estimate_disagreement(
        ClusterBootstrap(decided["cluster_id"]), decided
    )
    by_kind = estimate_of_profiles(decided)
    assert (
        by_cluster[0] == pytest.approx(by_kind[0], rel=1e-12)
        and len(by_cluster.draws) == 2000
    )
    # other resamples of the same clusters
    assert by_cluster[1:] == pytest.approx(by_kind[1:], abs=0.02)
    assert by_cluster[1] < by_cluster[0] < by_cluster[2]


def ratio_by_loops(*words):
    """DR as it is defined, pair by pair."""
    within, between = [], []
    for i, word in enumerate(words):
        for j, letter in enumerate(word):
            within.append(np.mean([letter != a for a in word[:j] + word[j + 1 :]]))
            for other in words[:i] + words[i + 1 :]:
                between += [letter != a for a in other]
    return np.mean(within) / np.mean(between) if any(between) else np.nan


def test_every_resample_by_hand():
    corpus, labels = frames("rraa", "aaa", "raaa", "rr")
    clusters = ClusterBootstrap(corpus["cluster_id"], resamples=40)
    found = System("t", corpus, labels, clusters).dr()
    words = ["rraa", "aaa", "raaa", "rr"]
    for counts, value in zip(clusters.counts, found.draws, strict=True):
        again = [
            word
            for word, times in zip(words, counts, strict=True)
            for _ in range(int(times))
        ]
        assert value == pytest.approx(ratio_by_loops(*again), nan_ok=True)


def test_the_interval_by_numbers():
    """Bootstrap-t again, the influence of a cluster being a difference quotient."""
    decided = drawn(np.random.default_rng(8), 30, 0.4, 0.3, sizes=(2, 9))
    clusters = ClusterBootstrap(decided["cluster_id"], resamples=60)
    sums = disagreement.cluster_sums(decided["n"], decided["rejected"])

    def studentized(times):
        def log_ratio(step=0.0, of=0):
            weights = times + step * (np.arange(30) == of)
            return disagreement.log_disagreement_ratio(weights @ sums)[0]

        pulls = np.array(
            [(log_ratio(1e-4, c) - log_ratio(-1e-4, c)) / 2e-4 for c in range(30)]
        )
        spread = times @ pulls**2 - (times @ pulls) ** 2 / 30
        return log_ratio(), np.sqrt(spread)

    value, error = studentized(np.ones(30))
    again = np.array([studentized(times) for times in clusters.counts])
    low, high = np.percentile((again[:, 0] - value) / again[:, 1], [2.5, 97.5])
    expected = np.exp([value, value - high * error, value - low * error])
    assert disagreement.estimate_disagreement(clusters, decided) == pytest.approx(
        tuple(expected), rel=1e-5
    )


def test_one_step_of_the_standard_error_by_jackknife():
    """The standard error by influence is that of leaving clusters out, where clusters
    are many.
    """
    decided = drawn(np.random.default_rng(5), 400, 0.4, 0.5)
    columns = disagreement.cluster_sums(decided["n"], decided["rejected"])
    value, slopes = disagreement.log_disagreement_ratio(columns.sum(axis=0))
    pull = columns @ slopes - (columns @ slopes).mean()
    error = np.sqrt((pull**2).sum() * 400 / 399)
    left_out = np.array(
        [
            disagreement.log_disagreement_ratio(columns.sum(axis=0) - row)[0]
            for row in columns
        ]
    )
    jackknife = np.sqrt(399 / 400 * ((left_out - left_out.mean()) ** 2).sum())
    assert np.isfinite(value) and error == pytest.approx(jackknife, rel=0.02)


def test_without_spread_there_is_no_interval():
    never = System.of("t", *frames("rr", "aa", "aa")).dr()
    assert never[0] == 0 and np.isnan(never[1:]).all()
    alike = System.of("t", *frames("aa", "aa")).dr()
    assert np.isnan(alike).all() and np.isnan(alike.draws).all()


def test_few_decisions_are_flagged():
    decided = drawn(np.random.default_rng(1), 60, 0.5, 0.3)
    assert disagreement.too_few_for_disagreement(decided) is False
    assert disagreement.too_few_for_disagreement(decided.head(20)) is True


def test_few_mixed_clusters_are_flagged_and_bound_nothing():
    decided = System.of("t", *frames(*["rrrrrr", "aaaaaa"] * 150, "rrraaa")).decided
    found = estimate_of_profiles(decided)
    # in more than a third of the resamples no cluster is decided both ways
    assert (
        np.isnan(found[2])
        and found[1] < found[0]
        and disagreement.too_few_for_disagreement(decided)
    )
