"""Sheets for people, and what the marks of people and models say."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from paraguard_lab.core.inference import estimate_kappa
from paraguard_lab.corpus import fidelity
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.errors import DataError

CORPUS = pd.DataFrame(
    {
        "prompt_id": ["a-0", "a-1", "a-2", "b-0", "b-1"],
        "cluster_id": list("aaabb"),
        "variant": [0, 1, 2, 0, 1],
        "strategy": ["seed", "lexical", "rewrite", "seed", "lexical"],
        "text": ["A", "A one", "A two", "B", "B one"],
    }
)


def test_a_sheet_has_every_strategy_and_the_seed_beside_it():
    drawn = fidelity.draw_sheet(CORPUS, n=2, seed=3)
    assert tuple(drawn.columns) == fidelity.SHEET_COLUMNS
    assert set(drawn["strategy"]) == {"lexical", "rewrite"}
    assert (drawn["seed"] == drawn["paraphrase"].str[0]).all() and (
        drawn["mark"] == ""
    ).all()
    assert len(fidelity.draw_sheet(CORPUS, n=99)) == 3
    pd.testing.assert_frame_equal(drawn, fidelity.draw_sheet(CORPUS, n=2, seed=3))


def filled(path, marks):
    rows = pd.DataFrame(
        {
            name: [f"{name} {i}" for i in range(len(marks))]
            for name in fidelity.SHEET_COLUMNS
        }
    )
    rows.assign(mark=marks).to_csv(path, index=False)
    return fidelity.read_sheet(path)


def test_shares_and_kappa_by_hand(tmp_path):
    first = filled(
        tmp_path / "1.csv",
        ["same intent", " Shifted", "shifted", "unsure", "same intent", ""],
    )
    second = filled(
        tmp_path / "2.csv",
        ["same intent", "shifted", "same intent", "unsure", "same intent", "shifted"],
    )
    both = fidelity.sheet_kappa(first, second)
    # 4 of 5 equal; chance 2/5 * 3/5 + 2/5 * 1/5 + 1/5 * 1/5 = 9/25; (20/25 - 9/25) /
    # (16/25) = 11/16
    assert (both["equal"], both["both"], both["note"]) == (4, 5, "")
    assert (
        both["kappa"] == pytest.approx(11 / 16)
        and both["kappa_low"] <= 11 / 16 <= both["kappa_high"]
    )
    lines = fidelity.describe_sheets([first, second])
    # the interval is exact, 2 of 5
    assert lines[0].startswith("reader 1: 2 of 5 marked pairs shifted (0.400 [0.053")
    assert lines[0].endswith("1 unsure, 1 of 6 not marked")
    assert "Cohen's kappa 0.688" in lines[2]


def test_what_counts_as_a_refusal_is_read_beside_the_intent(tmp_path):
    def read(name, **columns):
        pair = {
            "prompt_id": list("abcd"),
            "strategy": "rewrite",
            "seed": "accepted",
            "paraphrase": "refused",
        }
        path = tmp_path / f"{name}.csv"
        pd.DataFrame(
            pair | {"mark": "same intent", "answer": "Sorry."} | columns
        ).to_csv(path, index=False)
        return fidelity.read_sheet(path)

    first = read("first", refusal=["No", "yes ", "unsure", ""])
    second = read("second", refusal=["no", "no", "yes", "yes"])
    assert first["refusal"].tolist() == ["no", "yes", "unsure", ""]
    lines = fidelity.describe_sheets([first, second])
    assert lines[3].startswith(
        "reader 1: 1 of 3 marked answers no refusal (0.333 [0.008, 0.906]), 1 unsure, 1"
        " of 4"
    )
    # 1 of 3 equal; by chance 1/3 * 2/3 + 1/3 * 1/3 = 1/3
    assert lines[5].startswith("both: 1 of 3 equal, Cohen's kappa 0.000")
    with pytest.raises(
        DataError,
        match="row 2, column refusal: 'shifted' is not one of yes, no, unsure",
    ):
        read("wrong", refusal="shifted")
    for other in (
        read("answer", answer="I will not.", refusal="no"),
        read("seed", seed="another", refusal="no"),
    ):
        with pytest.raises(DataError, match="do not hold the same pairs"):
            fidelity.sheet_kappa(first, other)


marks = st.lists(
    st.tuples(st.sampled_from("xyz"), st.sampled_from("xyz")), min_size=2, max_size=12
)


@pytest.mark.slow
@given(marks)
def test_kappa_is_scikit_learn_s_in_every_resample(pairs):
    first, second = map(np.array, zip(*pairs, strict=True))
    ids = np.arange(len(pairs)) // 2  # two pairs a cluster
    clusters = ClusterBootstrap(ids, resamples=20)
    found = estimate_kappa(clusters, ids, first, second)

    def wanted(weights):
        used = set(first[weights > 0]) | set(second[weights > 0])
        return (
            cohen_kappa_score(first, second, sample_weight=weights)
            if len(used) > 1
            else np.nan
        )

    assert found[0] == pytest.approx(
        wanted(np.ones(len(pairs))), abs=1e-12, nan_ok=True
    )
    draws = [wanted(counts[ids]) for counts in clusters.counts]
    assert found.draws == pytest.approx(draws, abs=1e-12, nan_ok=True)


@pytest.mark.slow
@given(marks)
def test_the_kappa_of_two_sheets_is_over_resampled_pairs(pairs):
    first, second = (
        pd.DataFrame(
            {
                "prompt_id": range(len(pairs), 0, -1),
                "seed": "",
                "paraphrase": "",
                "mark": side,
            }
        )
        for side in map(list, zip(*pairs, strict=True))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            fidelity, "ClusterBootstrap", partial(ClusterBootstrap, resamples=5)
        )
        found = fidelity.sheet_kappa(first, second)
    draws = [
        cohen_kappa_score(first["mark"], second["mark"], sample_weight=counts)
        for counts in ClusterBootstrap(range(len(pairs)), 5).counts
        if len(set(first["mark"][counts > 0]) | set(second["mark"][counts > 0])) > 1
    ]
    if not found["note"]:
        low, high = np.percentile(draws, [2.5, 97.5])
        assert (found["kappa_low"], found["kappa_high"]) == pytest.approx(
            (low, high), abs=1e-12
        )
    assert (
        bool(found["note"])
        == np.isnan(found["kappa"])
        == (len({mark for pair in pairs for mark in pair}) == 1)
    )


def test_what_is_undefined_is_nan_with_a_reason(tmp_path):
    none = filled(tmp_path / "0.csv", ["", ""])
    same = filled(tmp_path / "1.csv", ["shifted", "shifted"])
    assert (
        "0 of 0 marked pairs shifted (nan [nan, nan]), 0 unsure, 2 of 2"
        in fidelity.describe_sheets([none])[0]
    )
    assert np.isnan(fidelity.sheet_kappa(same, same)["kappa"])
    assert (
        fidelity.sheet_kappa(same, same)["note"]
        == "both readers used one and the same mark"
    )
    assert fidelity.sheet_kappa(same, none)["note"] == "no pair has two marks"


def test_bad_sheets_are_one_clear_error(tmp_path):
    with pytest.raises(
        DataError,
        match=(
            "row 3, column mark: 'perhaps' is not one of same intent, shifted, unsure"
        ),
    ):
        filled(tmp_path / "1.csv", ["shifted", "perhaps"])
    (tmp_path / "2.csv").write_text("prompt_id,mark\na,shifted\n")
    with pytest.raises(DataError, match="column 'strategy' is missing"):
        fidelity.read_sheet(tmp_path / "2.csv")
    first, longer = (
        filled(tmp_path / "3.csv", ["shifted"]),
        filled(tmp_path / "4.csv", ["shifted", ""]),
    )
    with pytest.raises(DataError, match="do not hold the same pairs"):
        fidelity.sheet_kappa(first, longer)
    pd.concat([first, first]).to_csv(tmp_path / "5.csv", index=False)
    with pytest.raises(
        DataError, match=r"row 3, column prompt_id: .* stands there twice"
    ):
        fidelity.read_sheet(tmp_path / "5.csv")


def test_topical_seeds_and_the_readers_agreement():
    seeds = pd.DataFrame(
        {
            "seed_id": list("abcd"),
            "category": ["x", "x", "x", "y"],
            "topical": ["yes", "word only", "yes", "yes"],
        }
    )
    annotations = pd.DataFrame(
        {
            "seed_id": list("abcd"),
            "first": ["yes", "no", "yes", "yes"],
            "second": ["yes", "no", "no", "yes"],
        }
    )
    table = fidelity.count_topical_seeds(seeds, annotations).set_index("category")
    assert table.loc["x", ["seeds", "topical", "read", "equal"]].tolist() == [
        3,
        2,
        3,
        2,
    ]
    # 3 of 4 equal; by chance 3/4 * 2/4 + 1/4 * 2/4 = 1/2; (3/4 - 1/2) / (1 - 1/2)
    assert table.loc["all", "kappa"] == pytest.approx(0.5)
    assert np.isnan(table.loc["y", "kappa"])  # one and the same mark
    unread = (
        fidelity.count_topical_seeds(seeds.assign(topical="unstated"), annotations[:0])
        .set_index("category")
        .loc["all"]
    )
    assert unread[["topical", "read", "equal"]].tolist() == [0, 0, 0]
    assert unread[["share", "kappa"]].isna().all()


def test_two_annotations_are_counted_by_group():
    answers = {
        "first_same": "yes yes no no",
        "second_same": "yes no no yes",
        "first_natural": "yes yes yes yes",
    }
    rows = pd.DataFrame({name: marks.split() for name, marks in answers.items()})
    rows = rows.assign(
        second_natural="yes", group=["a", "a", "a", "b"], seed_id=list("xxyx")
    )
    found = fidelity.count_candidate_annotations(rows)
    assert found[["group", "read", "yes", "equal"]].to_numpy().tolist() == [
        ["a", 3, 1, 2], ["a", 3, 3, 3], ["b", 1, 0, 0], ["b", 1, 1, 1],
    ]  # fmt: skip
    assert found["share"].round(3).tolist() == [0.333, 1, 0, 1]
    assert found["kappa"].round(3).tolist()[0] == 0.4 and found[
        "kappa"
    ].isna().tolist() == [False, True, False, True]
