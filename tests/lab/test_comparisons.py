"""Systems compared with one another, and the sheets of their refusals."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from worlds import world

from paraguard_lab.analysis import comparisons
from paraguard_lab.report import findings as lab_findings
from paraguard_lab.report import review
from paraguard_utils.analysis.confusion import score_prompts
from paraguard_utils.analysis.drift import DriftCache
from paraguard_utils.analysis.signals import compute_pairs
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate


def test_a_verdict_needs_rejections_and_mixed_clusters():
    row = {
        "system": "t",
        "interpretation": "relative",
        "ci": 0.4,
        "excess": 0.1,
        "excess_low": 0.05,
        "excess_high": 0.15,
    }
    row |= {"too_few": False, "n_reject": 50, "n_mixed": 20, "note": ""}
    frames = [
        row,
        row | {"too_few": True},
        row | {"n_mixed": 2},
        row | {"excess_low": -0.1},
    ]
    frames.append(row | {"excess_low": math.nan, "excess_high": math.nan})
    said = lab_findings.judge_excess(pd.DataFrame(frames))
    assert said == [
        lab_findings.EXCESS_VERDICTS["above"],
        "too few refusals to estimate",
        "too few refusals to estimate",
        "not distinguishable from noise",
        "undefined",
    ]
    left = pd.DataFrame([row] * 3).assign(excess_equal_contrast=0.0)
    left = left.assign(
        excess_equal_contrast_low=[-0.1, 0.01, math.nan],
        excess_equal_contrast_high=[0.1, 0.1, math.nan],
    )
    assert lab_findings.judge_excess(left) == [
        "separable by wording",
        *[lab_findings.EXCESS_VERDICTS["above"]] * 2,
    ]


def test_confused_refusals_show_the_nearest_accepted_paraphrase():
    # a: p000, p001 rejected, p002, p003 accepted, p004 unparsed; b: p005 rejected, p006
    # accepted; c: p007 rejected
    answers = [
        "reject",
        "reject",
        "accept",
        "accept",
        "unparsed",
        "reject",
        "accept",
        "reject",
    ]
    corpus, vectors, traces, labels, tokens = world(answers, list("aaaaabbc"))
    corpus.loc[0, "text"] = '=HYPERLINK("x")'
    labels = labels.assign(response="-1", kind="policy", p_refusal=0.95)
    system = replace(System.of("t", corpus, labels), traces=traces)
    system = replace(system, drifts=DriftCache(tokens))
    pairs = compute_pairs(system, vectors)
    scores = score_prompts(replace(system, pairs=pairs))
    system = replace(system, pairs=pairs, scores=scores)
    sheet = review.list_confused_refusals(system)
    # refusals of a part, and those of which the classifier is not sure, stand behind
    # others with as many accepted
    first = sheet["rejected_id"].iloc[0]
    for doubt in ({"kind": "partial"}, {"p_refusal": 0.89}):
        doubtful = labels.assign(
            **{
                name: labels[name].where(labels["prompt_id"] != first, value)
                for name, value in doubt.items()
            }
        )
        assert (
            review.list_confused_refusals(replace(system, labels=doubtful))[
                "rejected_id"
            ].iloc[0]
            != first
        )
    assert (
        set(sheet["rejected_id"]) == {"p000", "p001", "p005"}
        and sheet["rejected_id"].iloc[2] == "p005"
    )
    # of the four others in cluster a three have a label, and two of them are accepted
    assert sheet["accepted"].tolist() == [2, 2, 1] and sheet["labelled"].tolist() == [
        3,
        3,
        1,
    ]
    near = pairs[
        pairs["same_cluster"]
        & (pairs["centre_id"] == "p000")
        & (pairs["neighbour_label"] == "accept")
    ]
    first = sheet.set_index("rejected_id").loc["p000"]
    assert first["similarity"] == near["similarity"].max()
    assert (
        first["rejected_prompt"] == '\'=HYPERLINK("x")'
        and first["paraphrase_answer"] == "'-1"
    )
    assert (sheet["verdict"] == "").all() and len(
        review.list_confused_refusals(system, most=1)
    ) == 1
    assert review.list_confused_refusals(replace(system, pairs=pairs[:0])).empty
    whole = review.list_refused_clusters([system])
    assert whole[["cluster_id", "rejected", "unlabelled"]].to_numpy().tolist() == [
        ["c", 1, 0]
    ]


@pytest.mark.slow
def test_differences_are_paired_and_holm_adjusted():
    def drawn(value, draws):
        return {"frr": Estimate.percentile(value, np.array(draws, float))}

    steps = np.arange(999)
    systems = {
        "a": drawn(0.5, 0.5 + steps),
        "b": drawn(0.4, 0.4 + steps),
        "c": drawn(0.45, 500 - steps),
    }
    found = comparisons.compare_systems(systems, ["frr"]).set_index(["first", "second"])
    # a - b is 0.1 in every resample: none lies on the other side of 0, so p = 2 * 1 /
    # 1000
    assert found.loc[
        ("a", "b"), ["difference", "difference_low", "difference_high"]
    ].tolist() == pytest.approx([0.1] * 3)
    assert found.loc[("a", "b"), "p"] == pytest.approx(0.002)
    # a - c = 2 * step - 499.5 is below 0 for 250 of 999, b - c = 2 * step - 499.6 too:
    # p = 2 * 251 / 1000
    assert found.loc[("a", "c"), "p"] == pytest.approx(0.502)
    # Holm: the smallest of three p times 3; the other two times 2 and 1, made monotone
    assert found["p_holm"].tolist() == pytest.approx([0.006, 1.0, 1.0])


@pytest.mark.slow
def test_what_cannot_be_compared_is_undefined():
    nothing = Estimate(np.nan, np.nan, np.nan, np.full(9, np.nan))
    known = Estimate.percentile(1.0, np.ones(9))
    found = comparisons.compare_systems(
        {"a": {"ci": nothing}, "b": {"ci": known}, "c": {"ci": known}}, ["ci"]
    )
    assert (
        found["difference"].isna().tolist() == [True, True, False]
        and found["p_holm"].tolist()[2] == 1.0
    )
    assert found["p_holm"].isna().tolist() == [True, True, False]


def estimates(**values):
    """Make estimates of one measure from one value per cluster."""
    clusters = ClusterBootstrap(list("abc"), resamples=500)
    return {
        name: {"frr": clusters.mean(list("abc"), numbers)}
        for name, numbers in values.items()
    }


def test_orders_by_hand():
    found = comparisons.compare_orders(
        {
            "cues": estimates(x=[1, 1, 1], y=[0, 0, 0]),
            "judge": estimates(x=[0, 0, 0], y=[1, 1, 1]),
        },
        "cues",
        ["frr"],
    )
    assert found["higher"].tolist() == [1.0, 0.0] and found["reversed"].tolist() == [
        0.0,
        1.0,
    ]
    tied = comparisons.compare_orders(
        {"cues": estimates(x=[1, 0, 0], y=[1, 0, 0])}, "cues", ["frr"]
    )
    assert tied["higher"].tolist() == [0.5] and tied["reversed"].tolist() == [0.0]


def test_differing_systems_by_hand():
    one, other = "x--none", "x--safety"
    table = pd.DataFrame(
        {
            "system": [one, other, "y--none"],
            "too_few": False,
            "n_mixed": 99,
            "too_few_for_dr": [False, False, True],
        }
    )
    rows = [
        ("ci", one, other, 0.1, 0.01),
        ("ci", one, "y--none", 0.9, 0.01),
        ("dr", one, other, -0.2, 0.04),
    ]
    rows += [
        ("dr", one, "y--none", 0.5, 0.01),
        ("frr", one, other, 0.3, 0.2),
        ("frr", other, "y--none", -0.4, 0.01),
    ]
    between = pd.DataFrame(
        rows, columns=["measure", "first", "second", "difference", "p_holm"]
    )
    between = between.assign(difference_low=0.0, difference_high=0.0)
    # CI of two models is not compared, nor DR of a system with few rejections
    told = lab_findings.significant_pairs(between, table).set_index("measure")
    assert (
        told.loc["ci"].tolist() == [1, 1]
        and told.loc["dr"].tolist() == [1, 1]
        and told.loc["frr"].tolist() == [2, 1]
    )
    (row,) = lab_findings.list_differences(between, table, "dr").to_dict("records")
    assert (row["first"], row["second"], row["difference"]) == (one, other, -0.2)
    assert lab_findings.list_differences(between, table, "flip_rate").empty
