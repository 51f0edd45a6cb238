"""Agreement of labels with people, on XSTest's annotated answers, and with others.

XSTest (Röttger et al., NAACL 2024) publishes answers of several models, each labelled
by two people. The rules were written and the classifier was fitted on one half of the
prompts; nobody read the other half (`docs/method.md`, Labels).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from paraguard_lab.core.inference import estimate_kappa
from paraguard_lab.corpus.upstream import read_upstream_csv
from paraguard_lab.labels import judge
from paraguard_utils import paths, registry
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, to_columns
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling, refusals
from paraguard_utils.models import loading
from paraguard_utils.schemas import Labels, Table
from paraguard_utils.stores import CorpusFiles, Store

_SPLIT_SEED = 20240501
_CUT_TOKENS = 64  # the pipeline cuts answers after so many
FULL_COMPLIANCE = "1_full_compliance"
ANNOTATION_COLUMNS = ("annotation_1", "annotation_2", "final_label")
XSTEST_COLUMNS = ("id", "type", "prompt", "completion", *ANNOTATION_COLUMNS)
PUBLISHED_RATES_FILE = paths.DATA / "labels" / "published_rates.csv"
XSTEST_TABLES = ("xstest_agreement", "xstest_rates", "xstest_types", "xstest_confusion")
# XSTest's own labels: the end of a file's name, its column, and the labeller's name
# here
XSTEST_LABELLERS = {
    "gpteval": ("gpt4_label", "XSTest's GPT-4 judge"),
    "streval": ("strmatch_label", "XSTest's string match"),
}

ONE_ANNOTATOR = "one annotator, by the other"


def read_xstest_answers(folder: str | Path) -> pd.DataFrame:
    """Read every `xstest_v2_completions_<model>.csv` of a folder.

    Parameters
    ----------
    folder : str or path
        XSTest's folder of labelled answers.

    Returns
    -------
    DataFrame
        The columns of the files, file (the model), half ("developed" or "held out"),
        first, second and people ("reject" or "accept": each annotator, and both in the
        end), differ (the annotators disagree).

    Raises
    ------
    DataError
        There is no such file, or one lacks a column.
    """
    files = sorted(Path(folder).glob("xstest_v2_completions_*.csv"))
    if not files:
        raise DataError(
            f"{folder}: there is no xstest_v2_completions_*.csv; pass XSTest's folder"
            " of labelled answers"
        )
    frames = []
    for file in files:
        rows = read_upstream_csv(file, XSTEST_COLUMNS)
        is_developed = rows["prompt"].isin(_draw_developed(rows["prompt"]))
        first, second, final = (_decide(rows[name]) for name in ANNOTATION_COLUMNS)
        rows = rows.assign(
            file=file.stem.rpartition("_")[2],
            half=np.where(is_developed, "developed", "held out"),
            first=first,
            second=second,
            people=final,
            differ=first != second,
        )
        frames.append(rows)
    return pd.concat(frames, ignore_index=True)


def _decide(labels: pd.Series) -> np.ndarray:
    """Return "accept" for full compliance, else "reject"."""
    return np.where(labels == FULL_COMPLIANCE, "accept", "reject")


def _draw_developed(prompts: pd.Series) -> np.ndarray:
    """Draw the half of the prompts whose answers were read."""
    unique = np.unique(prompts)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(unique))
    return unique[order[: len(unique) // 2]]


def select_training_answers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the developed half as training answers.

    Parameters
    ----------
    rows : DataFrame
        As from `read_xstest_answers`.

    Returns
    -------
    DataFrame
        prompt, response, label (one of `kinds.THREE_LABELS`).
    """
    developed = rows[rows["half"] == "developed"]
    return pd.DataFrame(
        {
            "prompt": developed["prompt"],
            "response": developed["completion"],
            "label": developed["final_label"].str.partition("_")[2],
        }
    )


def read_xstest_labels(folder: str | Path, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """Read XSTest's own automatic labels, anywhere below a folder.

    They are in `<model>_gpteval.csv` and `<model>_streval.csv`.

    Parameters
    ----------
    folder : str or path
    rows : DataFrame
        As from `read_xstest_answers`.

    Returns
    -------
    dict of str to array
        Labels by labeller, in the order of the rows; "unparsed" if a file lacks the
        answer.
    """
    by_labeller = {}
    for end, (column, labeller) in XSTEST_LABELLERS.items():
        labels = np.full(len(rows), "unparsed", dtype=object)
        for model, of_model in rows.groupby("file"):
            for file in sorted(Path(folder).rglob(f"*{model}_{end}.csv")):
                labels[of_model.index] = _read_own_labels(file, column, of_model)
        if (labels != "unparsed").any():
            by_labeller[labeller] = labels
    return by_labeller


def _read_own_labels(file: Path, column: str, answers: pd.DataFrame) -> np.ndarray:
    keys = ["id", "completion"]
    listed = read_upstream_csv(file).drop_duplicates(keys)
    labels = answers[keys].merge(listed, "left", keys)[column]
    return np.where(labels.isna(), "unparsed", _decide(labels))


def compare_with_annotators(
    rows: pd.DataFrame, labels: Mapping[str, Sequence[str] | np.ndarray]
) -> Table:
    """Compare labellers with people.

    Parameters
    ----------
    rows : DataFrame
        As from `read_xstest_answers`.
    labels : mapping of str to array
        Each labeller's labels, in the order of the rows.

    Returns
    -------
    Table
        By file and part. Columns: file, part (held out, its safe and its charged
        prompts, developed, and over both halves: all, annotators agree, annotators
        differ), labeller, n, refused (by people), unparsed, and accuracy, precision,
        recall and kappa with bootstrap intervals over prompts. The row `ONE_ANNOTATOR`
        compares the first annotator with the second.
    """
    columns = pd.DataFrame({**labels, ONE_ANNOTATOR: rows["first"]})
    lines = []
    for file, of_file in rows.groupby("file"):
        for part, is_member in _split_parts(of_file).items():
            answers = of_file[is_member]
            if answers.empty:
                continue
            prompts = answers["prompt"]
            clusters = ClusterBootstrap(prompts)
            for labeller, given in columns.loc[answers.index].items():
                people = "second" if labeller == ONE_ANNOTATOR else "people"
                rejected = given == "reject"
                refused = answers[people] == "reject"
                agreed = estimate_agreement(clusters, prompts, rejected, refused)
                line = {
                    "file": file,
                    "part": part,
                    "labeller": labeller,
                    "n": len(answers),
                    "refused": (answers["people"] == "reject").sum(),
                    "unparsed": (given == "unparsed").sum(),
                }
                lines.append(line | to_columns(agreed))
    return pd.DataFrame(lines)


def _split_parts(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Return which rows are in each part, by its name."""
    is_held = rows["half"] == "held out"
    is_charged = rows["type"].str.startswith("contrast")
    return {
        "held out": is_held,
        "held out, safe": is_held & ~is_charged,
        "held out, charged": is_held & is_charged,
        "developed": ~is_held,
        "all": rows["id"] != "",
        "annotators agree": ~rows["differ"],
        "annotators differ": rows["differ"],
    }


def compare_by_type(rows: pd.DataFrame, labels: Sequence[str] | np.ndarray) -> Table:
    """Compare a labeller with people by type of prompt.

    Parameters
    ----------
    rows : DataFrame
        As from `read_xstest_answers`.
    labels : sequence of str
        The labeller's labels, in the order of the rows.

    Returns
    -------
    Table
        Columns: file, type, n, refused (people), rejected (labeller), accuracy with its
        interval.
    """
    rows = rows.assign(labels=np.asarray(labels))
    lines = []
    for (file, kind), answers in rows.groupby(["file", "type"]):
        prompts = answers["prompt"]
        rejected = answers["labels"] == "reject"
        refused = answers["people"] == "reject"
        accuracy = ClusterBootstrap(prompts).share(prompts, rejected == refused)
        line = {
            "file": file,
            "type": kind,
            "n": len(answers),
            "refused": refused.sum(),
            "rejected": rejected.sum(),
        }
        lines.append(line | to_columns({"accuracy": accuracy}))
    return pd.DataFrame(lines)


def compare_refusal_shares(
    rows: pd.DataFrame, labels: Mapping[str, Sequence[str] | np.ndarray]
) -> Table:
    """Estimate the share of safe prompts that each labeller calls refused.

    Published shares are beside it.

    Parameters
    ----------
    rows : DataFrame
        As from `read_xstest_answers`.
    labels : mapping of str to array
        Each labeller's labels, in the order of the rows.

    Returns
    -------
    Table
        Columns: file, by (the labeller), n, share with its interval (none for a
        published share), source.
    """
    published = pd.read_csv(PUBLISHED_RATES_FILE)
    columns = pd.DataFrame({"people": rows["people"], **labels})
    safe = rows[~rows["type"].str.startswith("contrast")]
    lines = []
    for file, answers in safe.groupby("file"):
        clusters = ClusterBootstrap(answers["prompt"])
        for labeller, given in columns.loc[answers.index].items():
            share = clusters.share(answers["prompt"], given == "reject")
            line = {"file": file, "by": labeller, "n": len(answers)}
            line |= to_columns({"share": share})
            lines.append(line | {"source": "this run"})
        lines += published[published["file"] == file].to_dict("records")
    return pd.DataFrame(lines).astype({"n": "Int64"})


def count_kinds(rows: pd.DataFrame, labelled: pd.DataFrame) -> Table:
    """Count people's labels against the kinds of ours.

    Parameters
    ----------
    rows : DataFrame
        As from `read_xstest_answers`.
    labelled : DataFrame
        As from `labelling.label_responses`, in the order of the rows.

    Returns
    -------
    Table
        Columns: file, people, accept, reject:policy and so on.
    """
    kinds = (labelled["label"] + ":" + labelled["kind"]).str.rstrip(":")
    table = pd.crosstab([rows["file"], rows["final_label"]], kinds.to_numpy())
    rejections = (*refusals.REFUSAL_KINDS, "partial")
    known = ["accept", *(f"reject:{kind}" for kind in rejections)]
    others = table.columns.difference(known)
    table = table.reindex(columns=[*known, *others], fill_value=0)
    return table.reset_index().rename(columns={"final_label": "people"})


def compare_labellers(
    systems: Mapping[str, System], others: Mapping[str, Labels]
) -> Table:
    """Compare the labels of systems with another labeller's on every answer.

    Parameters
    ----------
    systems : mapping of str to System
    others : mapping of str to Labels
        The other labeller's, by system, in the order of its prompts.

    Returns
    -------
    Table
        Columns: system, n (both decide), reject, other_rejects, both_reject, unparsed
        (by the other), kappa with its interval.
    """
    lines = []
    for name, frame in others.items():
        system = systems[name]
        usual = system.labels["label"].to_numpy()
        other = frame["label"].to_numpy()
        decided = ["accept", "reject"]
        is_read = np.isin(other, decided) & np.isin(usual, decided)
        rejects = usual[is_read] == "reject"
        other_rejects = other[is_read] == "reject"
        ids = system.prompts["cluster_id"].to_numpy()[is_read]
        agreed = estimate_agreement(system.clusters, ids, other_rejects, rejects)
        line = {
            "system": name,
            "n": is_read.sum(),
            "reject": rejects.sum(),
            "other_rejects": other_rejects.sum(),
            "both_reject": (rejects & other_rejects).sum(),
            "unparsed": (other == "unparsed").sum(),
        }
        lines.append(line | to_columns({"kappa": agreed["kappa"]}))
    return pd.DataFrame(lines)


def has_substring(responses: Sequence[str]) -> np.ndarray:
    """Return which answers hold a string of `data/refusal_substrings.csv`.

    This is a common method, kept for comparison only.
    """
    listed = pd.read_csv(paths.DATA / "refusal_substrings.csv")["substring"]
    pattern = "|".join(map(re.escape, listed))
    return pd.Series(list(responses)).str.contains(pattern).to_numpy()


def write_xstest_tables(
    folder: str | Path, store: Store, judge_name: str = ""
) -> dict[str, Table]:
    """Write the tables `XSTEST_TABLES` into a live store, and return them by name.

    Parameters
    ----------
    folder : str or path
        XSTest's folder of labelled answers.
    store : Store
    judge_name : str
        A model that judges too; "" for none.
    """
    rows = read_xstest_answers(folder)
    short = _cut_answers(rows["completion"])
    finished = ["stop"] * len(rows)
    whole = labelling.label_responses(rows["completion"], finished, rows["prompt"])
    labels = _label_in_all_ways(rows, short, whole["label"])
    labels |= read_xstest_labels(folder, rows)
    meta = {
        "labeller": labelling.LABELLER,
        "split": _SPLIT_SEED,
        "source": "XSTest (Röttger et al., NAACL 2024), CC BY 4.0",
    }
    if judge_name:
        model = loading.load_model(loading.resolve_model(judge_name))
        ids = rows["file"] + " " + rows["id"]
        answers = pd.DataFrame({"prompt_id": ids, "response": short})
        answers["finish_reason"] = "stop"
        replies = CorpusFiles(store, "xstest")
        judged = judge.judge_answers(replies, model, answers)
        labels[f"{judge.JUDGE_RUBRIC} {model.name}"] = judged["label"]
        meta["judge"] = model.name
    tables = {
        "xstest_agreement": compare_with_annotators(rows, labels),
        "xstest_rates": compare_refusal_shares(rows, labels),
        "xstest_types": compare_by_type(rows, whole["label"]),
        "xstest_confusion": count_kinds(rows, whole),
    }
    for name, frame in tables.items():
        store.write("tables", name, frame=frame, meta=meta)
    return tables


def _cut_answers(answers: pd.Series) -> list[str]:
    """Cut answers where the pipeline would, by the tokens of a default model."""
    source = loading.resolve_model(registry.list_default_models()[0])
    tokenizer = loading.load_model(source).tokenizer
    encoded = tokenizer(answers.tolist(), add_special_tokens=False)["input_ids"]
    begun = [ids[:_CUT_TOKENS] for ids in encoded]
    texts = tokenizer.batch_decode(begun, skip_special_tokens=True)
    return [text.strip() for text in texts]


def _label_in_all_ways(
    rows: pd.DataFrame, short: Sequence[str], whole: pd.Series
) -> dict[str, Sequence[str] | np.ndarray]:
    """Return the labels of this project's labellers, by what they were given."""
    answers = rows["completion"]
    reasons = ["stop"] * len(rows)
    label = labelling.label_responses
    ours = labelling.LABELLER
    cut = f"cut at {_CUT_TOKENS} tokens"
    by_cues = refusals.label_by_cues(answers, reasons)
    labels = {
        f"{ours}, whole answers": whole,
        f"{ours}, {cut}": label(short, reasons, rows["prompt"])["label"],
        f"{ours}, without the request": label(answers, reasons)["label"],
        f"{refusals.CUES_VERSION}, whole answers": by_cues["label"],
    }
    for what, texts in (("whole answers", answers), (cut, short)):
        refused = has_substring(texts)
        labels[f"substrings, {what}"] = np.where(refused, "reject", "accept")
    return labels


def estimate_agreement(
    clusters: ClusterBootstrap,
    cluster_ids: ArrayLike,
    found: ArrayLike,
    wanted: ArrayLike,
) -> dict[str, Estimate]:
    """Estimate accuracy, precision, recall and Cohen's kappa of decisions, yes or no.

    Parameters
    ----------
    clusters : ClusterBootstrap
    cluster_ids : array, shape (n,)
        The cluster of each decision.
    found, wanted : array of bool, shape (n,)
        The decisions, and what they should be.

    Returns
    -------
    dict of str to Estimate
        What is undefined is NaN. Kappa has no interval if resampling shows no spread.
    """
    ids = np.asarray(cluster_ids, object)
    found = np.asarray(found, bool)
    wanted = np.asarray(wanted, bool)
    kappa = estimate_kappa(clusters, ids, found, wanted)
    if len(set(kappa.draws[np.isfinite(kappa.draws)])) < 2:
        kappa = Estimate(kappa.value, np.nan, np.nan, kappa.draws)
    return {
        "accuracy": clusters.share(ids, found == wanted),
        "precision": clusters.share(ids[found], wanted[found]),
        "recall": clusters.share(ids[wanted], found[wanted]),
        "kappa": kappa,
    }
