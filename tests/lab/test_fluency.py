"""The loss on a plain text's tokens, as the gates compare it."""

import numpy as np
import pytest
import torch
from test_live import has_model

from paraguard_lab.corpus import fluency

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
