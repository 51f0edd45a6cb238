"""Cohorts: binnings, gaps and flips, on worked cases."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from cohorted import asked

from paraguard_utils.analysis import cohorts
from paraguard_utils.core.estimates import ClusterBootstrap, to_columns
from paraguard_utils.report import findings


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
    assert list(found.index) == [f"{name} (CR@0.60)" for name in findings.COHORT_CLAIMS]
