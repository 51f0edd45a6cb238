"""In-context defence: put refused harmful requests before the request (Wei et al., arXiv 2310.06387)."""

import numpy as np

from paraguard_utils.core.estimates import SEED
from paraguard_utils.remedies.asking import Framed
from paraguard_utils.remedies.contract import Remedy, Target
from paraguard_utils.remedies.splits import Third
from paraguard_utils.remedies.untouched import Untouched

DEMONSTRATIONS = 2

REFUSAL = "I'm sorry, but I can't help with that request."


def apply(base: Untouched, train: Third, validation: Third) -> Target:
    """Put demonstrations, drawn from the seed prompts of the training twins, before the request."""
    seeds = train.twins[train.twins["strategy"] == "seed"]["text"].sort_values().to_numpy()
    drawn = np.random.default_rng(SEED).choice(seeds, min(DEMONSTRATIONS, len(seeds)), replace=False)
    said = [(("user", str(text)), ("assistant", REFUSAL)) for text in drawn]
    parameters = {"turns": [{"role": role, "content": text} for pair in said for role, text in pair]}
    return Target.asking(base, "demonstrations", parameters, lambda: Framed(base.local, parameters))


REMEDIES = (Remedy("demonstrations", "defence", "2310.06387", apply, asks=True),)
