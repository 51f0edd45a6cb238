"""Cohorts: binnings, gaps and flips, on worked cases."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from cohorted import asked, pairs_of
from hypothesis import given, settings
from hypothesis import strategies as st

from paraguard_utils.analysis import cohorts
from paraguard_utils.core.estimates import ClusterBootstrap, to_columns
from paraguard_utils.report import figures, findings


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
    system = asked([(f"c{i}", "seed", "reject") for i in range(9)])
    system.prompts["risk"] = np.linspace(0.32, 0.68, 9)
    less = replace(system, scores=system.scores.head(4))
    whole = cohorts.bin_rejections(system, "fixed").set_index("prompt_id")
    part = cohorts.bin_rejections(less, "fixed").set_index("prompt_id")
    assert part["risk_bin"].equals(whole["risk_bin"].loc[part.index])
    # 0.32 0.365 0.41 | 0.455 0.50 0.545 | 0.59 0.635 0.68
    assert whole["risk_bin"].tolist() == ["low"] * 3 + ["middle"] * 3 + ["high"] * 3
    assert set(whole["similarity_bin"]) == {"middle"}


def test_the_gap_by_hand():
    system = asked([(f"c{i}", "seed", "reject") for i in range(8)], 300)
    corpus, scores = system.prompts, system.scores
    corpus["risk"] = [0.65] * 4 + [0.35] * 4
    scores["ci"] = [0.7, 0.7, 0.5, 0.5, 0.7, 0.5, 0.5, 0.5]
    scores["isolation"] = [1.0, 0.5, 0.0, float("nan"), 1.0, 1.0, 1.0, 1.0]
    table = cohorts.cohort_table(system, "fixed")
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
    assert math.isnan(cells.loc[("all", "all"), "gap60"])
    assert "no rejection outside" in cells.loc[("all", "all"), "note"]


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
    decisions = {
        "a": ("accept", "reject", "accept"),
        "b": ("reject", "accept", "reject"),
        "c": ("accept", "reject", "accept"),
        "d": ("unparsed", "reject", "accept"),
    }
    rows = [
        (cluster, strategy, label)
        for cluster, labels_of in decisions.items()
        for strategy, label in zip(
            ("seed", "lexical", "register"), labels_of, strict=True
        )
    ]
    table = cohorts.group_table(asked(rows))
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
    assert math.isnan(seed["flip"]) and math.isnan(seed["flip_most"])
    assert "the seed is the reference" in seed["note"]
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
    table = cohorts.group_table(asked(rows, 50))
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
        for measure in ("frr", "flip"):
            if rows[measure].notna().any():
                assert rows[f"{measure}_most"].sum() == pytest.approx(1), kind
    undefined = table.loc[table["n_reject"] == 0, "note"]
    assert undefined.str.contains("no scored rejection").all()


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
    table = cohorts.group_table(asked(pairs_of(3, 3, 3, 91), 50))
    assert len(figures.plot_strategy_flips(table).axes) == 1


@pytest.mark.parametrize("label", ["reject", "unparsed"])
def test_seeds_alone_or_nothing_decided_give_reasons(label):
    system = asked([(f"c{i}", "seed", label) for i in range(4)], 20)
    undefined = system.scores.assign(ci=np.nan, ci_clipped=np.nan)
    table = cohorts.group_table(replace(system, scores=undefined))
    assert table[["ci", "flip", "flip_most"]].isna().all(axis=None)
    assert table["note"].str.contains("no scored rejection").all()
    figures.plot_strategy_flips(table)
