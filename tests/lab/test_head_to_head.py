"""Measures in worlds of known truth and on the task without safety, and what
predictions are judged on: by hand.
"""

import pandas as pd
import pytest

from paraguard_lab.analysis import comparisons, predictions
from paraguard_utils import paths, stores
from paraguard_utils.settings import CORPUS

RECORDED = stores.Store(stores.RECORDED)


def test_what_moves_a_measure_by_hand(monkeypatch):
    monkeypatch.setattr(predictions, "MEASURE_TITLES", {"m": "m"})
    cells = [
        ("chance", 0.2, 0.0, 1.0),
        ("chance", 0.2, 0.8, 0.6),
        ("chance", 0.5, 0.0, 1.1),
        ("chance", 0.5, 0.8, 0.6),
    ]
    cells += [
        ("perplexity", 0.2, 0.0, 1.2),
        ("perplexity", 0.2, 0.8, 0.6),
        ("length", 0.2, 0.0, 1.0),
    ]
    worlds = pd.DataFrame(
        [*cells, ("length", 0.2, 0.8, 0.6)],
        columns=["wording", "frr", "correlation", "mean"],
    )
    worlds = worlds.assign(
        measure="m", low=worlds["mean"] - 0.1, high=worlds["mean"] + 0.1
    )
    (row,) = predictions.known_truth_effects(worlds).to_dict("records")
    assert row["meaning"] == pytest.approx(0.6 - 1.0)
    assert row["chance"] == pytest.approx(0.1 / 0.4)
    assert row["frr"] == pytest.approx((0.1 + 0) / 2 / 0.4)
    assert (
        row["perplexity"] == pytest.approx((0.2 + 0) / 2 / 0.4) and row["length"] == 0
    )


def test_what_follows_noise_by_hand(monkeypatch):
    monkeypatch.setattr(
        predictions, "MEASURE_TITLES", {"dr": "DR", "agreement": "agreement"}
    )
    rows = []
    for system, values in (("a", (0.1, 0.2, 0.4)), ("b", (0.3, 0.5, 0.4))):
        rows += [
            (system, "quarter", noise, dr)
            for noise, dr in zip((0.0, 0.1, 0.2), values, strict=True)
        ]
        rows += [
            (system, "none", 0.0, values[0] - 0.05),
            (system, "half", 0.0, values[0] + 0.1),
        ]
    task = pd.DataFrame(rows, columns=["system", "overlap", "noise", "dr"])
    found = predictions.noise_response(task.assign(agreement=1 - task["dr"])).set_index(
        "measure"
    )
    for measure, sign in (("dr", 1), ("agreement", -1)):
        row = found.loc[measure]
        assert (
            row["rises_noise"] == 1 and row["rises_overlap"] == 2 == row["systems"]
        )  # b falls at the last step
        assert sorted([row["noise_low"], row["noise_high"]]) == pytest.approx(
            sorted([sign * 0.1, sign * 0.3])
        )
        assert row["overlap_low"] == pytest.approx(sign * 0.15)


def test_the_recorded_verdicts_are_on_the_third_model():
    table = RECORDED.read("tables", "predictions")
    assert set(table["number"]) == {*range(1, 9), *range(25, 29)}
    table = table[table["number"] <= 8]
    assert (
        not table["about"]
        .str.contains("|".join(predictions.SEEN_MODELS), regex=True)
        .any()
    )
    too_few = (
        RECORDED.read("tables", "table1_systems")
        .drop_duplicates("system")
        .set_index("system")["too_few_for_dr"]
    )
    for row in table.itertuples():
        assert (row.verdict == "too_few") == too_few[row.about.split(" | ")].any()


def of_one_system(name):
    made = {
        table: RECORDED.read("tables", table)
        for table in ("table1_systems", "validity", "variance")
    }
    made = {table: frame[frame["system"] == name] for table, frame in made.items()}
    return made | dict.fromkeys(
        ("table1_differences", "floor_differences"),
        comparisons.compare_systems({name: {}}, []),
    )


@pytest.mark.parametrize(("corpus", "judged"), [(CORPUS, 0), ("another", 6)])
def test_systems_whose_answers_were_seen_are_not_judged_on_them(corpus, judged):
    made = of_one_system("smollm2-135m-instruct-q4_1--safety")
    assert (
        len(predictions.judge_predictions(predictions.prediction_tables(made, corpus)))
        == judged
    )


def test_one_system_has_no_pairs_to_judge():
    one = "qwen2.5-coder-1.5b-instruct-q4_k_m--safety"
    found = predictions.judge_predictions(
        predictions.prediction_tables(of_one_system(one), CORPUS)
    )
    assert set(found["number"]) == {1, 3, 4, 6, 7, 8} and set(found["about"]) == {one}


def test_pairs_are_judged_where_they_are_system_prompts_of_one_model():
    # a: FRR 0.1 apart; b: 0.2 apart, and one of them refuses too little
    frr = [
        ("a--none", "a--safety", 0.1),
        ("b--none", "b--safety", -0.2),
        ("a--none", "b--none", 0.5),
    ]
    pairs = pd.DataFrame(frr, columns=["first", "second", "difference"])
    pairs = pairs.assign(
        difference_low=pairs["difference"] - 0.01,
        difference_high=pairs["difference"] + 0.01,
    )
    dr = pairs.assign(
        measure="dr", difference=0.0, difference_low=-0.1, difference_high=0.1
    )
    systems = pd.DataFrame(
        {
            "system": ["a--none", "a--safety", "b--none", "b--safety"],
            "too_few_for_dr": [False] * 3 + [True],
        }
    )
    made = dict.fromkeys(("table1_systems", "variance", "validity"), systems)
    made |= {"table1_differences": pd.concat([pairs.assign(measure="frr"), dr])}
    made |= {
        "floor_differences": dr.assign(
            measure="excess_matched", difference_low=-0.01, difference_high=0.01
        )
    }
    found = predictions.judge_predictions(
        {
            "table1_differences": predictions.prediction_tables(made, "any")[
                "table1_differences"
            ]
        }
    )
    said = found[["number", "about", "verdict"]].to_numpy().tolist()
    b = "b--none | b--safety"
    assert said == [
        [2, b, "too_few"],
        [5, "a--none | a--safety", "holds"],
        [5, b, "too_few"],
    ]


def test_benchmarks_hold_every_measure_and_cell():
    worlds = stores.read_file(paths.BENCHMARKS_FOLDER / "known_truth.csv", "tables")
    assert (
        set(worlds["measure"]) == set(predictions.MEASURE_TITLES)
        and worlds["worlds"].min() >= 40
    )
    # how often is refused is as the worlds say, so DR lies at 1 where meaning decides
    # nothing
    nothing = worlds[
        (worlds["measure"] == "dr")
        & (worlds["correlation"] == 0)
        & (worlds["wording"] == "chance")
    ]
    assert ((nothing["low"] < 1) & (nothing["high"] > 1)).all()
    task = stores.read_file(paths.BENCHMARKS_FOLDER / "sentiment.csv", "tables")
    assert task["system"].nunique() >= 3 and set(task["noise"]) == {0, 0.05, 0.1, 0.2}
    # what noise makes of DR is known: the measured one is that, up to the draws
    assert (task["dr"] - task["expected_dr"]).abs().max() < 0.05
    decided = stores.read_file(
        paths.BENCHMARKS_FOLDER / "sentiment_decisions.csv", "tables"
    )
    texts = pd.read_csv(paths.DATA / "sentiment.csv")
    assert decided["prompt_id"].tolist() == texts["prompt_id"].tolist()
    assert (
        texts.groupby("cluster_id")["sentiment"]
        .agg(["size", "nunique"])
        .eq([6, 1])
        .all(axis=None)
    )
