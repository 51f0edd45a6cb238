"""Every remedy's decisions on the test third: asked in a live store, read from the recorded one."""

import sys
from collections.abc import Mapping

from paraguard_utils.errors import Missing
from paraguard_utils.remedies.catalogue import UNTOUCHED
from paraguard_utils.remedies.contract import Remedy
from paraguard_utils.remedies.splits import Splits
from paraguard_utils.remedies.untouched import Untouched
from paraguard_utils.schemas import Corpus, Labels
from paraguard_utils.settings import XSTEST

Decisions = dict[str, dict[str, Labels]]
"""Labels by remedy and corpus."""


def decide(base: Untouched, remedies: Mapping[str, Remedy], splits: Splits, outside: Corpus | None = None) -> Decisions:
    """Return what the untouched target and every remedied one decide on the test third.

    Parameters
    ----------
    base : Untouched
    remedies : dict of str to Remedy
    splits : Splits
        Remedies are given the training and the validation third, and are asked the test third.
    outside : DataFrame or None
        XSTest's unsafe prompts; None: the labels that the store has.

    Returns
    -------
    dict of str to dict of str to DataFrame
        A remedy that the recorded store has not asked of this target is left out, and so is a corpus on which it
        cannot decide.
    """
    found: Decisions = {}
    for name, remedy in {UNTOUCHED: None, **remedies}.items():
        target = remedy.apply(base, splits.train, splits.validation).decide if remedy else base.decide
        try:
            own = {of: target(of, prompts) for of, prompts in zip(base.corpora, splits.test, strict=True)}
            if base.store.has("labels", XSTEST, base.name) or outside is not None:
                own[XSTEST] = _outside(base, target, remedy, outside)
        except Missing as error:
            if not base.store.recorded:
                raise
            print(f"{name} was not asked of {base.name}: {error}", file=sys.stderr)
            continue
        found[name] = {of: labels for of, labels in own.items() if labels is not None}
    return found


def _outside(base, target, remedy, outside):
    return target(XSTEST, outside if remedy and remedy.asks else None)
