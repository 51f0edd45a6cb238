"""The veto of 07: overturn a rejection if its paraphrases, or its rewordings, are accepted."""

from collections.abc import Callable
from functools import cache

import numpy as np

from paraguard_utils.analysis import evaluation
from paraguard_utils.analysis.veto import IDEAL_VETO, VETO_THRESHOLDS
from paraguard_utils.errors import Missing
from paraguard_utils.labels import labelling
from paraguard_utils.remedies import first_token
from paraguard_utils.remedies.asking import original_ids
from paraguard_utils.remedies.catalogue import rewordings
from paraguard_utils.remedies.catalogue.threshold import replace_decisions
from paraguard_utils.remedies.contract import Decider, RemediedSystem, Remedy
from paraguard_utils.remedies.splits import Split
from paraguard_utils.remedies.untouched import UntouchedSystem
from paraguard_utils.schemas import Corpus, Labels
from paraguard_utils.settings import name_reworded

IsolationLookup = Callable[[str, Corpus | None], np.ndarray]
"""Returns the isolation of a corpus's prompts; NaN if it is unknown or the prompt is accepted."""


def _veto(base: UntouchedSystem, validation: Split, choosing: IsolationLookup, judging: IsolationLookup) -> Decider:
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
        return first_token.choose_by_youden([np.inf, *VETO_THRESHOLDS[::-1]], rejected, 1.0) or 0.0

    def decide(of: str, prompts: Corpus | None) -> Labels:
        own = base.decide(of, prompts)
        overturned = (own["label"] == "reject").to_numpy() & ~kept(of, prompts, judging(of, prompts), chosen())
        return replace_decisions(own, np.where(overturned, "accept", own["label"]))

    return decide


def apply_ideal_veto(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Overturn a rejection by how the corpus decides its paraphrases: the ideal, which nobody has when deciding."""

    def looks(of: str, prompts: Corpus | None) -> np.ndarray:
        if prompts is None:
            raise Missing(f"nobody wrote paraphrases of the prompts of {of}")
        return evaluation.label_isolation(prompts, base.decide(of, prompts))

    return RemediedSystem(_veto(base, validation, looks, looks))


def apply_reworded_veto(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Look at rewordings of the rejected request, made by rules; each costs a query."""

    def recorded(of: str, prompts: Corpus | None) -> np.ndarray:
        own = base.decide(of, prompts)
        if not base.store.has("labels", name_reworded(of), base.name):
            return np.full(len(own), np.nan)
        return _shares(labelling.read_decisions(base.store, name_reworded(of), base.name), own)

    def asked(of: str, prompts: Corpus | None) -> np.ndarray:
        return _shares(rewordings.label_rewordings(base, of, prompts), base.decide(of, prompts))

    veto = _veto(base, validation, recorded, asked)

    def decide(of: str, prompts: Corpus | None) -> Labels:
        found, own = veto(of, prompts), base.decide(of, prompts)
        counts = original_ids(rewordings.label_rewordings(base, of, prompts)["prompt_id"]).value_counts()
        more = own["prompt_id"].map(counts).fillna(0) * (own["label"] == "reject")
        return found.assign(queries=(1 + more).astype(int))

    return RemediedSystem(decide)


def _shares(again: Labels, own: Labels) -> np.ndarray:
    decided_on = again[again["label"].isin(["accept", "reject"])]
    of = original_ids(decided_on["prompt_id"])
    return own["prompt_id"].map((decided_on["label"] == "accept").groupby(of).mean()).to_numpy(float)


_QUERIES = 1 + rewordings.reword.MAX_REWORDINGS

REMEDIES = (
    Remedy(IDEAL_VETO, "decision", "07", apply_ideal_veto, role="ideal"),
    Remedy(
        "veto-reworded",
        "decision",
        "07",
        apply_reworded_veto,
        asks=True,
        queries=_QUERIES,
        asked=rewordings.REWORDINGS_FOLDER,
    ),
)
