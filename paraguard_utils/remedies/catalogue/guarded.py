"""Put a guard of 05 in front of the model: what either rejects is rejected."""

from functools import partial

from paraguard_utils import registry
from paraguard_utils.analysis.guarded import behind
from paraguard_utils.remedies.contract import Remedy, Target
from paraguard_utils.remedies.splits import Third
from paraguard_utils.remedies.untouched import Untouched, rows
from paraguard_utils.schemas import Corpus, Labels

BEHIND = "behind-"
"""Prefix of the names of these remedies."""


def apply(base: Untouched, train: Third, validation: Third, guard: str) -> Target:
    """Put a guard in front."""

    def decide(of: str, prompts: Corpus | None) -> Labels:
        own = base.decide(of, prompts)
        return behind(own, rows(base.store.read("labels", of, guard), own))

    return Target(decide)


REMEDIES = tuple(
    Remedy(BEHIND + name, "defence", "05", partial(apply, guard=name)) for name in registry.published("guard").index
)
