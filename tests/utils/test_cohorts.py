"""Cohorts: binnings, gaps, flips and the regression, on worked cases."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraguard_lab.report import figures as lab_figures
from paraguard_utils.analysis import cohorts
from paraguard_utils.core.estimates import ClusterBootstrap, to_columns
from paraguard_utils.report import figures, findings
from paraguard_utils.schemas import STRATEGIES


def asked(rows):
    """Return corpus and scores from rows of (cluster, strategy, label)."""
    frame = pd.DataFrame(rows, columns=["cluster_id", "strategy", "label"])
    frame["prompt_id"] = [f"p{i:04d}" for i in range(len(frame))]
    corpus = frame[["prompt_id", "cluster_id", "strategy"]].assign(
        variant=(frame["strategy"] != "seed").astype(int),
        category="hate",
        topical="yes",
        text="two words",
        risk=0.5,
    )
    corpus["similarity"] = np.where(corpus["variant"] == 0, 1.0, 0.8)
    scores = frame[["prompt_id", "cluster_id", "label"]].assign(
        isolation=0.5, ci=0.7, ci_clipped=0.9, mean_similarity=0.7
    )
    return corpus, scores[scores["label"].isin(["accept", "reject"])]


def pairs_of(both, seed_only, variant_only, neither, strategy="lexical"):
    """Return rows of clusters with a seed and one variant, counted by which of the two
    is refused.
    """
    kinds = [("reject", "reject")] * both + [("reject", "accept")] * seed_only
    kinds += [("accept", "reject")] * variant_only + [("accept", "accept")] * neither
    return [
        row
        for i, (a, b) in enumerate(kinds)
        for row in ((f"c{i:03d}", "seed", a), (f"c{i:03d}", strategy, b))
    ]


def test_an_edge_belongs_to_the_bin_above_it():
    values = pd.Series([-1.0, 0.59, 0.60, 0.79, 0.80, 2.0])
    assert cohorts.cut_at_edges(values, (0.60, 0.80)).tolist() == [
        "low",
        "low",
        "middle",
        "middle",
        "high",
        "high",
    ]


def test_fixed_edges_cut_the_gate_in_three_equal_steps():
    # 0.30 + 0.40 / 3 = 0.4333, 0.30 + 2 * 0.40 / 3 = 0.5667
    assert pytest.approx((0.43333, 0.56667), abs=1e-5) == cohorts.RISK_BIN_EDGES


def test_fixed_bins_do_not_depend_on_the_other_rejections():
    corpus, scores = asked([(f"c{i}", "seed", "reject") for i in range(9)])
    corpus["risk"] = np.linspace(0.32, 0.68, 9)
    whole = cohorts.bin_rejections(corpus, scores, "fixed").set_index("prompt_id")
    part = cohorts.bin_rejections(corpus, scores.head(4), "fixed").set_index(
        "prompt_id"
    )
    assert part["risk_bin"].equals(whole["risk_bin"].loc[part.index])
    # 0.32 0.365 0.41 | 0.455 0.50 0.545 | 0.59 0.635 0.68
    assert whole["risk_bin"].tolist() == ["low"] * 3 + ["middle"] * 3 + ["high"] * 3
    assert set(whole["similarity_bin"]) == {"middle"}


def test_the_gap_by_hand():
    corpus, scores = asked([(f"c{i}", "seed", "reject") for i in range(8)])
    corpus["risk"] = [0.65] * 4 + [0.35] * 4
    scores["ci"] = [0.7, 0.7, 0.5, 0.5, 0.7, 0.5, 0.5, 0.5]
    scores["isolation"] = [1.0, 0.5, 0.0, float("nan"), 1.0, 1.0, 1.0, 1.0]
    clusters = ClusterBootstrap(corpus["cluster_id"], resamples=300)
    table = cohorts.cohort_table(
        "t", cohorts.bin_rejections(corpus, scores, "fixed"), clusters, "fixed"
    )
    cells = table[table["interpretation"] == "relative"].set_index(
        ["risk", "similarity"]
    )
    charged = cells.loc[("high", "all")]
    # CR@0.60: 2 of 4 inside, 1 of 4 outside
    assert charged["gap60"] == pytest.approx(0.25)
    assert charged["isolation"] == pytest.approx(0.5), (
        "of the three that have paraphrases"
    )
    assert charged["gap60_low"] < 0.25 < charged["gap60_high"]
    # two bins share all rejections: what one is above the other, the other is below it
    plain = cells.loc[("low", "all")]
    assert [plain["gap60"], plain["gap60_low"], plain["gap60_high"]] == pytest.approx(
        [-charged["gap60"], -charged["gap60_high"], -charged["gap60_low"]]
    )
    assert (
        math.isnan(cells.loc[("all", "all"), "gap60"])
        and "no rejection outside" in cells.loc[("all", "all"), "note"]
    )


def test_a_gap_to_nobody_or_everybody_still_has_a_width():
    clusters = ClusterBootstrap([f"c{i}" for i in range(10)], resamples=300)
    ids = np.array([f"c{i}" for i in range(10)])
    none, every = (
        clusters.share(ids[:4], [False] * 4),
        clusters.share(ids[4:], [True] * 6),
    )
    value, low, high = cohorts.share_difference(none, every)
    # Exact intervals: 0 of 4 is [0, 1 - 0.025^(1/4)] = [0, 0.602]; 6 of 6 is
    # [0.025^(1/6), 1] = [0.541, 1]. -1 has no room below; above it sqrt(0.602^2 +
    # 0.459^2) = 0.757
    assert (value, low) == (-1, -1)
    assert high == pytest.approx(-1 + math.hypot(1 - 0.025**0.25, 1 - 0.025 ** (1 / 6)))


def test_a_gap_with_an_unknown_interval_has_none():
    clusters = ClusterBootstrap(list("aabb"), resamples=50)
    alone, known = (
        clusters.mean(["a", "a"], [0.0, 1.0]),
        clusters.mean(list("aabb"), [0.0, 1.0, 1.0, 1.0]),
    )
    assert math.isnan(alone[1])
    value, low, high = cohorts.share_difference(alone, known)
    assert value == pytest.approx(-0.25) and math.isnan(low) and math.isnan(high)


def test_flips_by_hand():
    rows = [
        ("a", "seed", "accept"), ("a", "lexical", "reject"), ("a", "register", "accept"),
        ("b", "seed", "reject"), ("b", "lexical", "accept"), ("b", "register", "reject"),
        ("c", "seed", "accept"), ("c", "lexical", "reject"), ("c", "register", "accept"),
        ("d", "seed", "unparsed"), ("d", "lexical", "reject"), ("d", "register", "accept"),
    ]  # fmt: skip
    corpus, scores = asked(rows)
    clusters = ClusterBootstrap(corpus["cluster_id"], resamples=200)
    table = cohorts.group_table("t", corpus, scores, clusters)
    lexical, register, seed = (
        table[(table["kind"] == "strategy") & (table["group"] == name)].iloc[0]
        for name in ("lexical", "register", "seed")
    )
    # lexical: a and c to rejection, b to acceptance, d has no decided seed: 3 of 3;
    # refused 3 of 4
    assert [lexical["n_flip"], lexical["flip"], lexical["frr"]] == [3, 1, 0.75]
    assert [lexical["to_reject"], lexical["to_accept"]] == pytest.approx([2 / 3, 1 / 3])
    assert [register["n_flip"], register["flip"], register["n_reject"]] == [3, 0, 1]
    assert [lexical["flip_most"], register["flip_most"]] == [1, 0]
    assert math.isnan(seed["flip"]) and "the seed is the reference" in seed["note"]
    # seeds: 1 of 3 refused; the category holds all: 5 of 11 refused, 3 of 6 variants
    # flipped
    whole = table[table["kind"] == "category"].iloc[0]
    assert [seed["n_scored"], whole["n_scored"], whole["n_flip"]] == [3, 11, 6]
    assert [seed["frr"], whole["frr"], whole["flip"]] == pytest.approx(
        [1 / 3, 5 / 11, 0.5]
    )
    assert table["too_few"].all()


labels = st.sampled_from(["accept", "reject", "unparsed"])
clusters_of_three = st.lists(st.tuples(labels, labels, labels), min_size=1, max_size=10)


@pytest.mark.slow
@settings(max_examples=12)
@given(clusters_of_three)
def test_flips_split_into_their_directions_and_groups_add_up(decisions):
    names = ("seed", "lexical", "rewrite")
    rows = [
        (f"c{i}", name, label)
        for i, row in enumerate(decisions)
        for name, label in zip(names, row, strict=True)
    ]
    corpus, scores = asked(rows)
    clusters = ClusterBootstrap(corpus["cluster_id"], resamples=50)
    table = cohorts.group_table("t", corpus, scores, clusters)
    assert table["flip"].to_numpy() == pytest.approx(
        (table["to_reject"] + table["to_accept"]).to_numpy(), nan_ok=True
    )
    for measure in ("n_scored", "n_reject", "n_flip"):
        assert table.groupby("kind")[measure].sum().nunique() == 1
    for name in ("frr", "flip", "ci", "cr60"):
        assert (table[name].isna() | table[name].between(0, 1)).all()
        assert (
            table[f"{name}_low"].isna()
            | (table[f"{name}_low"] <= table[f"{name}_high"])
        ).all()
    for kind, rows in table.groupby("kind"):
        if rows["frr"].notna().any():
            assert rows["frr_most"].sum() == pytest.approx(1), kind
    assert (
        table.loc[table["n_reject"] == 0, "note"].str.contains("no scored rejection")
    ).all()


@pytest.mark.slow
def test_the_odds_ratio_by_hand():
    # 100 clusters: refused are both 20, the seed only 10, the variant only 30, neither
    # 40
    corpus, scores = asked(pairs_of(20, 10, 30, 40))
    row = (
        cohorts.refusal_odds_ratios(corpus, {"t": scores})
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
    corpus, scores = asked(pairs_of(20, 10, 30, 40))
    table = cohorts.refusal_odds_ratios(corpus, {"t": scores}).set_index("term")
    notes = table.drop(index="lexical")["note"]
    assert table.drop(index="lexical")["odds_ratio"].isna().all()
    assert (
        notes[["register", "softening", "hardening", "rewrite"]] == "no scored variant"
    ).all()
    assert (notes[["risk", "similarity", "length"]] == "no spread").all()


@pytest.mark.slow
def test_too_few_refusals_are_a_reason_and_not_a_number():
    # 2 * 3 + 3 + 3 = 12 refusals are enough for one term and too few for two
    corpus, scores = asked(pairs_of(3, 3, 3, 91))
    table = cohorts.refusal_odds_ratios(corpus, {"t": scores}).set_index("term")
    assert table.loc["lexical", "odds_ratio"] == pytest.approx(1)
    corpus["risk"] = np.linspace(0.3, 0.7, len(corpus))
    table = cohorts.refusal_odds_ratios(corpus, {"t": scores}).set_index("term")
    assert table[["odds_ratio", "p", "p_holm"]].isna().all(axis=None)
    assert table.loc["risk", "note"] == "12 refusals for 2 terms, fewer than 10 a term"


@pytest.mark.slow
def test_a_strategy_that_is_never_refused_is_left_out():
    rows = pairs_of(20, 10, 30, 40) + [
        (f"c{i:03d}", "softening", "accept") for i in range(50)
    ]
    corpus, scores = asked(rows)
    table = cohorts.refusal_odds_ratios(corpus, {"t": scores}).set_index("term")
    assert table.loc["softening", "note"] == "no variant is refused (separation)"
    assert math.isnan(table.loc["softening", "odds_ratio"])
    assert table.loc["lexical", "odds_ratio"] == pytest.approx(7 / 3, rel=1e-5)
    assert table.loc["lexical", "n"] == 200


def test_a_covariate_that_separates_is_no_estimate():
    corpus, scores = asked(pairs_of(20, 10, 30, 40))
    refused = (
        corpus["prompt_id"].map(scores.set_index("prompt_id")["label"]) == "reject"
    )
    corpus["risk"] = np.where(refused, 0.6, 0.4) + np.linspace(0, 0.05, len(corpus))
    table = cohorts.refusal_odds_ratios(corpus, {"t": scores}).set_index("term")
    assert table["odds_ratio"].isna().all() and table.loc["risk", "note"]


def drawn(slopes, n=150, seed=0):
    """Return corpus and scores of a world where refusal follows known log odds, with a
    common part in each cluster.
    """
    rng = np.random.default_rng(seed)
    rows = [
        (f"c{i:03d}", name, "accept")
        for i in range(n)
        for name in ("seed", *STRATEGIES)
    ]
    corpus, scores = asked(rows)
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
    scores["label"] = np.where(
        rng.random(len(corpus)) < 1 / (1 + np.exp(-odds)), "reject", "accept"
    )
    return corpus, scores


@pytest.mark.slow
def test_planted_effects_are_found_and_others_are_not():
    planted = {"register": 1.5, "risk": -0.8, "similarity": 0.6}
    corpus, scores = drawn(planted)
    table = cohorts.refusal_odds_ratios(corpus, {"t": scores})
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
    corpus, scores = drawn({"register": 1.5})
    table = cohorts.refusal_odds_ratios(
        corpus, {"a": scores, "b": scores, "c": scores.assign(label="accept")}
    )
    one, two, pooled = (
        table[table["system"] == name].set_index("term")
        for name in ("a", "b", cohorts.ALL_SYSTEMS)
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
    corpus, scores = drawn({"register": 1.5}, n=60, seed=seed)
    table = cohorts.refusal_odds_ratios(corpus, {"a": scores, "b": scores})
    pooled = table[table["system"] == cohorts.ALL_SYSTEMS].set_index("term")
    assert (
        pooled[["odds_ratio", "odds_ratio_low", "odds_ratio_high", "p"]]
        .notna()
        .all()
        .all()
    )
    assert (pooled["note"].drop(cohorts.ADJUSTED_TERM) == "").all()


def test_a_term_without_variance_between_clusters_has_an_estimate_but_no_interval():
    # In every cluster the variant is decided as the seed: log odds 0, variance 0
    corpus, scores = asked(pairs_of(20, 0, 0, 20))
    table = cohorts.refusal_odds_ratios(corpus, {"t": scores}).set_index("term")
    assert table.loc["lexical", "odds_ratio"] == pytest.approx(1)
    assert (
        table.loc["lexical", ["odds_ratio_low", "odds_ratio_high", "p", "p_holm"]]
        .isna()
        .all()
    )
    assert table.loc["lexical", "note"] == "no variance between clusters"


def test_seeds_have_no_similarity_of_their_own():
    corpus, _ = asked(pairs_of(1, 1, 1, 1))
    corpus.loc[corpus["variant"] == 1, "similarity"] = [0.6, 0.7, 0.8, 0.9]
    terms = cohorts.regression_terms(corpus)
    # mean 0.75, standard deviation sqrt((2 * 0.15^2 + 2 * 0.05^2) / 3) = 0.1291
    assert terms["similarity"].tolist() == pytest.approx(
        [0, -1.1619, 0, -0.3873, 0, 0.3873, 0, 1.1619], abs=1e-4
    )


def a_row(bins, system, risk, similarity, cr, gap, n_clusters=40):
    row = {
        "system": system,
        "bins": bins,
        "interpretation": "clipped",
        "risk": risk,
        "similarity": similarity,
        "n": 50,
    }
    row |= {"n_clusters": n_clusters, "rest_clusters": 40}
    return row | to_columns(
        {"cr60": (cr, cr - 0.1, cr + 0.1), "gap60": (gap, gap - 0.1, gap + 0.1)}
    )


def test_verdicts_follow_the_intervals():
    rows = []
    for system, safe, charged in (("a", 0.8, -0.3), ("b", 0.2, 0.3), ("c", 0.55, 0.02)):
        rows += [
            a_row("fixed", system, "low", "high", safe, safe - 0.5),
            a_row("fixed", system, "high", "all", 0.3, charged),
        ]
    rows += [
        a_row("fixed", "d", "low", "high", 0.9, 0.4, n_clusters=9),
        a_row("fixed", "d", "high", "all", 0.3, -0.3, 9),
    ]
    found = findings.count_cohort_claims(pd.DataFrame(rows)).set_index("claim")[
        ["confirm", "contradict", "undecided", "untestable"]
    ]
    # safe: a 0.80, b 0.20, c 0.55 [0.45, 0.65], d in too few clusters; charged gaps
    # -0.3, 0.3, 0.02 [-0.08, 0.12], few
    assert found.to_numpy().tolist() == [[1, 1, 1, 1]] * 3
    assert list(found.index) == list(findings.COHORT_CLAIMS)


@pytest.mark.slow
def test_figures_are_drawn_where_much_is_undefined():
    corpus, scores = asked(pairs_of(3, 3, 3, 91))
    clusters = ClusterBootstrap(corpus["cluster_id"], resamples=50)
    table = cohorts.group_table("t", corpus, scores, clusters)
    assert len(figures.plot_strategy_flips(table).axes) == 1
    fitted = cohorts.refusal_odds_ratios(corpus, {"t": scores, "u": scores})
    assert (
        len(
            [
                axis
                for axis in lab_figures.plot_cohort_regression(fitted).axes
                if axis.get_visible()
            ]
        )
        == 3
    )


@pytest.mark.parametrize("label", ["reject", "unparsed"])
def test_seeds_alone_or_nothing_decided_give_reasons(label):
    corpus, scores = asked([(f"c{i}", "seed", label) for i in range(4)])
    scores = scores.assign(ci=np.nan, ci_clipped=np.nan)
    clusters = ClusterBootstrap(corpus["cluster_id"], resamples=20)
    table = cohorts.group_table("t", corpus, scores, clusters)
    assert (
        table["ci"].isna().all()
        and table["note"].str.contains("no scored rejection").all()
    )
    figures.plot_strategy_flips(table)
    fitted = cohorts.refusal_odds_ratios(corpus, {"t": scores})
    assert (
        fitted["odds_ratio"].isna().all()
        and (fitted["note"] == "no term has spread").all()
    )
    lab_figures.plot_cohort_regression(fitted)
