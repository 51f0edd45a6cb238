"""What the paper reports, and what the project's defaults and verdicts make of it."""

import numpy as np
import pandas as pd
import pandera.pandas as pa
import pytest

from paraguard_utils.core.confusion import CR_THRESHOLDS, N_NEIGHBOURS
from paraguard_utils.core.signals import PAPER_WEIGHTS
from paraguard_utils.report import findings, paper
from paraguard_utils.report.figures.cohorts import PAPER_COHORTS
from paraguard_utils.settings import Gates

TEXT = pa.Column(str, pa.Check.str_matches(r"^\S"))
SCHEMA = pa.DataFrameSchema(
    {
        "item": pa.Column(
            str, pa.Check.str_matches(r"^[a-z\d_-]+(\.[a-z\d_-]+)+$"), unique=True
        ),
        "what": TEXT,
        "value": pa.Column(float, pa.Check(np.isfinite)),
        "where": pa.Column(
            str, pa.Check.str_matches(r"^(text|(Table|Fig\.) \d(, Fig\. \d)?)$")
        ),
    },
    strict=True,
    ordered=True,
)


def test_the_file_fits_its_schema():
    table = pd.read_csv(paper.PAPER_VALUES_FILE).astype({"value": float})
    SCHEMA.validate(table)
    rates = table.loc[
        table["item"].str.startswith(("cohort.", "guard.", "cr.", "gate.")), "value"
    ]
    assert rates.between(0, 1).all()
    assert paper.read_paper_values()["value"].tolist() == table["value"].tolist()


def test_defaults_are_the_papers():
    known = paper.paper_value
    assert (known("gate.similarity"), known("gate.overlap")) == (
        Gates().min_similarity,
        Gates().max_overlap,
    )
    assert (known("gate.risk.low"), known("gate.risk.high")) == (
        Gates().min_risk,
        Gates().max_risk,
    )
    assert (
        known("corpus.paraphrases") == Gates().per_seed
        and known("score.k") == N_NEIGHBOURS
    )
    weights = (PAPER_WEIGHTS.drift, PAPER_WEIGHTS.prob_shift, PAPER_WEIGHTS.ppl)
    assert (
        tuple(known(f"score.weight.{name}") for name in ("drift", "prob_shift", "ppl"))
        == weights
    )
    assert (known("cr.tau.guards"), known("cr.tau.models")) == CR_THRESHOLDS


def test_figures_take_the_papers_numbers_from_the_file():
    assert set(PAPER_COHORTS) < set(paper.read_paper_values().index)


@pytest.mark.parametrize(
    ("counts", "word"),
    [
        ((4, 0, 0), findings.REPRODUCED),
        ((2, 0, 2), findings.REPRODUCED),  # half of them
        ((1, 0, 2), findings.CANNOT_TELL),  # one of three
        ((0, 4, 4), findings.NOT_REPRODUCED),
        ((0, 3, 4), findings.CANNOT_TELL),
        ((5, 1, 0), findings.CANNOT_TELL),  # mixed
        ((0, 0, 8), findings.CANNOT_TELL),
        ((0, 0, 0), findings.CANNOT_TELL),  # nothing is testable
    ],
)
def test_a_interpretation_gets_one_word(counts, word):
    assert findings.choose_verdict(*counts) == word


def test_interpretations_are_combined():
    yes, no, unclear = (
        findings.REPRODUCED,
        findings.NOT_REPRODUCED,
        findings.CANNOT_TELL,
    )
    assert [findings.combine_verdicts([word, word]) for word in (yes, no, unclear)] == [
        yes,
        no,
        unclear,
    ]
    assert findings.combine_verdicts([yes, no]) == findings.DEPENDS_ON_INTERPRETATION
    for pair in ((yes, unclear), (unclear, no)):
        assert findings.combine_verdicts(pair) == unclear
    assert findings.combine_verdicts([]) == unclear


def claims(**interpretations):
    """Counts of a claim about the high-risk cohort, by reading: confirm, contradict,
    open.
    """
    (claim,) = (
        text for text, claim in findings.COHORT_CLAIMS.items() if claim.key == "risky"
    )
    rows = [
        {"claim": claim, "interpretation": interpretation}
        | dict(zip(findings.CLAIM_OUTCOMES, counts, strict=True))
        for interpretation, counts in interpretations.items()
    ]
    return pd.DataFrame(rows)


def test_comparisons_of_all_corpora_are_added_up():
    mini = claims(relative=(2, 0, 0), clipped=(0, 2, 1))
    public = claims(relative=(1, 0, 1), clipped=(3, 0, 0))
    verdicts = []
    for given in (mini, public, pd.concat([mini, public])):
        (row,) = findings.tabulate_claims(given).to_dict("records")
        verdicts.append(row["verdict"])
    assert row["relative"] == "3 yes, 0 no, 1 unclear"
    # clipped: 2 of 3 contradict; 3 of 3 confirm; together 3 confirm and 2 contradict,
    # which is mixed
    assert verdicts == [
        findings.DEPENDS_ON_INTERPRETATION,
        findings.REPRODUCED,
        findings.CANNOT_TELL,
    ]


def test_r_is_compared_with_the_papers():
    ends = [(-0.5, -0.2), (0.0, 0.4), (-0.1, 0.05), (-0.3, 0.1), (-0.6, -0.4)]
    table = pd.DataFrame(ends, columns=["r_low", "r_high"]).assign(
        covariate="similarity", interpretation="relative", too_few=False
    )
    table["r"] = (table["r_low"] + table["r_high"]) / 2
    table.loc[4, "too_few"] = True
    row, _ = findings.count_similarity_claims(
        pd.concat([table, table.assign(covariate="risk")])
    ).to_dict("records")
    # below and above -0.03; within 0.1 of it; wider than that; too few rejections
    assert [
        row[name] for name in ("contradict", "confirm", "undecided", "untestable")
    ] == [
        2,
        1,
        1,
        1,
    ]


def test_r_is_compared_with_the_papers_break():
    ends = [(-0.9, -0.75), (0.72, 0.9), (-0.6, 0.65), (-0.8, -0.6), (-0.9, 0.8), (0, 1)]
    table = pd.DataFrame(ends, columns=["r_low", "r_high"]).assign(
        covariate="similarity", interpretation="relative", too_few=False
    )
    table.loc[5, "too_few"] = True
    _, row = findings.count_similarity_claims(table).to_dict("records")
    # beyond on either side: two; within: one; across an end, or across all: two
    counted = [row[name] for name in (*findings.CLAIM_OUTCOMES, "untestable")]
    assert counted == [1, 2, 2, 1]


def test_claims_about_models_that_were_not_run_have_no_verdict():
    claims = pd.DataFrame(
        [
            {
                "claim": key,
                "interpretation": name,
                "confirm": 1,
                "contradict": 0,
                "testable": 2,
            }
            for key in findings.PAPER_CLAIMS
            for name in ("relative", "clipped")
        ]
    ).assign(verdict=findings.CANNOT_TELL)
    shown = findings.tabulate_results(claims).set_index("claim")
    assert shown["relative"].iloc[0] == "1 yes, 0 no of 2"
    for title in findings.NOT_TESTABLE:
        row = shown.loc[title]
        assert row["verdict"] == "not testable on our systems"
        assert row["relative"] == row["clipped"] == "–"
    assert (shown["verdict"] == findings.CANNOT_TELL).sum() == len(
        findings.PAPER_CLAIMS
    )


def test_guards_are_judged_in_both_interpretations():
    table = pd.DataFrame(
        {
            "axis": ["harm", "harm", "harm", "model"],
            "too_few": [False, False, True, False],
        }
    )
    table = table.assign(
        cr60=0.1, cr60_low=[0.0, 0.4, 0.0, 0.9], cr60_high=[0.2, 0.6, 0.2, 1.0]
    )
    table = table.assign(cr60_clipped=0.95, cr60_clipped_low=0.9, cr60_clipped_high=1.0)
    counted = findings.count_guard_claim(table)
    outcomes = ["confirm", "contradict", "undecided", "untestable"]
    assert counted[outcomes].values.tolist() == [[0, 1, 1, 1], [2, 0, 0, 1]]
    decided = findings.decide_claims(counted).set_index("interpretation")
    # relative: one contradicts, one is unclear, so half contradict; clipped: both
    # confirm
    assert decided["word"].to_dict() == {
        "relative": findings.NOT_REPRODUCED,
        "clipped": findings.REPRODUCED,
    }
    assert set(decided["verdict"]) == {findings.DEPENDS_ON_INTERPRETATION}


def test_cd_and_r_stand_beside_the_papers():
    frame = pd.DataFrame(
        {
            "interpretation": ["relative", "relative", "clipped", "clipped"],
            "too_few": [False, False, False, True],
        }
    )
    table = frame.assign(cd=[0.08, 0.0994, 0.04, 0.9])
    r = frame.assign(covariate="similarity", r=[-0.7, -0.1, -0.8, 0.9])
    r = r.assign(r_low=r["r"] - 0.05, r_high=r["r"] + 0.05)
    similar, beyond, spread = findings.compare_with_paper(table, r).to_dict("records")
    assert similar == {
        "measure": "r of CI with similarity",
        "paper": "-0.03",
        "here, relative": "-0.70 to -0.10",
        "here, clipped": "-0.80 to -0.80",
    }
    # -0.8 lies beyond 0.7 as a whole, -0.7 does not, the last has too few refusals
    assert beyond == {
        "measure": "systems with |r| beyond the break",
        "paper": "0.7",
        "here, relative": "0 of 2",
        "here, clipped": "1 of 1",
    }
    assert (
        spread["paper"] == "0.038 to 0.040 (Mistral 7B)"
        and spread["here, relative"] == "0.080 to 0.099"
    )
