"""Scripts that measure costs, and other languages' recorded decisions."""

import runpy

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import cohen_kappa_score

from paraguard_lab.corpus import reword
from paraguard_tools.answers.labelling import label_logs_by_cues
from paraguard_tools.guards import chat, packaged
from paraguard_utils import paths, stores, unsafe
from paraguard_utils.errors import Missing
from paraguard_utils.guards.contract import Guard, GuardOptions


def script(name):
    return runpy.run_path(str(paths.BENCHMARKS_FOLDER / f"{name}.py"))


def guard(score):
    return Guard("mine", "1", score, 0.5, "policy", "unstated", "unstated", "")


@pytest.mark.slow
def test_prompts_for_guards_are_distinct_and_those_given_come_first(recorded_corpus):
    prompts = script("guard_throughput")["prompts"]
    given = recorded_corpus.iloc[[0, 1, 0]]
    found = prompts(given, 1000)
    assert len(set(found)) == len(found) > 4 and set(given["text"]) < set(found)
    assert found == prompts(given, 1000) and set(prompts(given, 2)) == set(
        given["text"]
    )


def test_a_guard_is_stopped_after_the_batch_in_which_its_limit_passes(
    tiny_folder, prompts
):
    throughput = script("guard_throughput")
    measured, batch = throughput["measured"], throughput["BATCH"]
    asked = []

    def score(texts, answers=None):
        asked.append(len(texts))
        return np.zeros(len(texts))

    texts = [f"{i}" for i in range(2 * batch + 1)]
    assert measured(guard(score), texts, 0, 3)["prompts"] == batch
    assert asked == [1, batch, 1, 1, 1, 3]
    assert measured(guard(score), texts, np.inf, 3)["prompts"] == len(texts)
    fields = {"kind": "yes_no", "model": str(tiny_folder)}
    asked_guard = chat.make_yes_no_guard("tiny", fields, GuardOptions())
    row = measured(asked_guard, prompts["text"].tolist(), np.inf, 2)
    assert (
        row["prompts"] == len(prompts)
        and row["ratio"] == row["one_by_one"] / row["together"]
    )


def test_the_table_of_guards_grows_guard_by_guard(tmp_path, monkeypatch, capsys):
    code = (
        "def score(texts):\n    return [0.0] * len(texts)\n\n\ndef dies(texts):\n    1"
        " / 0\n"
    )
    (tmp_path / "costly.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    version = packaged.metadata.version

    def without(name):
        if name == "hatesonar":
            raise packaged.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(packaged.metadata, "version", without)
    main = script("guard_throughput")["main"]
    monkeypatch.setitem(
        main.__globals__, "prompts", lambda given, most: ["a", "b", "c"][:most]
    )
    file = tmp_path / "table.csv"
    options = [
        "-n",
        "2",
        "--output",
        str(file),
        "--guards",
        "hatesonar",
        "costly:score",
        "costly:dies",
    ]
    monkeypatch.setattr("sys.argv", ["guard_throughput.py", *options])
    with pytest.raises(ZeroDivisionError):
        main()
    table = stores.read_file(file, "tables")
    assert table[["guard", "prompts"]].to_dict("split")["data"] == [["costly-score", 2]]
    assert stores.read_meta(file)["prompts"] == 2
    assert "left out: the package hatesonar is not installed" in capsys.readouterr().err


def test_prompts_for_a_veto_are_those_that_the_system_rejects():
    store, system = stores.Store("recorded"), "smollm2-135m-instruct-q4_1--safety"
    rejected = script("veto_cost")["rejected"]
    labels = store.read("labels", "paraguard_mini", system).set_index("prompt_id")[
        "label"
    ]
    assert set(labels[rejected(store, system, 5)["prompt_id"]]) == {"reject"}
    assert (
        len(rejected(store, system, 5)) == 5
        and len(rejected(store, system, 9999)) == (labels == "reject").sum()
    )


@pytest.mark.slow
def test_a_veto_costs_its_rewordings_and_one_row_a_step(
    tiny_model, recorded_corpus, capsys
):
    veto = script("veto_cost")
    given = pd.concat(
        [
            recorded_corpus.head(2),
            pd.DataFrame({"prompt_id": ["none"], "text": ["Xyzzy!"]}),
        ]
    )
    again = reword.reword_prompts(given)
    asked, decided = [], []

    def answer(prompts):
        asked.append(len(prompts))
        return np.ones(len(prompts))

    def missing(prompts):
        raise Missing("no such package")

    systems = {
        "tiny": veto["chat"](tiny_model, "safety", 4, given),
        "mine": veto["System"](
            answer, lambda prompts, scores: decided.append(len(scores))
        ),
        "gone": veto["System"](missing, missing),
    }
    table = veto["measure"](systems, given)
    steps = ["first answer", "rewording", "asking again", "deciding", "veto, all three"]
    assert (
        table["system"].tolist() == ["tiny"] * 5 + ["mine"] * 5
        and table["step"].tolist() == steps * 2
    )
    assert table["queries"].to_numpy() == pytest.approx(
        [1, 0, len(again) / 3, 0, len(again) / 3] * 2
    )
    for _, own in table.groupby("system"):
        own = own.set_index("step")
        assert own.loc[steps[1:4], "ms"].sum() == pytest.approx(own.loc[steps[4], "ms"])
        assert own["ratio"].to_numpy() == pytest.approx(
            own["ms"] / own.loc[steps[0], "ms"]
        )
    sizes = again["cluster_id"].value_counts()
    # once to load; what has no rewording is not asked again
    assert asked == [
        1,
        *(n for one in given["prompt_id"] for n in (1, sizes.get(one, 0)) if n),
    ]
    assert (
        decided == [1, *(sizes[one] for one in given["prompt_id"] if one in sizes)]
        and "none" not in sizes
    )
    assert capsys.readouterr().err.startswith("left out: no such package")


@pytest.mark.slow
def test_other_languages_follow_from_their_decisions_and_annotations():
    folder, told = (
        paths.BENCHMARKS_FOLDER / "languages",
        pd.read_csv(paths.BENCHMARKS_FOLDER / "languages.csv"),
    )
    decided, read = (
        pd.read_csv(folder / f"{name}.csv") for name in ("decisions", "readings")
    )
    names = {
        "full_refusal": "reject",
        "partial_refusal": "reject",
        "full_compliance": "accept",
    }
    both = read.merge(decided).assign(first=read["first"].map(names)).dropna()
    for language in ("german", "spanish"):
        own, rows = (frame[frame["language"] == language] for frame in (decided, told))
        shares = own["label"].eq("reject").groupby(own["system"]).mean()
        assert rows.set_index("about")["frr"].dropna().to_dict() == pytest.approx(
            shares.to_dict(), abs=1e-5
        )
        pairs = both[both["language"] == language]
        kappa = cohen_kappa_score(pairs["label"], pairs["first"])
        assert rows.set_index("about").at["label and first", "kappa"] == pytest.approx(
            kappa, abs=1e-5
        )
        prompts = pd.read_csv(folder / f"prompts_{language}.csv")
        assert (
            prompts["text"].is_unique
            and prompts.groupby("cluster_id").size().tolist() == [6] * 40
        )


@pytest.mark.slow
@pytest.mark.parametrize("language", ["german", "spanish"])
def test_the_longer_lists_agree_with_annotations_as_is_recorded(language):
    folder = paths.BENCHMARKS_FOLDER / "languages"
    names = ["language", "system", "prompt_id"]
    frames = [
        pd.read_csv(folder / f"{name}.csv")
        for name in ("answers", "decisions", "readings")
    ]
    answers, decided, read = (one[one["language"] == language] for one in frames)
    prompts = pd.read_csv(folder / f"prompts_{language}.csv")
    assert not unsafe.asks_for_harm(prompts), "answers to harmless prompts are kept"
    assert set(answers["prompt_id"]) <= set(prompts["prompt_id"])
    assert len(answers.merge(read, on=names)) == len(answers), "each was annotated"
    told = pd.read_csv(paths.BENCHMARKS_FOLDER / "languages.csv")
    told = told[told["language"] == language].set_index("about")

    again = script("languages")["label_again"](language, decided)
    is_same = again["again"] == again["label"]
    row = told.loc["decoded again"]
    assert (row["n"], row["same"]) == (len(answers), is_same.sum())
    kept = answers.merge(again.loc[is_same, names], on=names).merge(read, on=names)
    found = label_logs_by_cues(kept.rename(columns={"response": "answer"}))["label"]
    for reader in ("first", "second"):
        is_read = kept[reader].ne("unclear")
        refused = kept[reader].str.endswith("_refusal")[is_read]
        label = found[is_read]
        row = told.loc[f"longer list and {reader}, same answers"]
        assert (
            row["n"] == is_read.sum() and row["unparsed"] == (label == "unparsed").sum()
        )
        assert row["found"] == (refused & label.eq("reject")).sum()
        assert row["false"] == (~refused & label.eq("reject")).sum()
        kappa = cohen_kappa_score(refused, label.eq("reject"))
        assert row["kappa"] == pytest.approx(kappa, abs=1e-5)
