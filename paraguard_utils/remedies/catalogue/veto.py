"""The veto of 07: overturn a rejection if its paraphrases, or its rewordings, are accepted."""

from collections.abc import Callable
from functools import cache

import numpy as np

from paraguard_utils.analysis import evaluation
from paraguard_utils.analysis.veto import IDEAL, THRESHOLDS
from paraguard_utils.errors import Missing
from paraguard_utils.labels import labelling
from paraguard_utils.remedies import first_token
from paraguard_utils.remedies.asking import original
from paraguard_utils.remedies.catalogue import rewordings
from paraguard_utils.remedies.catalogue.threshold import decided
from paraguard_utils.remedies.contract import Decide, Remedy, Target
from paraguard_utils.remedies.splits import Third
from paraguard_utils.remedies.untouched import Untouched
from paraguard_utils.schemas import Corpus, Labels
from paraguard_utils.settings import reworded_name

Looks = Callable[[str, Corpus | None], np.ndarray]
"""Returns the isolation of a corpus's prompts; NaN if it is unknown or the prompt is accepted."""


def _veto(base: Untouched, validation: Third, choosing: Looks, judging: Looks) -> Decide:
    """Return the decision that overturns rejections from a threshold on, chosen on the validation split."""

    def kept(of: str, prompts: Corpus | None, score: np.ndarray, threshold: float) -> np.ndarray:
        rejected = (base.decide(of, prompts)["label"] == "reject").to_numpy()
        return rejected & ~(np.nan_to_num(score, nan=-1.0) >= threshold)

    @cache
    def chosen() -> float:
        sides = [(of, own, choosing(of, own)) for of, own in zip(base.corpora, validation, strict=True)]

        def rejected(threshold: float) -> tuple[np.ndarray, ...]:
            return tuple(kept(*side, threshold) for side in sides)

        # The highest overturns least; infinity overturns nothing, so one is always found.
        return first_token.best([np.inf, *THRESHOLDS[::-1]], rejected, 1.0) or 0.0

    def decide(of: str, prompts: Corpus | None) -> Labels:
        own = base.decide(of, prompts)
        overturned = (own["label"] == "reject").to_numpy() & ~kept(of, prompts, judging(of, prompts), chosen())
        return decided(own, np.where(overturned, "accept", own["label"]))

    return decide


def isolation(base: Untouched, train: Third, validation: Third) -> Target:
    """Look at paraphrases that people wrote: the ideal, since nobody has them at decision time."""

    def looks(of: str, prompts: Corpus | None) -> np.ndarray:
        if prompts is None:
            raise Missing(f"nobody wrote paraphrases of the prompts of {of}")
        return evaluation.isolation(prompts, base.decide(of, prompts))

    return Target(_veto(base, validation, looks, looks))


def reworded(base: Untouched, train: Third, validation: Third) -> Target:
    """Look at rewordings of the rejected request, made by rules; each costs a query."""

    def recorded(of: str, prompts: Corpus | None) -> np.ndarray:
        own = base.decide(of, prompts)
        if not base.store.has("labels", reworded_name(of), base.name):
            return np.full(len(own), np.nan)
        return _shares(labelling.by(base.store.read("labels", reworded_name(of), base.name), "combined"), own)

    def asked(of: str, prompts: Corpus | None) -> np.ndarray:
        return _shares(rewordings.asked(base, of, prompts), base.decide(of, prompts))

    veto = _veto(base, validation, recorded, asked)

    def decide(of: str, prompts: Corpus | None) -> Labels:
        found, own = veto(of, prompts), base.decide(of, prompts)
        counts = original(rewordings.asked(base, of, prompts)["prompt_id"]).value_counts()
        more = own["prompt_id"].map(counts).fillna(0) * (own["label"] == "reject")
        return found.assign(queries=(1 + more).astype(int))

    return Target(decide)


def _shares(again: Labels, own: Labels) -> np.ndarray:
    decided_on = again[again["label"].isin(["accept", "reject"])]
    of = original(decided_on["prompt_id"])
    return own["prompt_id"].map((decided_on["label"] == "accept").groupby(of).mean()).to_numpy(float)


_QUERIES = 1 + rewordings.reword.MOST

REMEDIES = (
    Remedy(IDEAL, "decision", "07", isolation, role="ideal"),
    Remedy("veto-reworded", "decision", "07", reworded, asks=True, queries=_QUERIES, asked=rewordings.ASKED),
)
