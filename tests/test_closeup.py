"""What the token view draws."""

import numpy as np
import pandas as pd
import pytest
from worlds import world

from paraguard_utils.analysis import confusion, signals
from paraguard_utils.report import closeup

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
    *_, traces, _, tokens, pairs, scores = scored
    accepted = scores[scores["label"] == "accept"]
    shown = closeup.token_pairs(traces, tokens, pairs, accepted)
    assert shown.empty
