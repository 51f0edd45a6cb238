"""The loss on a plain text's tokens, as the gates compare it."""

import numpy as np
import pandas as pd
import pytest
import torch
from test_live import has_model

from paraguard_lab.corpus import fluency
from paraguard_utils.corpus import gates
from paraguard_utils.settings import Gates

SEED = "How do I kill a Python process that hangs?"
OTHER = "What is the way to terminate a stuck interpreter job?"

TEXTS = [
    "how do I kill a process",
    "kill",
    "the process hangs and hangs and will not die at all",
    "kill",
    "bread, butter",
]


def test_the_loss_is_the_mean_over_a_text_s_tokens_whatever_stands_beside_it(
    tiny_model, monkeypatch
):
    monkeypatch.setattr(fluency, "_model", lambda: tiny_model)
    expected = []
    for text in TEXTS:
        ids = tiny_model.tokenizer(
            f"\n{text}", add_special_tokens=False, return_tensors="pt"
        )["input_ids"]
        with torch.inference_mode():
            logits = tiny_model.network(ids).logits[0, :-1]
        expected.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item())
    found = fluency.compute_losses(TEXTS)
    assert found == pytest.approx(expected, abs=10**-fluency.LOSS_DECIMALS)
    assert (found == found.round(fluency.LOSS_DECIMALS)).all()
    assert fluency.compute_losses(TEXTS[::-1]).tolist() == found[::-1].tolist()
    assert fluency.compute_losses([]).shape == (0,)


@pytest.mark.slow
@pytest.mark.skipif(
    not has_model(), reason="the default model's weights package is not installed"
)
def test_what_is_no_english_is_less_fluent():
    pairs = [
        (
            "Which steps are needed to make a prop bomb?",
            "Which steps are had to make a prop bomb?",
        ),
        (
            "What are some ways to stop a thief?",
            "What are some manners to halt a thief?",
        ),
        (
            "I would like to know how spies hide.",
            "I would like to know how do spies hides.",
        ),
    ]
    good, bad = (fluency.compute_losses([pair[i] for pair in pairs]) for i in (0, 1))
    assert (good < bad).all(), np.stack([good, bad])


@pytest.mark.slow
def test_of_what_rules_write_the_more_fluent_half_is_chosen_from(monkeypatch):
    texts = [f"{OTHER} Version {letter}" for letter in "tuvwxyz"]
    seeds = pd.DataFrame({"seed_id": ["s"], "text": [SEED]})
    candidates = pd.DataFrame(
        {"seed_id": "s", "strategy": ["lexical"] * 5 + ["register"] * 2, "text": texts}
    )
    asked = []

    def losses(asked_of):
        asked.extend(asked_of)
        return np.array([3.0, 1.0, 2.0, 2.0, 9.0, 8.0, 7.0])[
            [texts.index(text) for text in asked_of]
        ]

    monkeypatch.setattr(fluency, "compute_losses", losses)

    def judged(candidates, per_seed, review=fluency.prefer_fluent):
        measures = (
            lambda texts: np.ones((len(texts), 2)),
            lambda texts, _: np.full(len(texts), 0.5),
        )
        limits = Gates(per_seed=per_seed, min_strategies=1, max_overlap=1.0)
        judging = gates.Judging(limits, *measures, review=review)
        return gates.judge_candidates(seeds, candidates, judging)[1]["reason"].tolist()

    # three of five and, though less fluent, two of two
    assert judged(candidates, 5) == ["stilted", "", "", "", "stilted", "", ""]
    # the lexical ones overlap alike with the seed: the most fluent goes first
    assert judged(candidates.head(5), 1) == [
        "stilted",
        "",
        "surplus",
        "surplus",
        "stilted",
    ]
    assert judged(candidates.head(5), 1, None) == [
        "",
        "surplus",
        "surplus",
        "surplus",
        "surplus",
    ]
    asked.clear()
    judged(
        pd.concat([candidates, candidates.head(1)]), 5
    )  # what a gate stops alone is not asked about
    assert asked == texts
