"""What the confusion map and the token view draw."""

import numpy as np
import pandas as pd
import pytest
from worlds import world

from paraguard_utils.report import closeup, findings
from paraguard_utils.scoring import confusion, signals

LABELS = ["reject", "accept", "accept", "reject", "accept", "blocked", "reject", "accept"] * 3
CLUSTERS = [f"c{i // 4}" for i in range(len(LABELS))]


@pytest.fixture(scope="module")
def scored():
    corpus, vectors, traces, labels, tokens = world(LABELS, CLUSTERS)
    pairs = signals.pairs(corpus, vectors, traces, labels, tokens)
    return corpus, vectors, traces, labels, tokens, pairs, confusion.prompt_scores(corpus, labels, pairs)


def test_the_most_confused_by_hand():
    scores = pd.DataFrame(
        {
            "prompt_id": ["a", "b", "c", "d", "e"],
            "label": ["reject", "accept", "reject", "reject", "reject"],
            "ci": [0.2, 0.9, 0.4, 0.4, np.nan],
        }
    )
    # b is accepted, e has no CI; c before d by name
    assert closeup.most_confused(scores).to_numpy().tolist() == [[1, "c", 0.4], [2, "d", 0.4], [3, "a", 0.2]]
    assert closeup.most_confused(scores, 1)["prompt_id"].tolist() == ["c"]
    assert closeup.most_confused(scores[:0]).empty


def test_map_joins_rejections_to_their_accepted_neighbours(scored):
    corpus, vectors, _, labels, _, pairs, scores = scored
    points, lines = closeup.map_points(corpus, vectors, labels, pairs, scores, most=4)
    assert len(points) == LABELS.count("accept") + LABELS.count("reject")  # the blocked ones are not drawn
    assert sorted(points["number"].dropna()) == [1, 2, 3, 4]
    assert points.loc[points["number"].notna(), "label"].eq("reject").all()
    numbered = points.dropna(subset="number").sort_values("number")
    assert (
        numbered["ci"].is_monotonic_decreasing
        and numbered["ci"].iloc[0] == scores.loc[scores["label"] == "reject", "ci"].max()
    )
    assert lines.groupby("number").size().tolist() == [signals.K] * 4
    place = points.set_index("prompt_id")
    for row in lines.itertuples():
        assert place["label"][row.neighbour_id] == "accept"
        assert (row.x, row.y) == tuple(place.loc[row.prompt_id, ["x", "y"]])
        assert (row.x_to, row.y_to) == tuple(place.loc[row.neighbour_id, ["x", "y"]])
        cosine = np.array(vectors, float)
        a, b = (cosine[corpus["prompt_id"].tolist().index(name)] for name in (row.prompt_id, row.neighbour_id))
        assert row.similarity == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-6)


def test_the_plane_keeps_groups_together_and_is_the_same_each_time():
    rng = np.random.default_rng(1)
    vectors = np.repeat(rng.normal(size=(20, 8)), 6, axis=0) + 0.1 * rng.normal(size=(120, 8))
    points = closeup.plane(vectors)
    assert np.array_equal(points, closeup.plane(vectors))
    # noise of the last bits does not grow into another picture
    assert np.array_equal(points, closeup.plane(vectors * (1 + 1e-12)))
    group = np.repeat(np.arange(20), 6)
    near = np.argsort(np.linalg.norm(points[:, None] - points[None], axis=2), axis=1)[:, 1:6]
    assert (group[near] == group[:, None]).mean() > 0.95
    assert closeup.neighbours_kept(vectors, points) > 0.9
    # five of 119 others at random: 5 / 119 = 0.042
    assert closeup.neighbours_kept(vectors, rng.normal(size=(120, 2))) < 0.15


@pytest.mark.parametrize("n", [0, 1, 2, 3, 9, 10, 12])
def test_the_plane_of_few_prompts(n):
    points = closeup.plane(np.random.default_rng(0).normal(size=(n, 5)))
    assert points.shape == (n, 2) and np.isfinite(points).all()
    assert np.isfinite(closeup.plane(np.ones((n, 5)))).all()
    assert np.isnan(closeup.neighbours_kept(np.ones((n, 5)), points)) == (n < 7)


def test_token_pairs_are_the_nearest_neighbours_and_average_to_drift(scored):
    *_, traces, _, tokens, pairs, scores = scored
    shown = closeup.token_pairs(traces, tokens, pairs, scores, most=5)
    lengths = (traces["user_end"] - traces["user_start"]).set_axis(traces["prompt_id"])
    for number, rows in shown.groupby("number"):
        ends = rows.drop_duplicates("side").set_index("side")["prompt_id"]
        own = pairs[pairs["centre_id"] == ends["rejected"]]
        assert ends["accepted"] == own.loc[own["similarity"].idxmax(), "neighbour_id"], number
        sides = rows.groupby("side")["distance"]
        assert sides.size().to_dict() == {side: lengths[ends[side]] for side in ends.index}
        # Drift is the mean distance of both directions, averaged, at most 1
        assert min(sides.mean().mean(), 1) == pytest.approx(rows["drift"].iloc[0])


def test_nothing_to_show(scored):
    corpus, vectors, traces, labels, tokens, pairs, scores = scored
    accepted = scores[scores["label"] == "accept"]
    shown = closeup.token_pairs(traces, tokens, pairs, accepted)
    assert shown.empty and "nothing to compare" in findings.token_finding(shown)
    points, lines = closeup.map_points(corpus, vectors, labels, pairs, accepted)
    assert points["number"].isna().all() and lines.empty


def test_the_verdict_counts_pairs_not_tokens():
    shown = pd.DataFrame(
        {
            "number": [1, 1, 1, 2],
            "same_cluster": [True, True, True, False],
            "similarity": [0.9, 0.9, 0.9, 0.3],
            "drift": [0.2, 0.2, 0.2, 0.4],
            "prob_shift": 0.5,
            "ppl_relative": 0.25,
        }
    )
    said = findings.token_finding(shown)
    assert "Of the 2 most confused rejections, 1 have" in said and "1 in another" in said
    assert "0.30 to 0.90" in said and "Drift 0.30" in said  # (0.2 + 0.4) / 2
