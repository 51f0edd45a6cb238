"""What stands beside Table 1: latent correlation and permutations of DR, and blocks."""

import numpy as np
import pytest
from test_disagreement import drawn
from test_disagreement_parts import counted
from worlds import world

from paraguard_lab.analysis import details
from paraguard_lab.core.disagreement import cluster_profiles, disagreement_parts
from paraguard_lab.core.latent import latent_correlation
from paraguard_lab.core.permutation import permutation_test
from paraguard_utils.analysis.system import System
from paraguard_utils.labels import labelling


def profiles_of(rng, n_clusters, rate, correlation):
    decided = drawn(rng, n_clusters, rate, correlation)
    return cluster_profiles(decided)


def test_latent_correlation_is_found_whatever_the_rate():
    rng = np.random.default_rng(11)
    for rate in (0.1, 0.5):
        value, low, high = latent_correlation(profiles_of(rng, 3000, rate, 0.5))
        assert low < value < high and low < 0.5 < high
        assert value == pytest.approx(0.5, abs=0.06)
    # DR is not the same at both rates
    often, seldom = (
        disagreement_parts(*profiles_of(rng, 3000, rate, 0.5).to_numpy().T)[2]
        for rate in (0.5, 0.1)
    )
    assert seldom > often + 0.05
    alike = latent_correlation(counted(*["ra"] * 50))
    assert alike[0] == 0, "less alike than by chance"


@pytest.mark.slow
def test_permuted_labels_show_no_meaning():
    rng = np.random.default_rng(2)
    mean, p = permutation_test(profiles_of(rng, 150, 0.3, 0.5))
    assert mean == pytest.approx(1, abs=0.01) and p == 1 / 1000
    p_values = [
        permutation_test(profiles_of(rng, 60, 0.3, 0.0), 99)[1] for _ in range(40)
    ]
    assert min(p_values) < 0.35 and max(p_values) > 0.65
    assert np.mean(np.array(p_values) <= 0.1) < 0.3


def test_without_spread_nothing_is_estimated():
    assert np.isnan(latent_correlation(counted("aa", "aa"))).all()
    assert np.isnan(permutation_test(counted("aa", "aa"))).all()
    large = counted("r" * 60 + "a" * 60, "ra", "aa")
    assert np.isnan(latent_correlation(large)).all()


def test_the_parts_of_dr_give_it():
    corpus, *_, labels, _ = world(
        ["reject", "accept", "accept", "reject"], list("aabb")
    )
    system = System.of("t", corpus, labels)
    row = details.describe_disagreement(system)
    assert row["d_within"] / row["d_between"] == pytest.approx(system.dr().value)


def test_what_a_provider_stopped_is_left_aside():
    corpus, *_, labels, _ = world(
        ["accept", "reject", "blocked", "unparsed"], ["a", "b", "a", "d"]
    )
    labels = labels.assign(kind=["", "policy", "violence", "empty"])
    system = System.of("t", corpus, labelling.convert_labels(labels, "combined"))
    # 2 of 3 scored are refused; without the blocked one 1 of 2
    assert system.frr().value == pytest.approx(2 / 3)
    assert details.estimate_frr_aside(system).value == pytest.approx(1 / 2)
