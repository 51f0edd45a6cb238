"""In-context defence: put refused harmful requests before the request (Wei et al.,
arXiv 2310.06387).
"""

import numpy as np

from paraguard_lab.remedies.contract import (
    RemediedSystem,
    Remedy,
    Split,
    UntouchedSystem,
)
from paraguard_utils.core.estimates import SEED

REFUSAL_TEXT = "I'm sorry, but I can't help with that request."


def apply(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Put two demonstrations, drawn from the seed prompts of the training twins, before
    the request.
    """
    seeds = (
        train.twins[train.twins["strategy"] == "seed"]["text"].sort_values().to_numpy()
    )
    drawn = np.random.default_rng(SEED).choice(seeds, min(2, len(seeds)), replace=False)
    said = [(("user", str(text)), ("assistant", REFUSAL_TEXT)) for text in drawn]
    turns = [{"role": role, "content": text} for pair in said for role, text in pair]
    return RemediedSystem.asking(base, "demonstrations", {"turns": turns})


REMEDIES = (Remedy("demonstrations", "defence", "2310.06387", apply, asks=True),)
