"""Put a guard of 05 in front of the model: what either rejects is rejected."""

from functools import partial

from paraguard_lab.remedies.contract import (
    RemediedSystem,
    Remedy,
    Split,
    UntouchedSystem,
)
from paraguard_utils import registry
from paraguard_utils.analysis.guarded import apply_guard
from paraguard_utils.labels import labelling
from paraguard_utils.schemas import Corpus, Labels, select_prompts

GUARDED_PREFIX = "behind-"  # of the names of these remedies


def apply(
    base: UntouchedSystem, train: Split, validation: Split, guard: str
) -> RemediedSystem:
    """Put a guard in front."""

    def decide(of: str, prompts: Corpus | None) -> Labels:
        own = base.decide(of, prompts)
        return apply_guard(
            own, select_prompts(labelling.read_decisions(base.store, of, guard), own)
        )

    return RemediedSystem(decide)


REMEDIES = tuple(
    Remedy(GUARDED_PREFIX + name, "defence", "05", partial(apply, guard=name))
    for name in registry.published_systems("guard").index
)
