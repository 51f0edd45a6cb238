"""Answers drawn by chance: who is asked, that a draw is kept, and that labels must be
today's.
"""

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.labels import follow_ups
from paraguard_lab.settings import FollowUpSettings
from paraguard_utils import settings, stores
from paraguard_utils.errors import DataError, SettingsError
from paraguard_utils.labels import labelling


def test_whole_clusters_are_drawn_whatever_the_order(recorded_corpus):
    chosen = follow_ups.select_sampled_prompts(recorded_corpus, 60)
    assert chosen["cluster_id"].nunique() == 60 and len(chosen) == 6 * 60
    mixed = recorded_corpus.sample(frac=1, random_state=1)
    assert set(follow_ups.select_sampled_prompts(mixed, 60)["prompt_id"]) == set(
        chosen["prompt_id"]
    )
    assert len(follow_ups.select_sampled_prompts(recorded_corpus.head(12), 60)) == 12, (
        "a small corpus is asked whole"
    )


def test_true_is_no_number_of_clusters():
    given = {"store": "test", "corpus": "c", "draw": True}
    with pytest.raises(SettingsError, match="'draw'"):
        settings.check_settings(given, FollowUpSettings)


@pytest.mark.slow
def test_every_draw_is_asked_once_and_kept(
    results, tiny_folder, recorded_corpus, monkeypatch
):
    monkeypatch.setattr(follow_ups, "N_DRAWS", 3)
    files = stores.CorpusFiles(stores.Store("test"), "c")
    corpus = recorded_corpus.head(6)
    given = {
        "store": "test",
        "corpus": "c",
        "model": str(tiny_folder),
        "system_prompts": ["safety"],
    }
    config = settings.check_settings(
        given | {"max_new_tokens": 4, "draw": 60}, FollowUpSettings
    )
    follow_ups.ask_samples(files, corpus, config)
    (name,) = [
        file.stem for file in files.path("samples", "x").parent.glob("*.parquet")
    ]
    found = follow_ups.read_samples(files, [name, "another"])
    assert list(found) == [name]
    hot = follow_ups.read_samples(files, [name], temperature=1.0)[name]
    assert len(hot) == 18 and not set(hot["key"]) & set(found[name]["key"])
    first = found[name]
    assert (
        first.groupby("draw").size().to_dict() == {0: 6, 1: 6, 2: 6}
        and first["key"].is_unique
    )
    answers = first.pivot(index="prompt_id", columns="draw", values="response")
    assert (answers[0] != answers[1]).any(), "two draws differ"
    monkeypatch.setattr(
        "paraguard_utils.models.engine.Engine.ask", None
    )  # nothing is asked again
    follow_ups.ask_samples(files, corpus, config)
    pd.testing.assert_frame_equal(follow_ups.read_samples(files, [name])[name], first)

    path = files.path("samples", name)
    stores.write_meta(path, stores.read_meta(path) | {"inputs": {"labeller": "cues-0"}})
    with pytest.raises(
        DataError, match=r"labels of another version; run A0_asked_again with draw=60"
    ):
        follow_ups.read_samples(files, [name])


@pytest.mark.slow
def test_recorded_draws_are_of_recorded_clusters(recorded_corpus):
    files = stores.CorpusFiles(stores.Store("recorded"), "paraguard_mini")
    name = "qwen2.5-coder-1.5b-instruct-q4_k_m--safety"
    found = follow_ups.read_samples(files, [name])[name]
    prompts = follow_ups.select_sampled_prompts(recorded_corpus, 60)
    assert set(found["prompt_id"]) == set(prompts["prompt_id"])
    hot = follow_ups.read_samples(files, [name], 1.0)[name]
    assert hot["prompt_id"].tolist() == found["prompt_id"].tolist() and not hot[
        "response"
    ].equals(found["response"])
    assert (found.groupby("prompt_id")["draw"].nunique() == follow_ups.N_DRAWS).all()
    part = found.iloc[::97]
    requests = part["prompt_id"].map(recorded_corpus.set_index("prompt_id")["text"])
    again = labelling.label_responses(part["response"], ["stop"] * len(part), requests)
    assert np.array_equal(again["label"].to_numpy(), part["label"].to_numpy())
