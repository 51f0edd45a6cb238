"""Query systems again, about rewordings of what they rejected (`docs/method.md`)."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from paraguard_lab.corpus.reword import original_ids
from paraguard_lab.labels.follow_ups import SAMPLED_SYSTEM_PROMPT
from paraguard_lab.labels.withheld import keep_labels
from paraguard_lab.settings import name_reworded
from paraguard_utils import paths
from paraguard_utils.errors import DataError
from paraguard_utils.guards import contract, panel
from paraguard_utils.labels import labelling
from paraguard_utils.models import backends, prompting, trace_store
from paraguard_utils.schemas import Corpus, Labels
from paraguard_utils.settings import FrozenParameters, QueryOptions
from paraguard_utils.stores import CorpusFiles, Store


def list_decided_systems(
    store: Store, corpora: Collection[str], names: Sequence[str]
) -> list[str]:
    """Return the systems with labels on all these corpora in a store.

    If there are none, raise Missing for a file.
    """
    places = [CorpusFiles(store, corpus) for corpus in corpora]
    decided = list(names)
    for files in places:
        decided = [name for name in decided if files.has("labels", name)]
    if not decided:
        for files in places:
            files.read("labels", names[0])
    return decided


def reask_models(
    files: CorpusFiles,
    rewordings: pd.DataFrame,
    labels: Mapping[str, Labels],
    options: QueryOptions,
) -> None:
    """Query models about rewordings of what they rejected.

    They are the user's model, or the default ones, under `SAMPLED_SYSTEM_PROMPT`.

    Parameters
    ----------
    files : CorpusFiles
        In a live store, which gets the answers' labels (`read_reasked_decisions`);
        querying resumes.
    rewordings : DataFrame
        prompt_id, cluster_id (the prompt that was reworded), text.
    labels : mapping of str to Labels
        The usual decisions by system. A model without labels is left out.
    options : QueryOptions
    """
    for source in backends.resolve_backends(options):
        system = prompting.make_system_name(source.name, SAMPLED_SYSTEM_PROMPT)
        if system not in labels:
            continue
        rows = _select_rejected(rewordings, labels[system])
        if rows.empty:
            continue
        query = trace_store.Query(
            files.other(name_reworded(files.name)),
            rows,
            SAMPLED_SYSTEM_PROMPT,
            prompting.Decoding(options.max_new_tokens),
            options.batch,
            keep_labels(rows, numbers=False),
        )
        trace_store.query_model(source.open(options), query)


def reask_guards(
    files: CorpusFiles,
    rewordings: pd.DataFrame,
    labels: Mapping[str, Labels],
    guards: Mapping[str, contract.Guard],
    settings: FrozenParameters,
) -> None:
    """Query guards about the rewordings of what each rejected, as `reask_models` does.

    A guard that fails is named on stderr.
    """
    reworded = files.other(name_reworded(files.name))
    for name, guard in guards.items():
        rows = _select_rejected(rewordings, labels[name])
        if rows.empty:
            continue
        scored = panel.ask_guards(files.store, {reworded.name: rows}, [guard])
        for _, scores in scored[reworded.name].values():
            decisions = panel.label_by_threshold(scores, guard.threshold)
            meta = settings.meta(scores=scores)
            reworded.write("labels", name, frame=decisions, meta=meta)


def _select_rejected(rewordings: pd.DataFrame, labels: Labels) -> pd.DataFrame:
    rejected = labels.loc[labels["label"] == "reject", "prompt_id"]
    is_of_rejected = rewordings["cluster_id"].isin(rejected)
    return rewordings[is_of_rejected].reset_index(drop=True)


def read_reasked_decisions(
    files: CorpusFiles, prompts: Corpus, system: str, labels: Labels
) -> pd.DataFrame | None:
    """Read how a system decides the rewordings of each prompt that it rejects.

    Parameters
    ----------
    files : CorpusFiles
    prompts : Corpus
    system : str
    labels : Labels
        Its decisions, in the order of the prompts.

    Returns
    -------
    DataFrame or None
        In the order of the prompts: isolation, the share of a prompt's rewordings that
        are accepted, in [0, 1], NaN for accepted prompts and without a decided
        rewording; and queries, their number. None if the system was not queried.

    Raises
    ------
    DataError
        The store has rewordings of other prompts than the system rejects.
    """
    reworded = files.other(name_reworded(files.name))
    if not reworded.has("labels", system):
        return None
    again = labelling.read_decisions(reworded, system)
    originals = original_ids(again["prompt_id"])
    is_rejected = (labels["label"] == "reject").to_numpy()
    if not originals.isin(prompts["prompt_id"][is_rejected]).all():
        where = paths.display_path(reworded.path("labels", system))
        raise DataError(
            f"{where}: of other rejections than the store holds; run 07_remedies with a"
            " live store"
        )
    counts = originals.value_counts().reindex(prompts["prompt_id"], fill_value=0)
    return pd.DataFrame(
        {"isolation": share_accepted(again, prompts), "queries": counts.to_numpy()}
    )


def share_accepted(again: Labels, prompts: pd.DataFrame) -> np.ndarray:
    """Return the share of each prompt's decided rewordings that are accepted.

    NaN without one.
    """
    decided = again[again["label"].isin(["accept", "reject"])]
    is_accepted = decided["label"] == "accept"
    shares = is_accepted.groupby(original_ids(decided["prompt_id"])).mean()
    return prompts["prompt_id"].map(shares).to_numpy(float)
