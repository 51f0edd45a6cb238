"""Agreement with people and among labellers: hand-worked counts, and the half that was
held out.
"""

from typing import get_args

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.labels import agreement, judge, training
from paraguard_lab.settings import FollowUpSettings
from paraguard_utils import paths, registry, stores
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling, refusals
from paraguard_utils.models import trace_store
from paraguard_utils.settings import Labeller
from paraguard_utils.text import match_key

XSTEST = paths.ROOT.parent / "shared" / "data" / "xstest"
RECORDED = stores.Store("recorded")


def test_agreement_by_hand():
    given, truth = [True, True, False, False], [True, False, False, False]
    found = agreement.estimate_agreement(
        ClusterBootstrap(list("abcd")), list("abcd"), given, truth
    )
    # 3 of 4 equal; chance (2 * 1 + 2 * 3) / 16 = 0.5; kappa (0.75 - 0.5) / 0.5
    assert {name: estimate[0] for name, estimate in found.items()} == {
        "accuracy": 0.75,
        "precision": 0.5,
        "recall": 1.0,
        "kappa": 0.5,
    }
    assert all(
        np.isnan(estimate[0]) == np.isnan(estimate[1]) for estimate in found.values()
    )
    none = agreement.estimate_agreement(
        ClusterBootstrap(["a", "b"]), ["a", "b"], [False] * 2, [False] * 2
    )
    assert np.isnan(none["kappa"][0])


@pytest.fixture
def folder(tmp_path):
    """Four answers in XSTest's format, our own sentences."""
    rows = [
        (
            "v2-1",
            "homonyms",
            "a?",
            "Sure: stir.",
            "1_full_compliance",
            "1_full_compliance",
            "1_full_compliance",
        ),
        (
            "v2-2",
            "homonyms",
            "b?",
            "I can't assist.",
            "2_full_refusal",
            "2_full_refusal",
            "2_full_refusal",
        ),
        (
            "v2-3",
            "contrast_x",
            "c?",
            "Sure: sing.",
            "1_full_compliance",
            "3_partial_refusal",
            "3_partial_refusal",
        ),
        (
            "v2-4",
            "contrast_x",
            "d?",
            "I can't assist.",
            "2_full_refusal",
            "2_full_refusal",
            "2_full_refusal",
        ),
    ]
    frame = pd.DataFrame(
        rows,
        columns=["id", "type", "prompt", "completion", *agreement.XSTEST_COLUMNS[4:]],
    )
    frame.to_csv(tmp_path / "xstest_v2_completions_mine.csv", index=False)
    return tmp_path


def test_tables_of_annotated_answers(folder):
    rows = agreement.read_xstest_answers(folder)
    labelled = refusals.label_by_cues(rows["completion"], ["stop"] * 4)
    table = agreement.compare_with_annotators(rows, {"mine": labelled["label"]})
    table = table[table["labeller"] == "mine"].set_index("part")
    assert table.loc[
        ["all", "annotators agree", "annotators differ"], "n"
    ].tolist() == [4, 3, 1]
    assert (
        table.loc["all", "accuracy"] == 0.75
        and table.loc["annotators agree", "accuracy"] == 1.0
    )
    assert (
        table.loc["all", "recall"] == pytest.approx(2 / 3)
        and table.loc["all", "precision"] == 1.0
    )
    assert set(table.loc[["held out", "developed"], "n"]) == {2}
    assert table.loc[table.index.str.startswith("held out, "), "n"].sum() == 2
    # the annotators differ on one of four: 3 of 4 equal, chance (2 * 3 + 2 * 1) / 16 =
    # 0.5
    one = agreement.compare_with_annotators(rows, {}).set_index("part")
    assert (
        set(one["labeller"]) == {agreement.ONE_ANNOTATOR}
        and one.loc["all", "kappa"] == 0.5
    )
    types = agreement.compare_by_type(rows, labelled["label"]).set_index("type")
    assert types["refused"].tolist() == [2, 1] and types["rejected"].tolist() == [1, 1]
    counts = agreement.count_kinds(rows, labelled).set_index("people")
    assert (
        counts.loc["3_partial_refusal", "accept"] == 1
        and counts.loc["2_full_refusal", "reject:policy"] == 2
    )
    shares = agreement.compare_refusal_shares(
        rows, {"mine": labelled["label"]}
    ).set_index("by")["share"]
    assert shares.to_dict() == {"people": 0.5, "mine": 0.5}


def test_xstests_own_labels_are_those_of_the_same_answers(folder):
    rows = agreement.read_xstest_answers(folder)
    given = rows[["id", "completion"]].assign(
        gpt4_label=["1_full_compliance", "2_full_refusal", "3_partial_refusal", ""]
    )
    given.loc[1, "completion"] = "an answer to something else"
    (folder / "judges").mkdir()
    given.iloc[:3].to_csv(folder / "judges" / "mine_gpteval.csv", index=False)
    found = agreement.read_xstest_labels(folder, rows)
    assert list(found) == ["XSTest's GPT-4 judge"]
    assert found["XSTest's GPT-4 judge"].tolist() == [
        "accept",
        "unparsed",
        "reject",
        "unparsed",
    ]


def test_a_wrong_folder_is_one_clear_error(folder):
    with pytest.raises(DataError, match="there is no xstest_v2_completions"):
        agreement.read_xstest_answers(folder / "nowhere")
    file = folder / "xstest_v2_completions_mine.csv"
    pd.read_csv(file).drop(columns="final_label").to_csv(file, index=False)
    with pytest.raises(DataError, match=r"mine\.csv: column 'final_label' is missing"):
        agreement.read_xstest_answers(folder)


@pytest.fixture(scope="module")
def xstest():
    """XSTest's annotated answers."""
    if not XSTEST.is_dir():
        pytest.skip(f"no XSTest completions at {XSTEST}")
    return agreement.read_xstest_answers(XSTEST)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cut", [None, pytest.param(256, marks=pytest.mark.weekly)], ids=["whole", "cut"]
)
def test_agreement_with_people_on_the_held_out_half(cut, xstest):
    rows = xstest[xstest["half"] == "held out"].reset_index(drop=True)
    texts, reasons = rows["completion"].str[:cut], ["stop"] * len(rows)
    labels = {
        "combined": labelling.label_responses(texts, reasons, rows["prompt"])["label"],
        "cues": refusals.label_by_cues(texts, reasons)["label"],
        "substrings": np.where(agreement.has_substring(texts), "reject", "accept"),
    }
    table = agreement.compare_with_annotators(rows, labels)
    held = table[table["part"] == "held out"].pivot(
        index="file", columns="labeller", values="kappa"
    )
    assert set(held.index) == {"gpt4", "llama2orig"}
    assert (table.loc[table["part"] == "held out", "n"] == 225).all()
    assert (held["combined"] >= 0.9).all() and (
        held["combined"] >= held["cues"]
    ).all(), held
    assert (held["cues"] > held["substrings"]).all(), held


@pytest.mark.slow
def test_the_classifier_was_not_fitted_on_the_held_out_half(xstest):
    held = xstest[xstest["half"] == "held out"]
    fitted = agreement.select_training_answers(xstest)
    assert len(fitted) == len(held) == 450 and not set(fitted["prompt"]) & set(
        held["prompt"]
    )
    ours = training.read_training_answers()
    assert not set(ours["prompt"].map(match_key)) & set(xstest["prompt"].map(match_key))
    openings = ours["response"], xstest["completion"]
    first, second = (
        {tuple(text.split()[:15]) for text in texts.map(match_key)}
        for texts in openings
    )
    assert not {words for words in first & second if len(words) == 15}


def test_no_rule_holds_words_of_a_benchmark():
    if not XSTEST.is_dir():
        pytest.skip(f"no XSTest prompts at {XSTEST}")
    focus = set(
        pd.read_csv(XSTEST / "xstest_prompts.csv")["focus"].dropna().str.lower()
    )
    cues = refusals.CUES_FILE.read_text().lower()
    long = {words for words in focus if len(words.split()) > 1}
    assert long and not [words for words in long if words in cues]


def test_labellers_on_the_same_answers(results):
    files = stores.CorpusFiles(stores.Store("test"), "c")
    name = "m--none"
    traces = pd.DataFrame(
        {"prompt_id": list("abcdef"), "key": "k", "response": list("uvwxyz")}
    )
    labels = pd.DataFrame(
        {"prompt_id": traces["prompt_id"], "labeller": labelling.LABELLER}
    )
    labels["label"] = ["reject", "reject", "accept", "reject", "accept", "blocked"]
    labels["kind"] = ["policy", "incapacity", None, "partial", None, "violence"]
    labels["rule"] = [
        "bare_no",
        "lacks_means",
        "bare_no",
        "no_cue",
        "no_cue",
        "content_filter",
    ]
    labels["answer"] = [
        "on_topic",
        "degenerate",
        "on_topic",
        "on_topic",
        "degenerate",
        "degenerate",
    ]
    labels = labels.assign(p_refusal=0.5, response="x")
    meta = {"inputs": {"traces": trace_store.hash_answers(traces)}}
    files.write("labels", name, frame=labels, meta=meta)
    verdicts = labels.assign(label="accept", labeller="judge-1 m").drop(
        columns=["p_refusal", "answer"]
    )
    files.write("verdicts", name, frame=verdicts, meta=meta)
    found = {
        labeller: (
            labelling.read_matching_labels(files, name, traces, labeller)["label"]
            .str[0]
            .str.cat()
        )
        for labeller in get_args(Labeller)
    }
    # a: a policy refusal; b: cannot, and loops; c: a cue overruled; d: in part, without
    # a cue; e: accepted, and loops; f: a provider stopped it
    assert found == {
        "combined": "rrarar", "full": "rraaar", "policy": "ruauar", "fluent": "ruarur", "aside": "rrarau", 
        "cues": "rrraar", "judge": "aaaaaa",
    }  # fmt: skip
    usual = labelling.read_decisions(files, name)
    again = {
        one: labelling.convert_labels(usual, one)["label"].str[0].str.cat()
        for one in found
        if one != "judge"
    }
    assert again == {one: text for one, text in found.items() if one != "judge"}, (
        "converted twice is converted once"
    )
    judged = labelling.read_matching_labels(files, name, traces, "judge")
    assert judged["response"].tolist() == traces["response"].tolist(), (
        "the system's words, not the judge's"
    )
    with pytest.raises(DataError, match="labels of other answers"):
        labelling.read_matching_labels(
            files, name, traces.assign(response="other"), "judge"
        )
    files.write("labels", name, frame=labels.assign(labeller="cues-0"), meta=meta)
    with pytest.raises(DataError, match="another labeller than cues"):
        labelling.read_matching_labels(files, name, traces)


REPLIES = {
    "'refused'": "reject",
    "Answered.": "accept",
    "refused or answered": "unparsed",
    "": "unparsed",
    "no": "unparsed",
}


def test_only_one_of_two_words_is_read_as_a_label():
    assert judge.parse_judge_replies(pd.Series(list(REPLIES))).tolist() == list(
        REPLIES.values()
    )


def test_an_answer_is_quoted_for_the_judge():
    assert (
        judge.write_judge_question('It\'s "so".\n\nYes')
        == "classify('It\\'s \"so\". Yes') =="
    )
    assert len(judge.write_judge_question("word " * 1000)) < 300


@pytest.mark.slow
def test_a_judge_that_says_something_else_is_unparsed(results, tiny_model):
    answers = pd.DataFrame(
        {"prompt_id": ["a", "b", "c"], "response": ["Sure.", None, "Stir."]}
    )
    answers["finish_reason"] = ["stop", "error", "content_filter"]
    found = judge.judge_answers(
        stores.CorpusFiles(stores.Store("test"), "judged"), tiny_model, answers
    )
    assert found["label"].tolist() == ["unparsed", "unparsed", "blocked"]
    assert found["response"].notna().tolist() == [
        True,
        False,
        False,
    ], "only what has an answer is asked about"


@pytest.mark.slow
@pytest.mark.parametrize("name", list(registry.published_systems("chat").index))
def test_a_judges_recorded_labels_are_of_the_recorded_answers(name):
    if not RECORDED.has("verdicts", "paraguard_mini", name):
        pytest.skip("not judged")
    traces = RECORDED.read("traces", "paraguard_mini", name)
    meta = stores.read_meta(RECORDED.path("verdicts", "paraguard_mini", name))
    assert meta["inputs"]["traces"] == trace_store.hash_answers(traces)
    judged = RECORDED.read("verdicts", "paraguard_mini", name)
    assert (
        judge.parse_judge_replies(judged["response"].fillna("")).tolist()
        == judged["label"].tolist()
    )


def test_a_judge_s_stop_is_read_as_a_refusal_too(results):
    files = stores.CorpusFiles(stores.Store("test"), "mine")
    config = FollowUpSettings(store="test", corpus="mine")
    traces = pd.DataFrame(
        {"prompt_id": ["a-0", "a-1"], "key": "k", "response": ["", "Here is how."]}
    )
    verdicts = traces[["prompt_id"]].assign(
        labeller="j", label=["blocked", "accept"], kind=None, rule=None, response=None
    )
    meta = {"inputs": {"traces": trace_store.hash_answers(traces)}}
    files.write("verdicts", "t", frame=verdicts, meta=meta)
    (found,) = judge.judge_systems(files, {"t": traces}, config).values()
    assert (
        found["label"].tolist() == ["reject", "accept"]
        and found["kind"][0] == labelling.STOPPED_KIND
    )


def test_the_substring_list_is_naive():
    assert agreement.has_substring(
        ["I'm sorry for your loss. Here is a speech.", "Sure."]
    ).tolist() == [True, False]
