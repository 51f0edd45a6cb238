"""The veto of 07: overturn a rejection if its paraphrases, or its rewordings, are
accepted.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from paraguard_lab.analysis.veto import IDEAL_VETO, VETO_THRESHOLDS
from paraguard_lab.labels.follow_ups import share_accepted
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
from paraguard_utils.analysis import evaluation
from paraguard_utils.errors import Missing
from paraguard_utils.labels import labelling
from paraguard_utils.schemas import Corpus, Labels, original_ids
from paraguard_utils.settings import name_reworded


def _veto(
    base: UntouchedSystem,
    validation: Split,
    isolation: Callable[[str, Corpus], np.ndarray],
) -> Callable[[Labels, np.ndarray], Labels]:
    """Return what overturns rejections by isolation (NaN: unknown), from a threshold
    that `validation` chooses.
    """

    @cache
    def chosen() -> float:
        sides = [
            (
                (base.decide(of, prompts)["label"] == "reject").to_numpy(),
                isolation(of, prompts),
            )
            for of, prompts in zip(base.corpora, validation, strict=True)
        ]

        def kept(threshold: float) -> tuple[np.ndarray, ...]:
            return tuple(rejected & ~(score >= threshold) for rejected, score in sides)

        # The highest overturns least; infinity overturns nothing, so one is always
        # found.
        return (
            first_token.choose_by_youden([np.inf, *VETO_THRESHOLDS[::-1]], kept, 1.0)
            or 0.0
        )

    def overturn(own: Labels, score: np.ndarray) -> Labels:
        overturned = (own["label"] == "reject").to_numpy() & (score >= chosen())
        return replace_decisions(own, np.where(overturned, "accept", own["label"]))

    return overturn


def apply_ideal(
    base: UntouchedSystem, train: Split, validation: Split
) -> RemediedSystem:
    """Overturn a rejection by how the corpus decides its paraphrases: the ideal, which
    nobody has when deciding.
    """

    def isolation(of: str, prompts: Corpus) -> np.ndarray:
        return evaluation.label_isolation(prompts, base.decide(of, prompts))

    overturn = _veto(base, validation, isolation)

    def decide(of: str, prompts: Corpus | None) -> Labels:
        if prompts is None:
            raise Missing(f"nobody wrote paraphrases of the prompts of {of}")
        return overturn(base.decide(of, prompts), isolation(of, prompts))

    return RemediedSystem(decide)


def apply_reworded(
    base: UntouchedSystem, train: Split, validation: Split
) -> RemediedSystem:
    """Look at rewordings of the rejected request, made by rules; each costs a query."""

    def recorded(of: str, prompts: Corpus) -> np.ndarray:
        own = base.decide(of, prompts)
        if not base.store.has("labels", name_reworded(of), base.name):
            return np.full(len(own), np.nan)
        return share_accepted(
            labelling.read_decisions(base.store, name_reworded(of), base.name), own
        )

    overturn = _veto(base, validation, recorded)

    def decide(of: str, prompts: Corpus | None) -> Labels:
        own, again = base.decide(of, prompts), label_rewordings(base, of, prompts)
        counts = original_ids(again["prompt_id"]).value_counts()
        more = own["prompt_id"].map(counts).fillna(0) * (own["label"] == "reject")
        return overturn(own, share_accepted(again, own)).assign(
            queries=(1 + more).astype(int)
        )

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
