"""In-context defence: put refused harmful requests before the request.

(Wei et al., arXiv 2310.06387)
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
    """Put two demonstrations before the request.

    They are drawn from the seed prompts of the training twins.
    """
    is_seed = train.twins["strategy"] == "seed"
    requests = train.twins.loc[is_seed, "text"].sort_values().to_numpy()
    rng = np.random.default_rng(SEED)
    turns = []
    for request in rng.choice(requests, min(2, len(requests)), replace=False):
        turns.append({"role": "user", "content": str(request)})
        turns.append({"role": "assistant", "content": REFUSAL_TEXT})
    return RemediedSystem.asking(base, "demonstrations", {"turns": turns})


REMEDIES = (Remedy("demonstrations", "defence", "2310.06387", apply, asks=True),)
