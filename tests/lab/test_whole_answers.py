"""Answers at greater length: what is asked again, what is kept, what the cut costs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.labels import follow_ups
from paraguard_lab.settings import FollowUpSettings
from paraguard_utils import settings, stores
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling
from paraguard_utils.models import prompting, trace_store
from paraguard_utils.schemas import SCHEMAS


def test_the_cost_of_the_cut_by_hand():
    frame = pd.DataFrame({"prompt_id": ["s-1", "t-1", "s-2"], "finish_reason": "stop"})
    frame["response"] = [
        "Sure: stir. Twice." * 30 + "But I can't assist with that.",
        "Fine. I refuse to go on.",
        "No.",
    ]
    requests = pd.Series(["How long?", "Will you?", "Why?"])
    found = follow_ups.label_long_answers(frame.assign(key="k"), requests).assign(
        sample=[True, True, False]
    )
    assert set(found) == set(SCHEMAS["answers"].columns)
    labels = pd.DataFrame(
        {
            "prompt_id": ["t-1", "s-1", "s-2"],
            "label": "accept",
            "response": ["Fine.", "Sure: stir.", ""],
        }
    )
    (row,) = follow_ups.compare_long_answers(
        {"t": found}, {"t": labels}, ClusterBootstrap(["s", "t"])
    ).to_dict("records")
    # s-2 was asked to be tuned on, not drawn
    counted = ["n", "continued", "accept_to_reject", "declined_later", "changed"]
    assert [row[name] for name in counted] == [2, 2, 1, 1, 0.5]
    assert follow_ups.compare_long_answers(
        {"t": found.assign(sample=False)}, {"t": labels}, ClusterBootstrap(["s", "t"])
    ).empty


def test_what_is_asked_to_the_end_by_hand():
    corpus = pd.DataFrame({"prompt_id": list("abcdefg"), "cluster_id": list("1111223")})
    labels = pd.DataFrame(
        {
            "label": [
                "reject",
                "accept",
                "accept",
                "accept",
                "reject",
                "accept",
                "accept",
            ]
        }
    )
    labels["answer"] = [
        "on_topic",
        "on_topic",
        "on_topic",
        "degenerate",
        "on_topic",
        "on_topic",
        "on_topic",
    ]
    traces = pd.DataFrame(
        {
            "finish_reason": [
                "stop",
                "length",
                "length",
                "length",
                "length",
                "length",
                "length",
            ]
        }
    )
    labels["prompt_id"] = corpus["prompt_id"]
    system = replace(System.of("t", corpus, labels), traces=traces)
    # cosines of a with b, c and d: 0.8, 0.6, 1; d loops, so b it is. In 2 there is f
    # alone; 3 has no rejection
    vectors = np.array(
        [[1, 0], [0.8, 0.6], [0.6, 0.8], [1, 0], [1, 0], [0, 1], [1, 0]],
        dtype=np.float16,
    )
    assert follow_ups.select_cut_answers(system, vectors) == {"b", "f"}
    system.traces.loc[1, "finish_reason"] = "stop"  # whole as it is
    assert follow_ups.select_cut_answers(system, vectors) == {"f"}


@pytest.mark.slow
def test_only_what_is_needed_is_asked_and_labels_must_be_todays(
    results, tiny_folder, tiny_model, recorded_corpus
):
    files = stores.CorpusFiles(stores.Store("test"), "c")
    corpus = recorded_corpus.head(12)
    system_prompts = ["none", "safety"]
    given = {
        "store": "test",
        "corpus": "c",
        "model": str(tiny_folder),
        "system_prompts": system_prompts,
        "long_answers": 3,
    }
    config = settings.check_settings(given, FollowUpSettings)
    names = [
        prompting.make_system_name(tiny_model.name, system_prompt)
        for system_prompt in system_prompts
    ]
    decoding = prompting.Decoding(4)
    traces = {
        name: trace_store.query_model(
            tiny_model,
            trace_store.Query(files, corpus, system_prompt, decoding),
        )
        for name, system_prompt in zip(names, system_prompts, strict=True)
    }
    labels = {
        name: (
            labelling.label_answers(frame, corpus).assign(
                label="accept", answer="on_topic"
            )
        )
        for name, frame in traces.items()
    }
    systems = {
        name: replace(System.of(name, corpus, labels[name]), traces=traces[name])
        for name in names
    }
    asked = follow_ups.ask_long_answers(files, systems, config)
    assert list(asked) == names[1:], "nothing is refused"
    systems[names[0]].labels.loc[0, "label"] = "reject"
    found = follow_ups.ask_long_answers(files, systems, config)
    assert found[names[1]]["sample"].tolist() == [True] * 3
    assert found[names[0]]["sample"].tolist() == [False] and found[names[0]][
        "prompt_id"
    ][0] in list(corpus["prompt_id"][1:6])
    path = files.path("answers", names[0])
    stores.write_meta(path, stores.read_meta(path) | {"inputs": {"labeller": "cues-0"}})
    with pytest.raises(
        DataError,
        match=r"labels of another version; run A0_asked_again with long_answers=N",
    ):
        follow_ups.read_long_answers(files, names)
