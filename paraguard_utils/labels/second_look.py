"""A target asked again about what it rejected, in other words (`docs/method.md`, The veto).

Only decisions are kept: a rewording's answer is labelled in memory, whatever the request asks for.
"""

import sys
from collections.abc import Mapping

import pandas as pd

from paraguard_utils import paths
from paraguard_utils.errors import DataError, UserError
from paraguard_utils.guards import panel
from paraguard_utils.guards.contract import Guard
from paraguard_utils.labels import labelling
from paraguard_utils.labels.samples import SAMPLED_PROMPT
from paraguard_utils.models import backends, prompting, trace_store
from paraguard_utils.schemas import Corpus, Labels
from paraguard_utils.settings import Settings, reworded_name
from paraguard_utils.stores import Store


def reask_models(
    store: Store, corpus_name: str, rewordings: pd.DataFrame, labels: Mapping[str, Labels], settings: Settings
) -> None:
    """Ask the user's model, or the default ones, the rewordings of what it rejected under the wrapper `WRAPPER`.

    Parameters
    ----------
    store : stores.Store
        A live store, whose labels `reasked_decisions` reads. Asking resumes.
    corpus_name : str
        Of the corpus that was reworded.
    rewordings : DataFrame
        Columns prompt_id, cluster_id (the prompt that was reworded), text.
    labels : dict of str to DataFrame
        By target; a model without labels under that wrapper is left out.
    settings : settings.Settings
        max_new_tokens, batch and what `backends.sources` and `opened` take are used.
    """
    for source in backends.sources(settings):
        target = prompting.target_name(source.name, SAMPLED_PROMPT)
        if target not in labels:
            continue
        rows = _of_rejected(rewordings, labels[target])
        if rows.empty:
            continue
        model = backends.opened(source, settings)
        withheld = labelling.in_memory(rows, numbers=False)
        decoding = prompting.Decoding(settings.max_new_tokens)
        place = (store, reworded_name(corpus_name), rows, model, SAMPLED_PROMPT, decoding, settings.batch)
        trace_store.query(*place, withheld=withheld)


def reask_guards(
    store: Store,
    corpus_name: str,
    rewordings: pd.DataFrame,
    labels: Mapping[str, Labels],
    guards: Mapping[str, Guard],
    settings: Settings,
) -> None:
    """Ask guards the rewordings of what each rejected; one that cannot be asked is named, and the others go on.

    Parameters
    ----------
    store : stores.Store
        A live store.
    corpus_name : str
    rewordings, labels
        As for `reask_models`.
    guards : dict of str to contract.Guard
    settings : settings.Settings
        For the meta files.
    """
    for name, guard in guards.items():
        rows = _of_rejected(rewordings, labels[name])
        if rows.empty:
            continue
        try:
            scores = panel.scores(store, reworded_name(corpus_name), rows, guard)
        except UserError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        made = panel.labels(scores, guard.threshold)
        store.write("labels", reworded_name(corpus_name), name, frame=made, meta=settings.meta(scores=scores))


def reasked_decisions(
    store: Store, corpus_name: str, corpus: Corpus, target: str, labels: Labels
) -> pd.DataFrame | None:
    """Return how a target decides the rewordings of each prompt that it rejects.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    corpus, labels : DataFrame
        Rows in the same order.
    target : str

    Returns
    -------
    DataFrame or None
        Rows in corpus order: isolation, the share of its rewordings that are accepted, in [0, 1], NaN for what is
        accepted, and where no rewording was made or decided; queries, how many there are. None: it was not asked.

    Raises
    ------
    DataError
        Other prompts were reworded than the target rejects.
    """
    if not store.has("labels", reworded_name(corpus_name), target):
        return None
    again = store.read("labels", reworded_name(corpus_name), target)
    again = again.assign(label=again["label"].replace("blocked", "reject"))
    of = again["prompt_id"].str.rpartition("~")[0]
    rejected = corpus["prompt_id"][(labels["label"] == "reject").to_numpy()]
    if not of.isin(rejected).all():
        path = store.path("labels", reworded_name(corpus_name), target)
        raise DataError(f"{paths.shown(path)}: of other rejections than the store holds; run 07_veto with a live store")
    decided = again["label"].isin(["accept", "reject"])
    share = (again["label"] == "accept")[decided].groupby(of[decided]).mean()
    queries = of.value_counts().reindex(corpus["prompt_id"], fill_value=0).to_numpy()
    return pd.DataFrame({"isolation": corpus["prompt_id"].map(share).to_numpy(float), "queries": queries})


def _of_rejected(rewordings: pd.DataFrame, labels: Labels) -> pd.DataFrame:
    rejected = labels.loc[labels["label"] == "reject", "prompt_id"]
    return rewordings[rewordings["cluster_id"].isin(rejected)].reset_index(drop=True)
