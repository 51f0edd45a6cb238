"""Answers drawn by chance: the same for the same key, and as likely as the model says."""

import hashlib

import pytest
import torch
from scipy import stats

from paraguard_lab.core.sampling import Sampling, draw_chances
from paraguard_utils.models.engine import Engine
from paraguard_utils.models.prompting import Request


def test_a_draw_is_the_keys_alone_and_follows_the_distribution(tiny_model):
    network, keys = (
        tiny_model.network,
        [hashlib.md5(bytes([n % 256, n // 256])).hexdigest() for n in range(300)],
    )
    prompt = (2, 7, 9, 4)
    requests = [Request(f"p{n}", key, prompt, 2, 4) for n, key in enumerate(keys)]
    drawn = Engine(tiny_model, (), Sampling(3)).ask(requests)
    alone = Engine(tiny_model, prompt[:1], Sampling(3)).ask(requests[37:38])
    assert alone[0]["response"] == drawn[37]["response"]
    assert alone[0]["next_logprobs"] == pytest.approx(
        drawn[37]["next_logprobs"], abs=1e-5
    )
    # The first token again: 300 draws at temperature 0.7 beside what the plain model
    # says.
    with torch.inference_mode():
        chances = torch.softmax(
            network(torch.tensor([prompt])).logits[0, -1].double() / 0.7, -1
        )
    numbers = torch.tensor(draw_chances(keys, 0))
    tokens = Sampling(3).choose(chances.log().mul(0.7).expand(300, -1), keys, 0)
    expected = torch.searchsorted(chances.cumsum(0), numbers, right=True)
    assert (tokens == expected).float().mean() > 0.99
    assert stats.kstest(numbers.numpy(), "uniform").pvalue > 0.01
    assert len({row["response"] for row in drawn}) > 10
