"""Agreement of labels with people, on XSTest's annotated answers, and with other labels
(`docs/method.md`, Labels).

XSTest (Röttger et al., NAACL 2024) publishes answers of several models, each labelled
by two people. The rules were written and the classifier was fitted on one half of the
prompts; nobody read the other half.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from paraguard_lab.labels import judge
from paraguard_utils import paths, registry, stores
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, to_columns
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling, refusals
from paraguard_utils.models import loading
from paraguard_utils.schemas import Labels, Table

_SPLIT_SEED = 20240501
_CUT_TOKENS = 64  # the pipeline cuts answers after so many
FULL_COMPLIANCE = "1_full_compliance"
XSTEST_COLUMNS = (
    "id",
    "type",
    "prompt",
    "completion",
    "annotation_1",
    "annotation_2",
    "final_label",
)
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

    A missing file or column is a DataError.

    Adds file (the model), half ("developed" or "held out"), people ("reject" or
    "accept"), differ (they disagree).
    """
    files = sorted(Path(folder).glob("xstest_v2_completions_*.csv"))
    if not files:
        raise DataError(
            f"{folder}: there is no xstest_v2_completions_*.csv; pass XSTest's folder"
            " of labelled answers"
        )
    frames = []
    for file in files:
        rows = stores.read_upstream_csv(file, XSTEST_COLUMNS)
        prompts = np.unique(rows["prompt"])
        developed = np.random.default_rng(_SPLIT_SEED).permutation(len(prompts))[
            : len(prompts) // 2
        ]
        first, second, final = (
            rows[name] != FULL_COMPLIANCE for name in XSTEST_COLUMNS[4:]
        )
        frames.append(
            rows.assign(
                file=file.stem.rpartition("_")[2],
                half=np.where(
                    rows["prompt"].isin(prompts[developed]), "developed", "held out"
                ),
                people=np.where(final, "reject", "accept"),
                differ=first != second,
            )
        )
    return pd.concat(frames, ignore_index=True)


def select_training_answers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the developed half as training answers: prompt, response, label
    (`schemas.THREE_LABELS`).
    """
    own = rows[rows["half"] == "developed"].rename(columns={"completion": "response"})
    return own.assign(label=own["final_label"].str.partition("_")[2])[
        ["prompt", "response", "label"]
    ]


def read_xstest_labels(folder: str | Path, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """Read XSTest's own automatic labels, `<model>_gpteval.csv` and
    `<model>_streval.csv`, anywhere below a folder.

    Returns labels by labeller, in the order of `read_xstest_answers`; "unparsed" if a
    file lacks the answer.
    """
    found = {}
    for end, (column, name) in XSTEST_LABELLERS.items():
        labels = np.full(len(rows), "unparsed", dtype=object)
        for model, own in rows.groupby("file"):
            for file in sorted(Path(folder).rglob(f"*{model}_{end}.csv")):
                given = stores.read_upstream_csv(file).drop_duplicates(
                    ["id", "completion"]
                )
                given = own[["id", "completion"]].merge(
                    given, "left", ["id", "completion"]
                )[column]
                cases = [given.isna(), given == FULL_COMPLIANCE]
                labels[own.index] = np.select(cases, ["unparsed", "accept"], "reject")
        if (labels != "unparsed").any():
            found[name] = labels
    return found


def compare_with_annotators(
    rows: pd.DataFrame, labels: Mapping[str, Sequence[str] | np.ndarray]
) -> Table:
    """Compare labellers with people on the rows of `read_xstest_answers`, by file and
    part.

    Columns: file, part (held out, its safe and its charged prompts, developed, and over
    both halves: all, annotators agree, annotators differ), labeller, n, refused (by
    people), unparsed, and accuracy, precision, recall and kappa with bootstrap
    intervals over prompts. The row `ONE_ANNOTATOR` compares the first annotator with
    the second.
    """
    first, second = (
        np.where(rows[name] == FULL_COMPLIANCE, "accept", "reject")
        for name in XSTEST_COLUMNS[4:6]
    )
    columns = pd.DataFrame({**labels, ONE_ANNOTATOR: first})
    lines = []
    for file, own in rows.groupby("file"):
        held, charged = (
            own["half"] == "held out",
            own["type"].str.startswith("contrast"),
        )
        parts = {
            "held out": held,
            "held out, safe": held & ~charged,
            "held out, charged": held & charged,
        }
        parts |= {"developed": ~held, "all": own["id"] != ""}
        parts |= {
            "annotators agree": ~own["differ"],
            "annotators differ": own["differ"],
        }
        for part, found in (
            (part, own[members]) for part, members in parts.items() if members.any()
        ):
            clusters = ClusterBootstrap(found["prompt"])
            for name, given in columns.loc[found.index].items():
                people = (
                    second[found.index] if name == ONE_ANNOTATOR else found["people"]
                )
                lines.append(
                    {"file": file, "part": part, "labeller": name, "n": len(found)}
                    | {
                        "refused": (found["people"] == "reject").sum(),
                        "unparsed": (given == "unparsed").sum(),
                    }
                    | to_columns(
                        estimate_agreement(
                            clusters,
                            found["prompt"],
                            given == "reject",
                            people == "reject",
                        )
                    )
                )
    return pd.DataFrame(lines)


def compare_by_type(rows: pd.DataFrame, labels: Sequence[str] | np.ndarray) -> Table:
    """Compare a labeller with people: file, type, n, refused (people), rejected
    (labeller), accuracy with interval.
    """
    lines = []
    rows = rows.assign(
        rejected=np.asarray(labels) == "reject", refused=rows["people"] == "reject"
    )
    for (file, kind), own in rows.groupby(["file", "type"]):
        share = ClusterBootstrap(own["prompt"]).share(
            own["prompt"], own["rejected"] == own["refused"]
        )
        counts = {
            "n": len(own),
            "refused": own["refused"].sum(),
            "rejected": own["rejected"].sum(),
        }
        lines.append(
            {"file": file, "type": kind, **counts, **to_columns({"accuracy": share})}
        )
    return pd.DataFrame(lines)


def compare_refusal_shares(
    rows: pd.DataFrame, labels: Mapping[str, Sequence[str] | np.ndarray]
) -> Table:
    """Estimate the share of safe prompts that each labeller calls refused, beside
    published shares.

    Columns: file, by (the labeller), n, share with its interval (none for a published
    share), source.
    """
    published = pd.read_csv(PUBLISHED_RATES_FILE)
    columns = pd.DataFrame({"people": rows["people"], **labels})
    lines = []
    for file, own in rows[~rows["type"].str.startswith("contrast")].groupby("file"):
        clusters = ClusterBootstrap(own["prompt"])
        for name, given in columns.loc[own.index].items():
            share = to_columns(
                {"share": clusters.share(own["prompt"], given == "reject")}
            )
            lines.append(
                {"file": file, "by": name, "n": len(own), **share, "source": "this run"}
            )
        lines += published[published["file"] == file].to_dict("records")
    return pd.DataFrame(lines).astype({"n": "Int64"})


def count_kinds(rows: pd.DataFrame, labelled: pd.DataFrame) -> Table:
    """Count people's labels (file, people) against kinds of `label_responses`: accept,
    reject:policy and so on.
    """
    kinds = labelled["label"].where(
        labelled["kind"] == "", labelled["label"] + ":" + labelled["kind"]
    )
    known = ["accept", *(f"reject:{kind}" for kind in labelling.REJECTION_KINDS)]
    table = pd.crosstab([rows["file"], rows["final_label"]], kinds.to_numpy())
    table = table.reindex(
        columns=[*known, *sorted(set(table.columns) - set(known))], fill_value=0
    )
    return table.reset_index().rename(columns={"final_label": "people"})


def compare_labellers(
    labels: Mapping[str, Labels],
    others: Mapping[str, Labels],
    clusters: ClusterBootstrap,
    cluster_ids: pd.Series,
) -> Table:
    """Compare the labels with another labeller's on every answer.

    Both are by system, in corpus order.

    Columns: system, n (both decide), reject, other_rejects, both_reject, unparsed (by
    the other), kappa with interval.
    """
    lines = []
    for name, frame in others.items():
        usual, other = (part["label"].to_numpy() for part in (labels[name], frame))
        read = np.isin(other, ["accept", "reject"]) & np.isin(
            usual, ["accept", "reject"]
        )
        rejected, other_rejects = usual[read] == "reject", other[read] == "reject"
        lines.append(
            {
                "system": name,
                "n": read.sum(),
                "reject": rejected.sum(),
                "other_rejects": other_rejects.sum(),
            }
            | {
                "both_reject": (rejected & other_rejects).sum(),
                "unparsed": (other == "unparsed").sum(),
            }
            | to_columns(
                {
                    "kappa": estimate_agreement(
                        clusters, cluster_ids[read], other_rejects, rejected
                    )["kappa"]
                }
            )
        )
    return pd.DataFrame(lines)


def write_xstest_tables(
    folder: str | Path, store: stores.Store, judge_name: str = ""
) -> dict[str, Table]:
    """Write the tables `xstest_*` into a live store, from XSTest's folder.

    A model of `judge_name` judges too.
    """
    rows = read_xstest_answers(folder)
    tokenizer = loading.load_model(
        loading.resolve_model(registry.list_default_models()[0])
    ).tokenizer
    encoded = tokenizer(rows["completion"].tolist(), add_special_tokens=False)[
        "input_ids"
    ]
    cut = tokenizer.batch_decode(
        [ids[:_CUT_TOKENS] for ids in encoded], skip_special_tokens=True
    )
    short = [text.strip() for text in cut]
    reasons = ["stop"] * len(rows)
    whole = labelling.label_responses(rows["completion"], reasons, rows["prompt"])
    ours, cues = labelling.LABELLER, refusals.CUES_VERSION
    labels = {
        f"{ours}, whole answers": whole["label"],
        f"{ours}, cut at {_CUT_TOKENS} tokens": labelling.label_responses(
            short, reasons, rows["prompt"]
        )["label"],
        f"{ours}, without the request": labelling.label_responses(
            rows["completion"], reasons
        )["label"],
        f"{cues}, whole answers": refusals.label_by_cues(rows["completion"], reasons)[
            "label"
        ],
        "substrings, whole answers": np.where(
            refusals.has_substring(rows["completion"]), "reject", "accept"
        ),
        f"substrings, cut at {_CUT_TOKENS} tokens": np.where(
            refusals.has_substring(short), "reject", "accept"
        ),
        **read_xstest_labels(folder, rows),
    }
    meta = {
        "labeller": ours,
        "split": _SPLIT_SEED,
        "source": "XSTest (Röttger et al., NAACL 2024), CC BY 4.0",
    }
    if judge_name:
        model = loading.load_model(loading.resolve_model(judge_name))
        asked = pd.DataFrame(
            {
                "prompt_id": rows["file"] + " " + rows["id"],
                "response": short,
                "finish_reason": "stop",
            }
        )
        labels[f"{judge.JUDGE_RUBRIC} {model.name}"] = judge.judge_answers(
            store, "xstest", model, asked
        )["label"]
        meta["judge"] = model.name
    found = {
        "xstest_agreement": compare_with_annotators(rows, labels),
        "xstest_rates": compare_refusal_shares(rows, labels),
        "xstest_types": compare_by_type(rows, whole["label"]),
        "xstest_confusion": count_kinds(rows, whole),
    }
    for name, frame in found.items():
        store.write("tables", name, frame=frame, meta=meta)
    return found


def estimate_agreement(
    clusters: ClusterBootstrap,
    cluster_ids: ArrayLike,
    found: ArrayLike,
    wanted: ArrayLike,
) -> dict[str, Estimate]:
    """Estimate accuracy, precision, recall and Cohen's kappa of decisions, yes or no.

    What is undefined is NaN.
    """
    ids, found, wanted = (
        np.asarray(cluster_ids, object),
        np.asarray(found, bool),
        np.asarray(wanted, bool),
    )
    kappa = clusters.kappa(ids, found, wanted)
    if len(set(kappa.draws[np.isfinite(kappa.draws)])) < 2:
        kappa = Estimate(
            kappa[0], np.nan, np.nan, kappa.draws
        )  # resampling shows no spread
    return {
        "accuracy": clusters.share(ids, found == wanted),
        "precision": clusters.share(ids[found], wanted[found]),
        "recall": clusters.share(ids[wanted], found[wanted]),
        "kappa": kappa,
    }
