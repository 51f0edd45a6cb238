"""The regression of refusal, on worked cases."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from cohorted import asked, pairs_of

from paraguard_lab.analysis import regression
from paraguard_lab.report import figures
from paraguard_utils.schemas import STRATEGIES


@pytest.mark.slow
def test_the_odds_ratio_by_hand():
    # 100 clusters: refused are both 20, the seed only 10, the variant only 30, neither
    # 40
    row = (
        regression.refusal_odds_ratios([asked(pairs_of(20, 10, 30, 40))])
        .set_index("term")
        .loc["lexical"]
    )
    # seeds 30 of 100, variants 50 of 100: (50 / 50) / (30 / 70) = 7 / 3
    assert row["odds_ratio"] == pytest.approx(7 / 3, rel=1e-5)
    # var = 1 / (n p q) of each, minus twice the covariance (p11 - p1 p2) / (n p1 q1 p2
    # q2)     = 1 / 21 + 1 / 25 - 2 * (0.20 - 0.15) / (100 * 0.21 * 0.25) = 0.068571;
    # exp(1.96 * sqrt) = 1.6707
    width = math.exp(1.959964 * math.sqrt(1 / 21 + 1 / 25 - 0.1 / 5.25))
    assert row["odds_ratio_low"] == pytest.approx(7 / 3 / width, rel=1e-4)
    assert row["odds_ratio_high"] == pytest.approx(7 / 3 * width, rel=1e-4)
    assert [row["n"], row["n_reject"], row["n_clusters"]] == [200, 80, 100]


@pytest.mark.slow
def test_a_term_without_spread_is_not_estimated():
    system = asked(pairs_of(20, 10, 30, 40))
    table = regression.refusal_odds_ratios([system]).set_index("term")
    notes = table.drop(index="lexical")["note"]
    assert table.drop(index="lexical")["odds_ratio"].isna().all()
    assert (
        notes[["register", "softening", "hardening", "rewrite"]] == "no scored variant"
    ).all()
    assert (notes[["risk", "similarity", "length"]] == "no spread").all()


@pytest.mark.slow
def test_too_few_refusals_are_a_reason_and_not_a_number():
    # 2 * 3 + 3 + 3 = 12 refusals are enough for one term and too few for two
    system = asked(pairs_of(3, 3, 3, 91))
    table = regression.refusal_odds_ratios([system]).set_index("term")
    assert table.loc["lexical", "odds_ratio"] == pytest.approx(1)
    system.prompts["risk"] = np.linspace(0.3, 0.7, len(system.prompts))
    table = regression.refusal_odds_ratios([system]).set_index("term")
    assert table[["odds_ratio", "p", "p_holm"]].isna().all(axis=None)
    assert table.loc["risk", "note"] == "12 refusals for 2 terms, fewer than 10 a term"


@pytest.mark.slow
def test_a_strategy_that_is_never_refused_is_left_out():
    rows = pairs_of(20, 10, 30, 40) + [
        (f"c{i:03d}", "softening", "accept") for i in range(50)
    ]
    system = asked(rows)
    table = regression.refusal_odds_ratios([system]).set_index("term")
    assert table.loc["softening", "note"] == "no variant is refused (separation)"
    assert math.isnan(table.loc["softening", "odds_ratio"])
    assert table.loc["lexical", "odds_ratio"] == pytest.approx(7 / 3, rel=1e-5)
    assert table.loc["lexical", "n"] == 200


def test_a_covariate_that_separates_is_no_estimate():
    system = asked(pairs_of(20, 10, 30, 40))
    corpus = system.prompts
    refused = system.refused == 1
    corpus["risk"] = np.where(refused, 0.6, 0.4) + np.linspace(0, 0.05, len(corpus))
    table = regression.refusal_odds_ratios([system]).set_index("term")
    assert table["odds_ratio"].isna().all() and table.loc["risk", "note"]


def drawn(slopes, n=150, seed=0):
    """Return a system whose refusals follow known log odds, with a common part in each
    cluster.
    """
    rng = np.random.default_rng(seed)
    rows = [
        (f"c{i:03d}", name, "accept")
        for i in range(n)
        for name in ("seed", *STRATEGIES)
    ]
    system = asked(rows)
    corpus = system.prompts
    corpus["risk"] = rng.uniform(0.3, 0.7, len(corpus))
    variant = corpus["variant"] > 0
    corpus.loc[variant, "similarity"] = rng.uniform(0.6, 1, variant.sum())
    corpus["text"] = ["word " * k for k in rng.integers(5, 30, len(corpus))]
    common = corpus["cluster_id"].map(
        dict(zip(corpus["cluster_id"].unique(), rng.normal(0, 0.7, n), strict=True))
    )
    z = {
        name: (
            (corpus[name] - corpus[name][variant].mean()) / corpus[name][variant].std()
        )
        for name in ("risk", "similarity")
    }
    odds = (
        -0.5
        + common
        + slopes.get("risk", 0) * z["risk"]
        + slopes.get("similarity", 0) * z["similarity"] * variant
    )
    odds += corpus["strategy"].map(slopes).fillna(0)
    system.scores["label"] = np.where(
        rng.random(len(corpus)) < 1 / (1 + np.exp(-odds)), "reject", "accept"
    )
    return system


@pytest.mark.slow
def test_planted_effects_are_found_and_others_are_not():
    planted = {"register": 1.5, "risk": -0.8, "similarity": 0.6}
    table = regression.refusal_odds_ratios([drawn(planted)])
    found = table.set_index("term")
    sure = set(found.index[found["p_holm"] < 0.05])
    assert set(planted) <= sure
    for term, slope in planted.items():
        assert (found.loc[term, "odds_ratio"] > 1) == (slope > 0)
        # population-averaged odds are drawn towards 1 by what clusters have in common
        assert 0.6 < math.log(found.loc[term, "odds_ratio"]) / slope < 1.3
    assert found["p_holm"].dropna().ge(found["p"][found["p_holm"].notna()]).all()
    assert (
        math.isnan(found.loc["length", "p_holm"])
        and found.loc["length", "odds_ratio"] > 0
    )


@pytest.mark.slow
def test_systems_are_pooled_and_corrected_as_families():
    system = drawn({"register": 1.5})
    scores = system.scores
    table = regression.refusal_odds_ratios(
        [
            replace(system, name="a"),
            replace(system, name="b"),
            replace(system, name="c", scores=scores.assign(label="accept")),
        ]
    )
    one, two, pooled = (
        table[table["system"] == name].set_index("term")
        for name in ("a", "b", regression.ALL_SYSTEMS)
    )
    pd.testing.assert_frame_equal(
        one.drop(columns="system"), two.drop(columns="system")
    )
    # the same answers twice are no new clusters: odds ratios and intervals hardly move
    # (only their weights do)
    for end in ("", "_low", "_high"):
        assert pooled[f"odds_ratio{end}"].to_numpy() == pytest.approx(
            one[f"odds_ratio{end}"].to_numpy(), rel=0.05
        )
    assert (
        pooled["n"].iloc[0] == 2 * len(scores) and pooled["n_clusters"].iloc[0] == 150
    )
    # 14 tests in the family of the systems, 7 in the pooled one
    smallest = one["p"].drop("length").min()
    assert one["p_holm"].min() == pytest.approx(min(1, 14 * smallest))
    assert pooled["p_holm"].min() == pytest.approx(
        min(1, 7 * pooled["p"].drop("length").min())
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_system_that_decides_as_another_does_not_spoil_the_pooled_fit(seed):
    # The second system's own term is 0 in every cluster: its variance is 0, or what
    # rounding leaves of it, +-1e-19.
    system = drawn({"register": 1.5}, n=60, seed=seed)
    table = regression.refusal_odds_ratios(
        [replace(system, name="a"), replace(system, name="b")]
    )
    pooled = table[table["system"] == regression.ALL_SYSTEMS].set_index("term")
    assert (
        pooled[["odds_ratio", "odds_ratio_low", "odds_ratio_high", "p"]]
        .notna()
        .all()
        .all()
    )
    assert (pooled["note"].drop(regression.ADJUSTED_TERM) == "").all()


def test_a_term_without_variance_between_clusters_has_an_estimate_but_no_interval():
    # In every cluster the variant is decided as the seed: log odds 0, variance 0
    system = asked(pairs_of(20, 0, 0, 20))
    table = regression.refusal_odds_ratios([system]).set_index("term")
    assert table.loc["lexical", "odds_ratio"] == pytest.approx(1)
    assert (
        table.loc["lexical", ["odds_ratio_low", "odds_ratio_high", "p", "p_holm"]]
        .isna()
        .all()
    )
    assert table.loc["lexical", "note"] == "no variance between clusters"


def test_seeds_have_no_similarity_of_their_own():
    corpus = asked(pairs_of(1, 1, 1, 1)).prompts
    corpus.loc[corpus["variant"] == 1, "similarity"] = [0.6, 0.7, 0.8, 0.9]
    terms = regression.regression_terms(corpus)
    # mean 0.75, standard deviation sqrt((2 * 0.15^2 + 2 * 0.05^2) / 3) = 0.1291
    assert terms["similarity"].tolist() == pytest.approx(
        [0, -1.1619, 0, -0.3873, 0, 0.3873, 0, 1.1619], abs=1e-4
    )


@pytest.mark.slow
def test_a_figure_is_drawn_where_much_is_undefined():
    system = asked(pairs_of(3, 3, 3, 91))
    fitted = regression.refusal_odds_ratios([system, replace(system, name="u")])
    axes = figures.plot_cohort_regression(fitted).axes
    assert len([axis for axis in axes if axis.get_visible()]) == 3


@pytest.mark.parametrize("label", ["reject", "unparsed"])
def test_seeds_alone_or_nothing_decided_give_reasons(label):
    system = asked([(f"c{i}", "seed", label) for i in range(4)])
    fitted = regression.refusal_odds_ratios([system])
    assert fitted["odds_ratio"].isna().all()
    assert (fitted["note"] == "no term has spread").all()
    figures.plot_cohort_regression(fitted)
