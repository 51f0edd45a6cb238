"""Answers that nobody read, and how they come before blind readers."""

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraguard_lab.labels import blind, follow_ups
from paraguard_lab.settings import FollowUpSettings
from paraguard_utils import stores
from paraguard_utils.labels import labelling
from paraguard_utils.models import trace_store
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.models.prompting import tokenize_prompts
from paraguard_utils.settings import CORPUS, TWINS, check_settings
from paraguard_utils.stores import RECORDED, CorpusFiles, Store


def make_answers(n_clusters: int, groups: dict[str, str]) -> pd.DataFrame:
    """Return an answer of each group to each cluster; `groups` gives its label."""
    rows = []
    for group, label in groups.items():
        for number in range(n_clusters):
            row = {"kind": "twins", "group": group, "cluster": f"c-{number}"}
            rows.append(row | {"prompt_id": f"c-{number}-0", "label": label})
    return pd.DataFrame(rows)


def test_groups_take_turns_and_no_cluster_comes_twice() -> None:
    answers = make_answers(12, {"a": "reject", "b": "reject", "c": "accept"})
    drawn = blind.draw_unread_answers(answers, 8)
    counts = drawn.groupby(["label", "group"]).size().to_dict()
    assert counts == {("accept", "c"): 4, ("reject", "a"): 2, ("reject", "b"): 2}
    assert drawn["cluster"].is_unique


def test_a_cluster_comes_twice_only_where_none_is_left() -> None:
    answers = make_answers(3, {"a": "reject", "b": "accept"})
    drawn = blind.draw_unread_answers(answers, 4)  # 4 answers, 3 clusters
    assert drawn["cluster"].nunique() == 3
    assert not drawn.duplicated(["group", "cluster"]).any()


def test_what_a_kind_lacks_is_not_made_up() -> None:
    answers = make_answers(3, {"a": "reject"})
    drawn = blind.draw_unread_answers(answers, 20)
    assert sorted(drawn["cluster"]) == ["c-0", "c-1", "c-2"]


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_the_draw_follows_the_seed(seed: int) -> None:
    answers = make_answers(9, {"a": "reject", "b": "accept"})
    first = blind.draw_unread_answers(answers, 6, seed)
    pd.testing.assert_frame_equal(first, blind.draw_unread_answers(answers, 6, seed))


@pytest.fixture(scope="module")
def recorded_draw() -> pd.DataFrame:
    answers = blind.list_unread_answers(Store(RECORDED))
    return blind.draw_unread_answers(answers)


@pytest.mark.slow
def test_the_record_gives_fifty_answers_of_each_kind(
    recorded_draw: pd.DataFrame,
) -> None:
    counts = recorded_draw.groupby(["kind", "label"]).size()
    assert counts.to_dict() == {
        (kind, label): 25
        for kind in ("twins", "wordings", "reworded", "remedied")
        for label in ("accept", "reject")
    }
    assert not recorded_draw.duplicated(["kind", "cluster"]).any()
    by_group = recorded_draw.groupby(["kind", "label", "group"]).size()
    spread = by_group.groupby(["kind", "label"]).agg(["min", "max"])
    assert (spread["max"] - spread["min"] <= 1).all()


@pytest.mark.slow
def test_no_guard_is_read(recorded_draw: pd.DataFrame) -> None:
    models = recorded_draw["system"].str.rpartition("--")[0]
    assert models.nunique() == 3


def test_a_sheet_says_nothing_about_the_label() -> None:
    answers = make_answers(12, {"a": "reject", "b": "accept"})
    answers = answers.assign(
        corpus="x",
        system="s",
        label_again=answers["label"],
        request="How?",
        response=answers["label"] + answers["prompt_id"],
    )
    sheet, key = blind.shuffle_for_readers(answers)
    assert list(sheet.columns) == ["item", "request", "answer"]
    assert sheet["item"].is_unique
    joined = sheet.merge(key, on="item")
    assert (joined["answer"] == joined["label"] + joined["prompt_id"]).all()
    # In the order of the items the labels are mixed.
    labels = joined.sort_values("item")["label"]
    assert (labels != labels.shift()).sum() > 2


@pytest.mark.slow
def test_answers_come_again_as_each_system_gives_them_alone(
    results, tiny_folder, tiny_model, recorded_corpus
):
    # Two systems of one model share batches; each answer must be that of its own
    # instruction and prompt, asked alone.
    store = Store("test")
    corpus = recorded_corpus.head(2)
    store.write("corpus", CORPUS, frame=corpus, meta={})
    twins = Store(RECORDED).read("corpus", TWINS).head(2)
    store.write("corpus", TWINS, frame=twins, meta={})
    given = {
        "store": "test",
        "corpus": CORPUS,
        "model": str(tiny_folder),
        "max_new_tokens": 6,
    }
    files = CorpusFiles(store, CORPUS)
    config = check_settings(given, FollowUpSettings)
    follow_ups.ask_other_wordings(files, corpus, config)
    kept = CorpusFiles(store, f"{CORPUS}--wordings")
    rows = []
    for path in sorted(kept.path("labels", "any").parent.glob("*.csv")):
        labels = kept.read("labels", path.stem)
        about = {"kind": "wordings", "corpus": kept.name, "system": path.stem}
        rows.append(labels[["prompt_id", "label"]].assign(**about))
    drawn = pd.concat(rows, ignore_index=True)
    again = blind.query_again(store, drawn)
    assert again["label_again"].tolist() == drawn["label"].tolist()
    backend = LocalBackend(tiny_model)
    texts = corpus.set_index("prompt_id")["text"]
    for row in again.itertuples():
        assert row.request == texts[row.prompt_id]
        meta = stores.read_meta(kept.path("labels", row.system))
        context = trace_store.context_from_meta(meta, row.system)
        prompt = corpus[corpus["prompt_id"] == row.prompt_id]
        requests = tokenize_prompts(prompt, backend.tokenizer, context)
        (alone,) = backend.answer_batches([requests], (), context)
        (labelled,) = labelling.label_answers(alone, prompt).itertuples()
        assert (row.response, row.label_again) == (labelled.response, labelled.label)
    by_prompt = again.groupby("prompt_id")["response"].nunique()
    assert (by_prompt > 1).all(), "instructions must matter for this test to say much"
