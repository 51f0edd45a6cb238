"""Labels of answers in a store: made, read, and checked to belong to the answers (`docs/method.md`, Labels)."""

from pathlib import Path

import pandas as pd

from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError
from paraguard_utils.querying.refusals import LABELLER, label
from paraguard_utils.schemas import Labels, Traces
from paraguard_utils.stores import Store, frame_hash, read_meta
from paraguard_utils.text import readable


def answers_hash(traces: Traces) -> str:
    """Return the hash that ties labels to the answers they describe, whatever the order of rows."""
    return stores.frame_hash(traces[["prompt_id", "key", "response"]].sort_values("prompt_id"))


def label_answers(traces: Traces) -> Labels:
    """Label a target's answers by the cue list: the columns of a labels file, in trace order."""
    labels = label(traces["response"], traces["finish_reason"])
    return pd.DataFrame(
        {
            "prompt_id": traces["prompt_id"],
            "labeller": LABELLER,
            **{name: labels[name].replace("", None) for name in ("label", "kind", "rule")},
            "response": traces["response"].map(readable, na_action="ignore"),
        }
    )


def labels_by(store: Store, corpus_name: str, target: str, labeller: str = "cues") -> tuple[Path, Labels]:
    """Read a target's labels by one of three labellers.

    Parameters
    ----------
    store : stores.Store
    corpus_name, target : str
    labeller : str
        "cues", the cue list; "policy", the cue list where only a policy refusal counts as one and all other rejections
        are set aside as unparsed; "judge", a model's labels (the store's kind `verdicts`).

    Returns
    -------
    path : Path
    labels : DataFrame

    Raises
    ------
    DataError
        The labels are of another version of the labeller.
    """
    kind = "verdicts" if labeller == "judge" else "labels"
    path, labels = store.path(kind, corpus_name, target), store.read(kind, corpus_name, target)
    if labeller != "judge" and set(labels["labeller"]) != {LABELLER}:
        raise DataError(f"{paths.shown(path)}: labelled by another labeller than {LABELLER}; run 02_querying again")
    if labeller == "policy":
        other = (labels["label"] == "reject") & (labels["kind"] != "policy")
        labels = labels.assign(label=labels["label"].mask(other, "unparsed"))
    return path, labels


def matching_labels(store: Store, corpus_name: str, target: str, traces: Traces, labeller: str = "cues") -> Labels:
    """Read a target's labels and check that they are of these traces.

    Parameters
    ----------
    store : stores.Store
    corpus_name, target : str
    traces : DataFrame
    labeller : str
        As in `labels_by`.

    Returns
    -------
    DataFrame
        Labels in trace order.

    Raises
    ------
    DataError
        The labels are of other answers, or of another version of the labeller.
    """
    path, labels = labels_by(store, corpus_name, target, labeller)
    if read_meta(path)["inputs"]["traces"] != answers_hash(traces):
        raise DataError(f"{paths.shown(path)}: labels of other answers than the traces hold; run 02_querying again")
    labels = labels.set_index("prompt_id").loc[traces["prompt_id"]].reset_index()
    if labeller == "judge":  # its file has the judge's replies there
        labels["response"] = traces["response"].map(readable, na_action="ignore").to_numpy()
    return labels


def labels_hash(labels: Labels) -> str:
    """Return the hash that ties scores to labels, whatever the order of rows."""
    return frame_hash(labels[["prompt_id", "label"]].sort_values("prompt_id"))
