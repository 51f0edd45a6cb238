"""Guards and text classifiers that rate a corpus's surface risk.

`paraguard_utils/corpus/risk.py` asks these functions for a scorer by its name.
"""

from collections.abc import Sequence

import numpy as np

from paraguard_tools.guards.text_classifier import TextClassifier
from paraguard_utils import registry
from paraguard_utils.corpus.risk import RiskScorer, score_by_function
from paraguard_utils.errors import SettingsError
from paraguard_utils.guards import panel
from paraguard_utils.models import loading
from paraguard_utils.models.encoder import Embed


def find_guard_scorer(name: str) -> RiskScorer | None:
    """Return the scorer of a guard, or None if there is no such guard.

    `name` is a key of `panel` in `data/guards.yaml`.
    """
    if name not in registry.guard_entries("panel"):
        return None
    guard = panel.load_guard(name)
    return score_by_function(name, guard.version, guard.score)


def find_classifier_scorer(name: str) -> RiskScorer | None:
    """Return the scorer of `MODEL#LABEL`; None for a name without `#`.

    MODEL is a text classifier, as a folder or hub id, and the risk is the probability
    of the label.

    Raises
    ------
    SettingsError
        The classifier has no such label.
    ModelError
        The classifier cannot be found or loaded.
    """
    model, separator, label = name.rpartition("#")
    if not separator:
        return None
    source = loading.resolve_model(model)
    classifier = TextClassifier(source, 32, "cpu")
    if label not in classifier.labels:
        known = ", ".join(classifier.labels)
        raise SettingsError(
            f"the classifier {source.name} has no label {label!r}; it has {known}"
        )
    column = classifier.labels.index(label)

    def score(texts: Sequence[str], embed: Embed) -> np.ndarray:
        return classifier.classify(texts)[:, column]

    return RiskScorer(f"{source.name}#{label} {source.weights_id[:16]}", score)
