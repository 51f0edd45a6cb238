"""The veto of 07: overturn a rejection if its paraphrases are accepted.

Rewordings may take the place of paraphrases.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from paraguard_lab.analysis.veto import IDEAL_VETO, VETO_THRESHOLDS
from paraguard_lab.corpus.reword import original_ids
from paraguard_lab.labels.second_look import share_accepted
from paraguard_lab.remedies import first_token
from paraguard_lab.remedies.catalogue.rewordings import (
    MAX_QUERIES,
    REWORDINGS_FOLDER,
    label_rewordings,
)
from paraguard_lab.remedies.catalogue.threshold import replace_decisions
from paraguard_lab.remedies.contract import (
    RemediedSystem,
    Remedy,
    Split,
    UntouchedSystem,
)
from paraguard_lab.settings import name_reworded
from paraguard_utils.analysis.system import System
from paraguard_utils.errors import Missing
from paraguard_utils.labels import labelling
from paraguard_utils.schemas import Corpus, Labels

# Isolation of the prompts of a corpus, in their order; NaN where it is not known
Isolation = Callable[[str, Corpus], np.ndarray]


def make_veto(
    base: UntouchedSystem, validation: Split, isolation: Isolation
) -> Callable[[Labels, np.ndarray], Labels]:
    """Return a function that overturns rejections by their isolation.

    Parameters
    ----------
    base : UntouchedSystem
    validation : Split
        On which the threshold is chosen, once it is needed.
    isolation : callable
        Returns the isolation of the prompts of a corpus.

    Returns
    -------
    callable
        Takes labels and the isolation of their prompts, returns the new labels.
    """

    @cache
    def choose_threshold() -> float:
        sides = []
        for corpus_name, prompts in base.by_corpus(validation).items():
            rejected = base.decide(corpus_name, prompts)["label"] == "reject"
            sides.append((rejected.to_numpy(), isolation(corpus_name, prompts)))

        def upheld(threshold: float) -> list[np.ndarray]:
            return [rejected & ~(score >= threshold) for rejected, score in sides]

        # The highest overturns least; infinity overturns nothing, so one is always
        # found.
        thresholds = [np.inf, *VETO_THRESHOLDS[::-1]]
        return first_token.choose_by_youden(thresholds, upheld, 1.0) or 0.0

    def overturn(labels: Labels, score: np.ndarray) -> Labels:
        rejected = (labels["label"] == "reject").to_numpy()
        overturned = rejected & (score >= choose_threshold())
        label = np.where(overturned, "accept", labels["label"])
        return replace_decisions(labels, label)

    return overturn


def apply_ideal(
    base: UntouchedSystem, train: Split, validation: Split
) -> RemediedSystem:
    """Overturn a rejection by how the corpus decides its paraphrases.

    This is the ideal: nobody has these decisions when deciding.
    """

    def isolation(corpus_name: str, prompts: Corpus) -> np.ndarray:
        labels = base.decide(corpus_name, prompts)
        return System.of(base.name, prompts, labels).isolation

    overturn = make_veto(base, validation, isolation)

    def decide(corpus_name: str, prompts: Corpus | None) -> Labels:
        if prompts is None:
            raise Missing(f"nobody wrote paraphrases of the prompts of {corpus_name}")
        labels = base.decide(corpus_name, prompts)
        return overturn(labels, isolation(corpus_name, prompts))

    return RemediedSystem(decide)


def apply_reworded(
    base: UntouchedSystem, train: Split, validation: Split
) -> RemediedSystem:
    """Look at rewordings of the rejected request, made by rules; each costs a query."""

    def recorded(corpus_name: str, prompts: Corpus) -> np.ndarray:
        labels = base.decide(corpus_name, prompts)
        files = base.files(name_reworded(corpus_name))
        if not files.has("labels", base.name):
            return np.full(len(labels), np.nan)
        reworded = labelling.read_decisions(files, base.name)
        return share_accepted(reworded, labels)

    overturn = make_veto(base, validation, recorded)

    def decide(corpus_name: str, prompts: Corpus | None) -> Labels:
        labels = base.decide(corpus_name, prompts)
        reworded = label_rewordings(base, corpus_name, prompts)
        counts = original_ids(reworded["prompt_id"]).value_counts()
        more = labels["prompt_id"].map(counts).fillna(0)
        more *= labels["label"] == "reject"
        decided = overturn(labels, share_accepted(reworded, labels))
        return decided.assign(queries=(1 + more).astype(int))

    return RemediedSystem(decide)


REMEDIES = (
    Remedy(IDEAL_VETO, "decision", "07", apply_ideal, role="ideal"),
    Remedy(
        "veto-reworded",
        "decision",
        "07",
        apply_reworded,
        asks=True,
        queries=MAX_QUERIES,
        asked=REWORDINGS_FOLDER,
    ),
)
