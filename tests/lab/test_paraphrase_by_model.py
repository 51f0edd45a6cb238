"""What is found in a model's answer, and what a model is asked."""

import pandas as pd
import pytest

from paraguard_lab.corpus import writer
from paraguard_utils import schemas, stores
from paraguard_utils.models import trace_store


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("How does one end a process?", "How does one end a process?"),
        (
            'Here is the rewritten request:\n\n"How does one end it?"',
            "How does one end it?",
        ),
        ("**Request:** How does one end it?", "How does one end it?"),
        ("Rewritten request: How?\nI hope this helps!", "How?"),
        ("Sure:\n\n", ""),
        (
            "<think>They want: words.</think>\nHow does one end it?",
            "How does one end it?",
        ),
        ("Here is the rewritten request: How does one end it?", "How does one end it?"),
        ("Sure, here's a paraphrase: How?", "How?"),
        ("1. How does one end it?\n2. What ends it?", "How does one end it?"),
        ("", ""),
    ],
)
def test_the_paraphrase_in_an_answer(answer, found):
    assert writer.extract_paraphrase(answer) == found


@pytest.mark.slow
def test_a_model_is_asked_once_a_seed_and_strategy(results, tiny_model):
    seeds = pd.DataFrame(
        {
            "seed_id": ["a", "b"],
            "text": ["How do I kill a process?", "Who stole my bike?"],
        }
    )
    files = stores.CorpusFiles(stores.Store("test"), "mine")
    asked = ("compared", {"": writer.PARAPHRASE_DECODING})
    written = writer.paraphrase_by_model(files, seeds, tiny_model, *asked)
    asked = files.other("mine-paraphrases").read("traces", f"{tiny_model.name}--none")
    assert asked["prompt_id"].tolist() == [
        f"{seed}--{name}--{number}"
        for seed in "ab"
        for name in schemas.STRATEGIES
        for number in (0, 1)
    ]
    finished = (
        asked.loc[asked["finish_reason"] == "stop", "prompt_id"]
        .str.rsplit("--", n=1)
        .str[0]
    )
    assert set(written["seed_id"] + "--" + written["strategy"]) <= set(finished)


def test_only_finished_answers_with_a_paraphrase_become_candidates(
    monkeypatch, tiny_model
):
    seeds = pd.DataFrame({"seed_id": ["a"], "text": ["How do I kill a process?"]})

    def answered(model, query):
        prompts = query.prompts
        responses = [
            "Request: How does one end it?",
            "Sure:",
            "Half a parap",
            *["Another?"] * (len(prompts) - 3),
        ]
        finished = ["stop", "stop", "length", *["stop"] * (len(prompts) - 3)]
        return pd.DataFrame(
            {
                "prompt_id": prompts["prompt_id"],
                "response": responses,
                "finish_reason": finished,
            }
        )

    monkeypatch.setattr(trace_store, "query_model", answered)
    files = stores.CorpusFiles(stores.Store("test"), "mine")
    asked = ("compared", {"": writer.PARAPHRASE_DECODING})
    written = writer.paraphrase_by_model(files, seeds, tiny_model, *asked)
    assert len(written) == 2 * len(writer.read_model_prompts()["compared"]) - 2
    assert written.iloc[0].to_dict() == {
        "seed_id": "a",
        "strategy": "lexical",
        "text": "How does one end it?",
        "rule": tiny_model.name,
    }
