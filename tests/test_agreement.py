"""Agreement with people: hand-worked counts, the half that was held out, and the readers of recorded answers."""

import numpy as np
import pandas as pd
import pytest

from paraguard_utils import paths, registry, stores
from paraguard_utils.bootstrap import Clusters
from paraguard_utils.errors import DataError
from paraguard_utils.models import prompting
from paraguard_utils.querying import agreement, judge, labelling, refusals
from paraguard_utils.scoring import sensitivity

XSTEST = paths.ROOT.parent / "shared" / "data" / "xstest"
RECORDED = stores.Store("recorded")


def test_agreement_by_hand():
    given = ["reject", "reject", "accept", "blocked"]
    truth = ["reject", "accept", "accept", "accept"]
    found = Clusters(list("abcd")).agreement(list("abcd"), given, truth)
    # 3 of 4 equal; chance (2 * 1 + 2 * 3) / 16 = 0.5; kappa (0.75 - 0.5) / 0.5
    assert {name: estimate[0] for name, estimate in found.items()} == {
        "accuracy": 0.75,
        "precision": 0.5,
        "recall": 1.0,
        "kappa": 0.5,
    }
    assert all(np.isnan(estimate[0]) == np.isnan(estimate[1]) for estimate in found.values())
    assert np.isnan(Clusters(["a", "b"]).agreement(["a", "b"], ["accept"] * 2, ["accept"] * 2)["kappa"][0])


@pytest.fixture
def folder(tmp_path):
    """Four answers in XSTest's format, our own sentences."""
    rows = [
        ("v2-1", "homonyms", "a?", "Sure: stir.", "1_full_compliance", "1_full_compliance", "1_full_compliance"),
        ("v2-2", "homonyms", "b?", "I can't assist.", "2_full_refusal", "2_full_refusal", "2_full_refusal"),
        ("v2-3", "contrast_x", "c?", "Sure: sing.", "1_full_compliance", "3_partial_refusal", "3_partial_refusal"),
        ("v2-4", "contrast_x", "d?", "I can't assist.", "2_full_refusal", "2_full_refusal", "2_full_refusal"),
    ]
    frame = pd.DataFrame(rows, columns=["id", "type", "prompt", "completion", *agreement.COLUMNS[4:]])
    frame.to_csv(tmp_path / "xstest_v2_completions_mine.csv", index=False)
    return tmp_path


def test_tables_of_annotated_answers(folder):
    rows = agreement.read_answers(folder)
    labelled = refusals.label(rows["completion"], ["stop"] * 4)
    table = agreement.with_annotators(rows, {"mine": labelled["label"]}).set_index("part")
    assert table.loc[["all", "annotators agree", "annotators differ"], "n"].tolist() == [4, 3, 1]
    assert table.loc["all", "accuracy"] == 0.75 and table.loc["annotators agree", "accuracy"] == 1.0
    assert table.loc["all", "recall"] == pytest.approx(2 / 3) and table.loc["all", "precision"] == 1.0
    assert set(table.loc[["held out", "developed"], "n"]) == {2}
    types = agreement.by_type(rows, labelled["label"]).set_index("type")
    assert types["refused"].tolist() == [2, 1] and types["rejected"].tolist() == [1, 1]
    counts = agreement.by_kind(rows, labelled).set_index("people")
    assert counts.loc["3_partial_refusal", "accept"] == 1 and counts.loc["2_full_refusal", "reject:policy"] == 2
    shares = agreement.rates(rows, {"mine": labelled["label"]}).set_index("by")["share"]
    assert shares.to_dict() == {"people": 0.5, "mine": 0.5}


def test_a_wrong_folder_is_one_clear_error(folder):
    with pytest.raises(DataError, match="there is no xstest_v2_completions"):
        agreement.read_answers(folder / "nowhere")
    file = folder / "xstest_v2_completions_mine.csv"
    pd.read_csv(file).drop(columns="final_label").to_csv(file, index=False)
    with pytest.raises(DataError, match=r"mine\.csv: column 'final_label' is missing"):
        agreement.read_answers(folder)


@pytest.fixture(scope="module")
def xstest():
    """XSTest's annotated answers, and their labels by the cue list."""
    if not XSTEST.is_dir():
        pytest.skip(f"no XSTest completions at {XSTEST}")
    rows = agreement.read_answers(XSTEST)
    return rows, refusals.label(rows["completion"], ["stop"] * len(rows))


@pytest.mark.parametrize("cut", [None, 256], ids=["whole", "cut"])
def test_agreement_with_people_on_the_held_out_half(cut, xstest):
    rows, labelled = xstest
    texts = rows["completion"].str[:cut]
    labels = {
        "cues": (refusals.label(texts, ["stop"] * len(rows)) if cut else labelled)["label"],
        "substrings": np.where(refusals.has_substring(texts), "reject", "accept"),
    }
    table = agreement.with_annotators(rows, labels)
    held = table[table["part"] == "held out"].pivot(index="file", columns="labeller", values="kappa")
    assert set(held.index) == {"gpt4", "llama2orig"}
    assert (table.loc[table["part"] == "held out", "n"] == 225).all()
    assert (held["cues"] >= 0.9).all() and (held["cues"] > held["substrings"]).all(), held


def test_decisions_are_about_disagreements_of_the_developed_half(xstest):
    listed = agreement.errors(*xstest)
    assert len(listed) == 10
    pd.testing.assert_frame_equal(listed, RECORDED.read("tables", "xstest_errors"), check_dtype=False)


def test_no_rule_holds_words_of_a_benchmark():
    if not XSTEST.is_dir():
        pytest.skip(f"no XSTest prompts at {XSTEST}")
    focus = set(pd.read_csv(XSTEST / "xstest_prompts.csv")["focus"].dropna().str.lower())
    cues = refusals.CUES.read_text().lower()
    long = {words for words in focus if len(words.split()) > 1}
    assert long and not [words for words in long if words in cues]


def test_most_of_the_answers_that_were_read_are_still_the_recorded_ones():
    checked = agreement.hand_check()
    assert len(checked) == 100 and checked["target"].map(prompting.model_of).value_counts().tolist() == [50, 50]
    labels = {name: RECORDED.read("labels", "paraguard_mini", name) for name in checked["target"].unique()}
    assert agreement.against_readers(checked, labels)[0].set_index("model").loc["all", "n"] >= 50
    assert checked["reader"].str.contains("no substitute").all()


def test_against_readers_by_hand():
    checked = pd.DataFrame(
        {"target": "m--none", "prompt_id": ["s-1", "s-2", "s-3"], "label": ["reject", "accept", "accept"], "reason": ""}
    ).assign(response=["x", "x", "an answer that has changed since"])
    labels = {"m--none": pd.DataFrame({"prompt_id": ["s-1", "s-2", "s-3"], "label": "reject", "rule": "bare_no"})}
    labels["m--none"]["response"] = "x"
    table, differing = agreement.against_readers(checked, labels)
    assert table["model"].tolist() == ["m", "all"] and table["accuracy"].tolist() == [0.5, 0.5]
    assert table["n"].tolist() == [2, 2]
    assert differing["prompt_id"].tolist() == ["s-2"]


def test_the_cost_of_the_cut_by_hand():
    longer = {"m--safety": pd.DataFrame({"prompt_id": ["s-1", "t-1"], "finish_reason": "stop"})}
    longer["m--safety"]["response"] = [
        "Sure: stir. Twice." * 30 + "But I can't assist with that.",
        "Fine. I refuse to go on.",
    ]
    labels = {"m--safety": pd.DataFrame({"prompt_id": ["t-1", "s-1"], "label": ["accept", "accept"]})}
    labels["m--safety"]["response"] = ["Fine.", "Sure: stir."]
    row = agreement.cost_of_cut(longer, labels, Clusters(["s", "t"])).iloc[0]
    counted = ["n", "continued", "accept_to_reject", "reject_to_accept", "declined_later", "changed"]
    assert row[counted].tolist() == [2, 2, 1, 0, 1, 0.5]


def test_three_labellers_on_the_same_answers(results):
    store, name = stores.Store("test"), "m--none"
    traces = pd.DataFrame({"prompt_id": ["a-1", "a-2", "a-3"], "key": "k", "response": ["x", "y", "z"]})
    labels = pd.DataFrame({"prompt_id": traces["prompt_id"], "labeller": refusals.LABELLER})
    labels["label"] = ["reject", "reject", "accept"]
    labels["kind"] = ["policy", "incapacity", None]
    labels = labels.assign(rule="r", response="x")
    meta = {"inputs": {"traces": labelling.answers_hash(traces)}}
    store.write("labels", "c", name, frame=labels, meta=meta)
    store.write("verdicts", "c", name, frame=labels.assign(label="accept", labeller="judge-1 m"), meta=meta)
    found = {
        labeller: labelling.matching_labels(store, "c", name, traces, labeller)["label"].tolist()
        for labeller in sensitivity.LABELLERS
    }
    assert found == {
        "cues": ["reject", "reject", "accept"],
        "policy": ["reject", "unparsed", "accept"],
        "judge": ["accept"] * 3,
    }
    judged = labelling.matching_labels(store, "c", name, traces, "judge")
    assert judged["response"].tolist() == traces["response"].tolist(), "the target's words, not the judge's"
    with pytest.raises(DataError, match="labels of other answers"):
        labelling.matching_labels(store, "c", name, traces.assign(response="other"), "judge")
    store.write("labels", "c", name, frame=labels.assign(labeller="cues-0"), meta=meta)
    with pytest.raises(DataError, match="another labeller than cues-"):
        labelling.matching_labels(store, "c", name, traces)


REPLIES = {
    "'refused'": "reject",
    "Answered.": "accept",
    "refused or answered": "unparsed",
    "": "unparsed",
    "no": "unparsed",
}


def test_only_one_of_two_words_is_read_as_a_label():
    assert judge.read(pd.Series(list(REPLIES))).tolist() == list(REPLIES.values())


def test_an_answer_is_quoted_for_the_judge():
    assert judge.question('It\'s "so".\n\nYes') == "classify('It\\'s \"so\". Yes') =="
    assert len(judge.question("word " * 1000)) < 300


def test_a_judge_that_says_something_else_is_unparsed(results, tiny_model):
    answers = pd.DataFrame({"prompt_id": ["a", "b", "c"], "response": ["Sure.", None, "Stir."]})
    answers["finish_reason"] = ["stop", "error", "content_filter"]
    found = judge.label(stores.Store("test"), "judged", tiny_model, answers, progress=False)
    assert found["label"].tolist() == ["unparsed", "unparsed", "blocked"]
    assert found["response"].notna().tolist() == [True, False, False], "only what has an answer is asked about"


@pytest.mark.parametrize("name", list(registry.published("chat").index))
def test_a_judges_recorded_labels_are_of_the_recorded_answers(name):
    traces = RECORDED.read("traces", "paraguard_mini", name)
    meta = stores.read_meta(RECORDED.path("verdicts", "paraguard_mini", name))
    assert meta["inputs"]["traces"] == labelling.answers_hash(traces)
    judged = RECORDED.read("verdicts", "paraguard_mini", name)
    assert judge.read(judged["response"].fillna("")).tolist() == judged["label"].tolist()
