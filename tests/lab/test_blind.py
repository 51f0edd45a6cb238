"""Answers that nobody read, and how they come before blind readers."""

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraguard_lab.labels import blind
from paraguard_utils.stores import RECORDED, Store


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
