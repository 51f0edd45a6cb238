"""Guards and text classifiers that rate a corpus's surface risk.

`paraguard_utils/corpus/risk.py` asks these functions for a scorer by its name.
"""

import re
from collections.abc import Sequence

import numpy as np

from paraguard_lab.guards.entries import FUNCTION
from paraguard_lab.guards.scoring import check_probabilities
from paraguard_tools.guards.text_classifier import TextClassifier
from paraguard_utils import registry
from paraguard_utils.corpus.risk import RiskScorer
from paraguard_utils.errors import DataError, SettingsError
from paraguard_utils.guards import panel
from paraguard_utils.models import loading
from paraguard_utils.models.encoder import Embed


def find_guard_scorer(name: str) -> RiskScorer | None:
    """Return the scorer of a guard or a function, or None if there is no such guard.

    `name` is a key of `panel` in `data/guards.yaml`, or `module:function`, a function
    from texts to risks, whose file's digest is its version.

    Raises
    ------
    SettingsError
        The function cannot be imported.
    DataError
        When it scores: it does not return one number in [0, 1] per text.
    """
    is_ours = name in registry.guard_entries("panel")
    if not is_ours and not re.fullmatch(FUNCTION, name):
        return None
    guard = panel.load_guard(name)

    def score(texts: Sequence[str], embed: Embed) -> np.ndarray:
        risks = check_probabilities(name, guard.score(texts), len(texts))
        if np.isnan(risks).any():
            number = np.isnan(risks).argmax() + 1
            raise DataError(f"the risk scorer {name} gives no risk for text {number}")
        return risks

    return RiskScorer(f"{name} {guard.version}", score)


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
