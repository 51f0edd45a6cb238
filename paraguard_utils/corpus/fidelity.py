"""Whether paraphrases still mean what their seed means (`docs/method.md`, Corpus).

A machine checks whether each variant's nearest seed in the whole corpus is its own.
People mark a sheet of sampled pairs (`paraguard corpus sheet`, `paraguard corpus
read`), or one that the explorer saves, whose pairs are a refused phrasing and its
nearest accepted paraphrase.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paraguard_utils import paths, stores, unsafe
from paraguard_utils.core.estimates import (
    SEED,
    ClusterBootstrap,
    exact_share,
    to_columns,
)
from paraguard_utils.core.vectors import normalize_rows
from paraguard_utils.core.words import split_words
from paraguard_utils.errors import DataError
from paraguard_utils.schemas import STRATEGIES, Corpus, Seeds, Table

INTENT_MARKS = (
    "same intent",
    "shifted",
    "unsure",
)  # what a reader may write beside a pair
YES_OR_NO = ("yes", "no", "unsure")
SHEET_QUESTIONS = {
    "mark": INTENT_MARKS,
    "refusal": YES_OR_NO,
    "harmless": YES_OR_NO,
    "natural": YES_OR_NO,
}
"""Columns for the reader, and what may stand there. Every sheet has `mark`; some also
ask whether an answer is a refusal, or a paraphrase harmless and natural English."""

SHEET_COLUMNS = (
    "prompt_id",
    "strategy",
    "seed",
    "paraphrase",
    "mark",
    "comment",
)  # `mark`, `comment`: the reader's

_FORM = (
    r"(?i)\b(?:i|i'm|i've|i'd|im|me|my|mine|we|us|our)\b",
    r"\?",
    r"[.!?]+",
    ",",
    "[\"“”']",
    "[-–—;:()]",
    "^[a-z]",
)
"""What is counted of a text's form: first person, question marks, sentences, other
marks, a lower-case start.
"""

AUDITED_SHARE = 0.05  # share of the passing candidates that people are to read


def measure_twin_auc(benign: Corpus, twins: Corpus) -> dict[str, float]:
    """Compute how far surface, brevity and form alone tell twins from their own
    clusters, as areas under the ROC curve.

    Keys: auc_risk, auc_brevity (fewer words), auc_form, of a logistic regression on the
    number of words and `_FORM` that scores each of ten folds by the others, and
    auc_letters, of one that counts characters too. 0.5: not at all.
    """
    from sklearn import (
        linear_model,
        metrics,
        model_selection,
        pipeline,
        preprocessing,
    )  # seconds to import

    pairs = pd.concat([benign, twins], ignore_index=True)
    harmful = np.arange(len(pairs)) >= len(benign)
    words = pairs["text"].map(lambda text: len(split_words(text)))
    form = np.column_stack(
        [words, *(pairs["text"].str.count(pattern) for pattern in _FORM)]
    ).astype(float)
    model = pipeline.make_pipeline(
        preprocessing.StandardScaler(), linear_model.LogisticRegression()
    )
    folds, groups = (
        model_selection.GroupKFold(10),
        unsafe.benign_cluster_of(pairs["cluster_id"]),
    )
    told = {"risk": pairs["risk"], "brevity": -words}
    for name, given in {
        "form": form,
        "letters": np.column_stack([form, pairs["text"].str.len()]),
    }.items():
        how = {"groups": groups, "cv": folds, "method": "predict_proba"}
        told[name] = model_selection.cross_val_predict(model, given, harmful, **how)[
            :, 1
        ]
    return {
        f"auc_{name}": float(metrics.roc_auc_score(harmful, by))
        for name, by in told.items()
    }


def measure_spread(corpus: Corpus, vectors: np.ndarray) -> pd.DataFrame:
    """Measure how close each variant lies to its seed and to others, from one vector a
    row of the corpus.

    Columns: prompt_id, cluster_id, strategy, similarity (cosine to its seed),
    nearest_seed (cluster_id), margin (cosine to its own seed minus the largest cosine
    to another; positive when its own is nearest).
    """
    vectors = normalize_rows(vectors)
    is_seed = (corpus["variant"] == 0).to_numpy()
    names = corpus.loc[is_seed, "cluster_id"].to_numpy()
    cosines = vectors[~is_seed] @ vectors[is_seed].T
    variants = corpus.loc[
        ~is_seed, ["prompt_id", "cluster_id", "strategy"]
    ].reset_index(drop=True)
    rows = np.arange(len(variants))
    own = pd.Index(names).get_indexer(variants["cluster_id"])
    others = cosines.copy()
    others[rows, own] = -np.inf
    variants["similarity"] = cosines[rows, own]
    variants["nearest_seed"] = names[cosines.argmax(axis=1)]
    return variants.assign(margin=variants["similarity"] - others.max(axis=1))


def nearest_seed_share(variants: pd.DataFrame) -> Table:
    """Return the share of variants nearest to their own seed: own, variants, share,
    share_low, share_high.
    """
    own = (variants["nearest_seed"] == variants["cluster_id"]).to_numpy()
    share = ClusterBootstrap(variants["cluster_id"]).share(variants["cluster_id"], own)
    return pd.DataFrame(
        [{"own": own.sum(), "variants": len(own)} | to_columns({"share": share})]
    )


def draw_sheet(corpus: Corpus, n: int = 100, seed: int = SEED) -> pd.DataFrame:
    """Draw n variants, or all, the strategies in turn: `SHEET_COLUMNS` in random order,
    `mark` and `comment` empty.
    """
    generator = np.random.default_rng(seed)
    variants = corpus[corpus["variant"] > 0]
    variants = variants.iloc[generator.permutation(len(variants))]
    in_turn = (
        variants.groupby("strategy").cumcount().sort_values(kind="stable").index[:n]
    )
    drawn = variants.loc[in_turn].iloc[generator.permutation(min(n, len(variants)))]
    seeds = corpus[corpus["variant"] == 0].set_index("cluster_id")["text"]
    drawn = drawn.assign(
        seed=drawn["cluster_id"].map(seeds),
        paraphrase=drawn["text"],
        mark="",
        comment="",
    )
    return drawn[list(SHEET_COLUMNS)].reset_index(drop=True)


def read_sheet(path: str | Path) -> pd.DataFrame:
    """Read a filled-in sheet, marks in lower case, "" where none was made.

    DataError where a column is missing, a prompt stands there twice, or a mark is not
    one of `SHEET_QUESTIONS`.
    """
    path = Path(path)
    rows = stores.read_upstream_csv(
        path, SHEET_COLUMNS[:-1], "fill in a sheet as it was written"
    )
    for column in SHEET_QUESTIONS.keys() & set(rows.columns):
        marks = SHEET_QUESTIONS[column]
        rows[column] = rows[column].str.strip().str.lower()
        stores.check_fields(
            path,
            rows[column],
            rows[column].isin(["", *marks]),
            f"is not one of {', '.join(marks)}",
        )
    if len(twice := rows.index[rows["prompt_id"].duplicated()]):
        where = f"{paths.display_path(path)}: row {twice[0] + 2}"
        raise DataError(
            f"{where}: {rows['prompt_id'][twice[0]]} stands there twice; remove one"
        )
    return rows


def count_topical_seeds(seeds: Seeds, interpretations: pd.DataFrame) -> Table:
    """Count the seeds whose category is their subject (column topical: "yes"), and how
    far two readers agree on it.

    Readings hold seed_id, first, second. Returns category ("all" last), seeds, topical,
    share (of those stated) with its exact 95 % interval; of the seeds with readings,
    read, equal and Cohen's kappa with a bootstrap interval over seeds (NaN where nobody
    read them, or readers used one and the same mark).
    """
    lines = []
    for category in [*sorted(set(seeds["category"])), "all"]:
        own = seeds if category == "all" else seeds[seeds["category"] == category]
        count = int((own["topical"] == "yes").sum())
        both = own.merge(interpretations, on="seed_id")
        kappa = ClusterBootstrap(own["seed_id"]).kappa(
            both["seed_id"], both["first"], both["second"]
        )
        lines.append(
            {"category": category, "seeds": len(own), "topical": count}
            | exact_share(count, int((own["topical"] != "unstated").sum()))
            | {"read": len(both), "equal": int((both["first"] == both["second"]).sum())}
            | to_columns({"kappa": kappa})
        )
    return pd.DataFrame(lines)


def count_candidate_interpretations(interpretations: pd.DataFrame) -> Table:
    """Count what two readers say of candidates, in the columns first_same, second_same,
    first_natural, second_natural.

    Returns group, question, read, yes (both readers), share (of those read) with its 95
    % bootstrap interval over seeds, equal (both readers say the same), Cohen's kappa
    with its interval (NaN where both use one mark only).
    """
    lines = []
    for group, rows in interpretations.groupby("group", sort=False):
        clusters, seeds = ClusterBootstrap(rows["seed_id"]), rows["seed_id"]
        for name, question in (
            ("same", "asks for the same"),
            ("natural", "is natural English"),
        ):
            first, second = rows[f"first_{name}"], rows[f"second_{name}"]
            both = (first == "yes") & (second == "yes")
            counts = {
                "group": group,
                "question": question,
                "read": len(rows),
                "yes": int(both.sum()),
            }
            share = to_columns({"share": clusters.share(seeds, both)})
            agreed = to_columns({"kappa": clusters.kappa(seeds, first, second)})
            lines.append(
                counts | share | {"equal": int((first == second).sum())} | agreed
            )
    return pd.DataFrame(lines)


def count_kept_intents(corpus: Corpus) -> Table:
    """Count by strategy the variants that keep their seed's request, as two language
    models say in a file.

    They read variants beside their seeds, in random order and without the strategy:
    would one answer serve both requests in all that they ask? Returns strategy ("all"
    last), read, same (share that both readers call the same) with its exact 95 %
    interval, equal (both readers say the same); no rows where nothing of the corpus was
    read.
    """
    marks = stores.read_file(paths.DATA / "intent_readings.csv", "tables")
    rows = marks.merge(corpus[["prompt_id", "strategy"]], on="prompt_id")
    found = []
    for strategy in (*STRATEGIES, "all") if len(rows) else ():
        own = rows if strategy == "all" else rows[rows["strategy"] == strategy]
        both = int(((own["first"] == "yes") & (own["second"] == "yes")).sum())
        equal = {"equal": int((own["first"] == own["second"]).sum())}
        found.append(
            {"strategy": strategy, "read": len(own)}
            | exact_share(both, len(own), "same")
            | equal
        )
    return pd.DataFrame(
        found, columns=["strategy", "read", "same", "same_low", "same_high", "equal"]
    )


def sheet_kappa(
    first: pd.DataFrame, second: pd.DataFrame, column: str = "mark"
) -> dict[str, Any]:
    """Compute Cohen's kappa of two filled-in sheets in one of `SHEET_QUESTIONS`, over
    rows that both marked.

    Returns both (rows marked by both), equal, kappa with its bootstrap interval over
    rows (NaN for a single one), note: why kappa is NaN, or "". Raise DataError where
    the sheets are of other pairs.
    """
    both = first.merge(second, on="prompt_id", suffixes=("", "_second"))
    shown = [
        name
        for name in ("seed", "paraphrase", "answer")
        if name in first or name in second
    ]
    # A column that only one of the readers saw has no second.
    same = all(
        f"{name}_second" in both and (both[name] == both[f"{name}_second"]).all()
        for name in shown
    )
    if len(both) != len(first) or len(first) != len(second) or not same:
        raise DataError(
            "the two sheets do not hold the same pairs; let both readers fill in copies"
            " of one sheet"
        )
    both = both[(both[column] != "") & (both[f"{column}_second"] != "")]
    a, b = both[column].to_numpy(), both[f"{column}_second"].to_numpy()
    kappa = (
        ClusterBootstrap(range(len(both))).kappa(range(len(both)), a, b)
        if len(both)
        else (np.nan,) * 3
    )
    alike = (
        "both readers used one and the same mark"
        if len(both)
        else "no pair has two marks"
    )
    note = "" if len(set(a) | set(b)) > 1 else alike
    return (
        {"both": len(both), "equal": int((a == b).sum())}
        | to_columns({"kappa": kappa})
        | {"note": note}
    )


# Column of a sheet, the mark that is counted, and how the report calls it
_REPORTED_MARKS = (
    ("mark", "shifted", "pairs shifted"),
    ("refusal", "no", "answers no refusal"),
    ("harmless", "no", "paraphrases not harmless"),
    ("natural", "no", "paraphrases not natural English"),
)


def describe_sheets(sheets: Sequence[pd.DataFrame]) -> list[str]:
    """Describe the marks on one or two filled-in sheets, and how far two readers agree,
    in lines of text.
    """
    lines = []
    for column, counted, what in _REPORTED_MARKS:
        asked = [
            (number, rows) for number, rows in enumerate(sheets, 1) if column in rows
        ]
        for number, rows in asked:
            marks = rows[column]
            found, unsure, marked = (
                int(hits.sum())
                for hits in (marks == counted, marks == "unsure", marks != "")
            )
            share, low, high = exact_share(found, marked).values()
            said = (
                f"{found} of {marked} marked {what} ({share:.3f} [{low:.3f},"
                f" {high:.3f}])"
            )
            left = f"{unsure} unsure, {len(marks) - marked} of {len(marks)} not marked"
            lines.append(f"reader {number}: {said}, {left}")
        for (_, first), (_, second) in itertools.combinations(asked, 2):
            both = sheet_kappa(first, second, column)
            agreed = (
                both["note"]
                or f"{both['kappa']:.3f} [{both['kappa_low']:.3f}, {both['kappa_high']:.3f}]"
            )
            lines.append(
                f"both: {both['equal']} of {both['both']} equal, Cohen's kappa {agreed}"
            )
    return lines


def write_sheet(store: stores.Store, corpus_name: str, n: int, seed: int) -> str:
    """Write an empty sheet into `fidelity/` and return what to do with it.

    DataError where there is one.
    """
    corpus = store.read("corpus", corpus_name)
    path = store.writes / "fidelity" / f"{corpus_name}.csv"
    where = paths.display_path(path)
    if path.exists():
        raise DataError(f"{where} exists and may hold marks; move it away first")
    drawn = draw_sheet(corpus, n, seed)
    stores.write_file(
        path, drawn, "sheet", {"corpus": stores.frame_hash(corpus), "seed": seed}
    )
    return (
        f"{where}: {len(drawn)} pairs; write one of {', '.join(INTENT_MARKS)} into the"
        " column mark"
    )


def pair_with_seeds(seeds: Seeds, candidates: pd.DataFrame) -> pd.DataFrame:
    """Put candidates beside their seeds, as `draw_sheet` takes them: prompt_id,
    cluster_id, variant, strategy, text.
    """
    texts = pd.concat([seeds.assign(strategy="seed"), candidates], ignore_index=True)
    texts["variant"] = texts.groupby("seed_id").cumcount()
    texts["prompt_id"] = texts["seed_id"] + "-" + texts["variant"].astype(str)
    return texts.rename(columns={"seed_id": "cluster_id"})


def write_audit_sheet(
    path: Path, seeds: Seeds, candidates: pd.DataFrame, meta: Mapping[str, Any]
) -> str:
    """Write an empty sheet of a share `AUDITED_SHARE` of the candidates.

    Return the line that says what to do with it.

    Raise DataError where a sheet of other candidates is there and has marks.
    """
    where = paths.display_path(path)
    drawn = draw_sheet(
        pair_with_seeds(seeds, candidates), math.ceil(AUDITED_SHARE * len(candidates))
    )
    drawn = drawn.assign(harmless="", natural="", comment=drawn.pop("comment"))
    given = [name for name in drawn if (drawn[name] != "").all()]
    if path.is_file():
        there = read_sheet(path)
        marked = any((there[name] != "").any() for name in there if name not in given)
        if marked and stores.frame_hash(there[given]) == stores.frame_hash(
            drawn[given]
        ):
            return f"{where}: the sheet is there, with marks"
        if marked:
            raise DataError(
                f"{where} holds marks on other candidates; move it away first"
            )
    stores.write_file(path, drawn, "sheet", {**meta, "sheet_seed": SEED})
    marks, answers = ", ".join(INTENT_MARKS), ", ".join(YES_OR_NO)
    how = (
        f"write one of {marks} into the column mark, and {answers} into harmless and"
        " natural"
    )
    return f"{where}: {len(drawn)} of them for people to read; {how}"
