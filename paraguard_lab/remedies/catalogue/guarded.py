"""Put a guard of 05 in front of the model: what either rejects is rejected."""

from functools import partial

from paraguard_lab.analysis.guarded import apply_guard
from paraguard_lab.remedies.contract import (
    RemediedSystem,
    Remedy,
    Split,
    UntouchedSystem,
)
from paraguard_utils import registry
from paraguard_utils.labels import labelling
from paraguard_utils.schemas import Corpus, Labels, select_prompts

GUARDED_PREFIX = "behind-"  # of the names of these remedies


def apply(
    base: UntouchedSystem, train: Split, validation: Split, guard: str
) -> RemediedSystem:
    """Put a guard in front."""

    def decide(corpus_name: str, prompts: Corpus | None) -> Labels:
        of_model = base.decide(corpus_name, prompts)
        of_guard = labelling.read_decisions(base.files(corpus_name), guard)
        return apply_guard(of_model, select_prompts(of_guard, of_model))

    return RemediedSystem(decide)


REMEDIES = tuple(
    Remedy(GUARDED_PREFIX + name, "defence", "05", partial(apply, guard=name))
    for name in registry.published_systems("guard").index
)
