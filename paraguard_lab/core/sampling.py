"""Draw answers by chance instead of decoding them greedily."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paraguard_utils.models.prompting import Decoding

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sampling(Decoding):
    """How answers are drawn: each token from the whole distribution (top-p 1).

    The temperature is above 0. The same prompt and the same `draw` give the same
    answer, whatever the batch.
    """

    method: str = "sampling"
    temperature: float = 0.7
    draw: int = 0

    def choose(self, logits: "Tensor", keys: Sequence[str], step: int) -> "Tensor":
        """Draw a token for each row of logits, seeded by the request's key.

        It is the first whose cumulated probability exceeds the row's number in [0, 1).
        """
        import torch

        probabilities = torch.softmax(logits.float() / self.temperature, dim=-1)
        cumulated = probabilities.cumsum(-1, dtype=torch.float64)
        # The sum is 1 but for rounding
        chances = torch.tensor(draw_chances(keys, step)).to(logits.device)
        wanted = chances[:, None] * cumulated[:, -1:]
        return torch.searchsorted(cumulated, wanted, right=True)[:, 0]


def draw_chances(keys: Sequence[str], step: int) -> np.ndarray:
    """Return a number in [0, 1) for each request, by its key and the step only.

    Its shape is (keys,).
    """
    numbers = [np.random.default_rng(int(key, 16)).random(step + 1)[-1] for key in keys]
    return np.array(numbers, float)
