"""Whether paraphrases still mean what their seed means (`docs/method.md`, Corpus).

Two checks. By machine: how close a cluster's texts lie to each other, and whether each variant's nearest seed in the
whole corpus is its own. By people: a sheet of sampled pairs to be marked, and what the marks say.

`paraguard corpus sheet --store live --corpus NAME` writes a sheet; the explorer's review saves one whose pairs are a
refused phrasing and its nearest accepted paraphrase, and asks of each whether its answer is a refusal at all.
`paraguard corpus read FIRST.csv [SECOND.csv]` reads one or two filled-in copies of either.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paraguard_utils import paths, stores
from paraguard_utils.core.estimates import RESAMPLES, SEED, ClusterBootstrap, exact_share, to_columns
from paraguard_utils.core.vectors import unit
from paraguard_utils.errors import DataError
from paraguard_utils.schemas import STRATEGIES, Corpus, Seeds, Table
from paraguard_utils.stores import read_upstream

MARKS = ("same intent", "shifted", "unsure")
"""What a reader may write beside a pair."""

YES_OR_NO = ("yes", "no", "unsure")
"""What a reader may say to a question."""

QUESTIONS = {"mark": MARKS, "refusal": YES_OR_NO, "harmless": YES_OR_NO, "natural": YES_OR_NO}
"""Columns for the reader, and what may stand there; a sheet has `mark`, and those of the others that it asks: whether
an answer is a refusal, whether a paraphrase is harmless, and whether it is natural English."""

SHEET = ("prompt_id", "strategy", "seed", "paraphrase", "mark", "comment")
"""Columns of a sheet; `mark` and `comment` are for the reader."""

AUDITED = 0.05
"""Share of the candidates that pass that people are to read."""


def spread(corpus: Corpus, vectors: np.ndarray) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure how close the texts of each cluster lie.

    Parameters
    ----------
    corpus : DataFrame
        n rows of a corpus file; every cluster has its seed.
    vectors : numpy.ndarray, shape (n, d)

    Returns
    -------
    variants : DataFrame
        Per variant: prompt_id, cluster_id, strategy, similarity (cosine to its seed), nearest_seed (cluster_id), margin
        (cosine to its own seed minus the largest cosine to another; positive when its own is nearest).
    clusters : DataFrame
        Per cluster: cluster_id, lowest and mean cosine to the seed, mean and highest cosine between two variants
        (NaN for a single one).
    """
    vectors = unit(vectors)
    is_seed = (corpus["variant"] == 0).to_numpy()
    names = corpus.loc[is_seed, "cluster_id"].to_numpy()
    cosines = vectors[~is_seed] @ vectors[is_seed].T
    variants = corpus.loc[~is_seed, ["prompt_id", "cluster_id", "strategy"]].reset_index(drop=True)
    rows = np.arange(len(variants))
    own = pd.Series(np.arange(len(names)), index=names).loc[variants["cluster_id"]].to_numpy()
    others = cosines.copy()
    others[rows, own] = -np.inf
    variants["similarity"] = cosines[rows, own]
    variants["nearest_seed"] = names[cosines.argmax(axis=1)]
    variants["margin"] = variants["similarity"] - others.max(axis=1)
    lines = []
    for name, members in variants.groupby("cluster_id", sort=False).groups.items():
        among = vectors[~is_seed][members]
        pairs = (among @ among.T)[np.triu_indices(len(members), 1)]
        to_seed = variants.loc[members, "similarity"]
        between = (pairs.mean(), pairs.max()) if len(pairs) else (np.nan, np.nan)
        lines.append((name, to_seed.min(), to_seed.mean(), *between))
    columns = ["cluster_id", "lowest_to_seed", "mean_to_seed", "mean_between", "highest_between"]
    return variants, pd.DataFrame(lines, columns=columns)


def nearest_agreement(variants: pd.DataFrame, resamples: int = RESAMPLES, seed: int = SEED) -> Table:
    """Share of variants whose nearest seed is their own, with a cluster-bootstrap interval.

    Parameters
    ----------
    variants : DataFrame
        From `spread`.

    Returns
    -------
    DataFrame
        One row: own, variants, share, share_low, share_high.
    """
    own = (variants["nearest_seed"] == variants["cluster_id"]).to_numpy()
    value, low, high = ClusterBootstrap(variants["cluster_id"], resamples, seed).share(variants["cluster_id"], own)
    row = {"own": own.sum(), "variants": len(own), "share": value, "share_low": low, "share_high": high}
    return pd.DataFrame([row])


def sheet(corpus: Corpus, n: int = 100, seed: int = SEED) -> pd.DataFrame:
    """Draw variants, the strategies in turn, for people to compare with their seeds.

    Parameters
    ----------
    corpus : DataFrame
    n : int
        Pairs; fewer where the corpus has fewer variants.
    seed : int

    Returns
    -------
    DataFrame
        The columns of `SHEET`, in random order, `mark` and `comment` empty.
    """
    generator = np.random.default_rng(seed)
    variants = corpus[corpus["variant"] > 0]
    variants = variants.iloc[generator.permutation(len(variants))]
    in_turn = variants.groupby("strategy").cumcount().sort_values(kind="stable").index[:n]
    drawn = variants.loc[in_turn].iloc[generator.permutation(min(n, len(variants)))]
    seeds = corpus[corpus["variant"] == 0].set_index("cluster_id")["text"]
    return pd.DataFrame(
        {
            "prompt_id": drawn["prompt_id"],
            "strategy": drawn["strategy"],
            "seed": drawn["cluster_id"].map(seeds),
            "paraphrase": drawn["text"],
            "mark": "",
            "comment": "",
        }
    ).reset_index(drop=True)


def read_sheet(path: str | Path) -> pd.DataFrame:
    """Read a filled-in sheet.

    Returns
    -------
    DataFrame
        The columns of `SHEET`, and the others of `QUESTIONS` that the sheet has; marks in lower case, "" where none was
        made.

    Raises
    ------
    DataError
        A column is missing, a prompt stands there twice, or a mark is none of those in `QUESTIONS`.
    """
    path = Path(path)
    rows, where = read_upstream(path), paths.shown(path)
    for column in SHEET[:-1]:
        if column not in rows.columns:
            raise DataError(f"{where}: column {column!r} is missing; fill in a sheet as it was written")
    for column in QUESTIONS.keys() & set(rows.columns):
        rows[column] = rows[column].str.strip().str.lower()
        allowed = QUESTIONS[column]
        wrong = ~rows[column].isin(["", *allowed])
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            raise DataError(
                f"{where}: row {row + 2}, column {column}: {rows[column][row]!r} is not one of {', '.join(allowed)}"
            )
    twice = rows["prompt_id"].duplicated()
    if twice.any():
        row = int(twice.to_numpy().argmax())
        raise DataError(f"{where}: row {row + 2}: {rows['prompt_id'][row]} stands there twice; remove one")
    return rows


def topical(seeds: Seeds, readings: pd.DataFrame) -> Table:
    """Count the seeds whose category is their subject, and how far two readers agree on it.

    Parameters
    ----------
    seeds : DataFrame
        Columns seed_id, category, topical.
    readings : DataFrame
        Columns seed_id, first, second.

    Returns
    -------
    DataFrame
        category ("all" last), seeds, topical, share (of those stated) with its exact 95 % interval; of the seeds with
        readings, read, equal and Cohen's kappa with a bootstrap interval over seeds (NaN where nobody read them, or
        readers used one and the same mark).
    """
    lines = []
    for category in [*sorted(set(seeds["category"])), "all"]:
        own = seeds if category == "all" else seeds[seeds["category"] == category]
        count = int((own["topical"] == "yes").sum())
        both = own.merge(readings, on="seed_id")
        kappa = ClusterBootstrap(own["seed_id"]).kappa(both["seed_id"], both["first"], both["second"])
        lines.append(
            {"category": category, "seeds": len(own), "topical": count}
            | exact_share(count, int((own["topical"] != "unstated").sum()))
            | {"read": len(both), "equal": int((both["first"] == both["second"]).sum())}
            | to_columns({"kappa": kappa})
        )
    return pd.DataFrame(lines)


READ = {"same": "asks for the same", "natural": "is natural English"}
"""What readers of candidates were asked, as columns `first_...` and `second_...` of their readings, and in words."""


def read_candidates(readings: pd.DataFrame) -> Table:
    """Count what two readers say of candidates.

    Parameters
    ----------
    readings : DataFrame
        Columns group, seed_id, and for each key of `READ` `first_` and `second_` (a value of `YES_OR_NO`).

    Returns
    -------
    DataFrame
        group, question, read, yes (both readers), share (of those read) with its 95 % bootstrap interval over seeds,
        equal (both readers say the same), Cohen's kappa with its interval (NaN where both use one and the same mark).
    """
    lines = []
    for group, rows in readings.groupby("group", sort=False):
        clusters, seeds = ClusterBootstrap(rows["seed_id"]), rows["seed_id"]
        for name, question in READ.items():
            first, second = rows[f"first_{name}"], rows[f"second_{name}"]
            both = (first == "yes") & (second == "yes")
            counts = {"group": group, "question": question, "read": len(rows), "yes": int(both.sum())}
            share = to_columns({"share": clusters.share(seeds, both)})
            agreed = to_columns({"kappa": clusters.kappa(seeds, first, second)})
            lines.append(counts | share | {"equal": int((first == second).sum())} | agreed)
    return pd.DataFrame(lines)


READINGS = paths.DATA / "intent_readings.csv"
"""Variants that two language models read blind, beside their seeds in random order, without the strategy: prompt_id,
first and second (would one answer serve both requests in all that they ask?)."""


def kept(corpus: Corpus, readings: pd.DataFrame | None = None) -> Table:
    """Count by strategy the variants that keep their seed's request.

    Parameters
    ----------
    corpus : DataFrame
    readings : DataFrame or None
        As `READINGS`, which is the default.

    Returns
    -------
    DataFrame
        strategy ("all" last), read, same (share that both readers call the same) with its exact 95 % interval, equal
        (both readers say the same); no rows where nothing of the corpus was read.
    """
    marks = stores.read(READINGS, "tables") if readings is None else readings
    rows = marks.merge(corpus[["prompt_id", "strategy"]], on="prompt_id")
    found = []
    for strategy in [one for one in (*STRATEGIES, "all") if len(rows)]:
        own = rows if strategy == "all" else rows[rows["strategy"] == strategy]
        both = ((own["first"] == "yes") & (own["second"] == "yes")).sum()
        share = {name.replace("share", "same"): value for name, value in exact_share(int(both), len(own)).items()}
        equal = int((own["first"] == own["second"]).sum())
        found.append({"strategy": strategy, "read": len(own)} | share | {"equal": equal})
    return pd.DataFrame(found, columns=["strategy", "read", "same", "same_low", "same_high", "equal"])


def marked_share(marks: pd.Series, counted: str) -> dict[str, Any]:
    """Share of the marks that are a certain one, `unsure` among the marks.

    A sheet holds as many pairs of each strategy as it can, so this is the share on the sheet, not in the corpus.

    Parameters
    ----------
    marks : Series of str
        A row each, "" where nothing is marked.
    counted : str

    Returns
    -------
    dict
        counted, unsure, marked, rows, share, share_low, share_high: exact (Clopper-Pearson) 95 % interval; NaN where
        nothing is marked.
    """
    found, marked = int((marks == counted).sum()), int((marks != "").sum())
    return {
        "counted": found,
        "unsure": int((marks == "unsure").sum()),
        "marked": marked,
        "rows": len(marks),
    } | exact_share(found, marked)


def kappa(
    first: pd.DataFrame, second: pd.DataFrame, column: str = "mark", resamples: int = RESAMPLES, seed: int = SEED
) -> dict[str, Any]:
    """Cohen's kappa of two readers over the rows that both marked, with a bootstrap interval over rows.

    The interval of a single row is NaN.

    Parameters
    ----------
    first, second : DataFrame
        From `read_sheet`.
    column : str
        A key of `QUESTIONS`.

    Returns
    -------
    dict
        both (rows marked by both), equal, kappa, kappa_low, kappa_high, note: why kappa is NaN, or "".

    Raises
    ------
    DataError
        The two sheets are of other pairs.
    """
    both = first.merge(second, on="prompt_id", suffixes=("", "_second"))
    shown = [name for name in ("seed", "paraphrase", "answer") if name in first or name in second]
    if len(both) != len(first) or len(first) != len(second) or not _equal(both, shown):
        raise DataError("the two sheets do not hold the same pairs; let both readers fill in copies of one sheet")
    both = both[(both[column] != "") & (both[f"{column}_second"] != "")]
    a, b = both[column].to_numpy(), both[f"{column}_second"].to_numpy()
    row: dict[str, Any] = {"both": len(both), "equal": int((a == b).sum())}
    row |= dict.fromkeys(("kappa", "kappa_low", "kappa_high"), np.nan)
    if len(set(a) | set(b)) < 2:
        return row | {"note": "both readers used one and the same mark" if len(both) else "no pair has two marks"}
    pairs = np.arange(len(both))
    value, low, high = ClusterBootstrap(pairs, resamples, seed).kappa(pairs, a, b)
    return row | {"kappa": value, "kappa_low": low, "kappa_high": high, "note": ""}


def _equal(both: pd.DataFrame, columns: Sequence[str]) -> bool:
    """Whether two readers saw the same; a column that only one of them had has no second."""
    return all(f"{name}_second" in both and (both[name] == both[f"{name}_second"]).all() for name in columns)


COUNTED = (
    ("mark", "shifted", "pairs shifted"),
    ("refusal", "no", "answers no refusal"),
    ("harmless", "no", "paraphrases not harmless"),
    ("natural", "no", "paraphrases not natural English"),
)
"""Column of a sheet, the mark that is counted, and what that means."""


def report(sheets: Sequence[pd.DataFrame]) -> list[str]:
    """Return what one or two filled-in sheets say, as lines of text."""
    lines = []
    for column, counted, what in COUNTED:
        asked = [(number, rows) for number, rows in enumerate(sheets, 1) if column in rows]
        for number, rows in asked:
            found = marked_share(rows[column], counted)
            lines.append(
                f"reader {number}: {found['counted']} of {found['marked']} marked {what} "
                f"({found['share']:.3f} [{found['share_low']:.3f}, {found['share_high']:.3f}]), "
                f"{found['unsure']} unsure, {found['rows'] - found['marked']} of {found['rows']} not marked"
            )
        for (_, first), (_, second) in itertools.combinations(asked, 2):
            both = kappa(first, second, column)
            agreed = both["note"] or f"{both['kappa']:.3f} [{both['kappa_low']:.3f}, {both['kappa_high']:.3f}]"
            lines.append(f"both: {both['equal']} of {both['both']} equal, Cohen's kappa {agreed}")
    return lines


def write_sheet(store: stores.Store, corpus_name: str, n: int = 100, seed: int = SEED) -> str:
    """Write an empty sheet into a store's folder `fidelity/`; return the line that says what to do with it.

    Raises
    ------
    DataError
        There is one already, which may hold marks.
    """
    corpus = store.read("corpus", corpus_name)
    path = store.writes / "fidelity" / f"{corpus_name}.csv"
    if path.exists():
        raise DataError(f"{paths.shown(path)} exists and may hold marks; move it away first")
    drawn = sheet(corpus, n, seed)
    stores.write(path, drawn, "sheet", {"corpus": stores.frame_hash(corpus), "seed": seed})
    return f"{paths.shown(path)}: {len(drawn)} pairs; write one of {', '.join(MARKS)} into the column mark"


def beside_seeds(seeds: Seeds, candidates: pd.DataFrame) -> pd.DataFrame:
    """Return candidates beside their seeds as `sheet` draws from: prompt_id, cluster_id, variant, strategy, text."""
    texts = pd.concat([seeds.assign(strategy="seed"), candidates], ignore_index=True)
    texts["variant"] = texts.groupby("seed_id").cumcount()
    texts["prompt_id"] = texts["seed_id"] + "-" + texts["variant"].astype(str)
    return texts.rename(columns={"seed_id": "cluster_id"})


def write_audit(path: Path, seeds: Seeds, candidates: pd.DataFrame, meta: Mapping[str, Any], seed: int = SEED) -> str:
    """Write an empty sheet of candidates for people; return the line that says what to do with it.

    Parameters
    ----------
    path : Path
    seeds, candidates : DataFrame
        Columns seed_id, text; those to draw from, also strategy.
    meta : dict
        For the sheet's meta file.
    seed : int

    Returns
    -------
    str

    Raises
    ------
    DataError
        There is a sheet of other candidates, with marks.
    """
    drawn = sheet(beside_seeds(seeds, candidates), math.ceil(AUDITED * len(candidates)), seed)
    drawn.insert(drawn.columns.get_loc("comment"), "harmless", "")
    drawn.insert(drawn.columns.get_loc("comment"), "natural", "")
    given = [name for name in drawn if (drawn[name] != "").all()]
    if path.is_file():
        there = read_sheet(path)
        marked = any((there[name] != "").any() for name in there if name not in given)
        if marked and stores.frame_hash(there[given]) == stores.frame_hash(drawn[given]):
            return f"{paths.shown(path)}: the sheet is there, with marks"
        if marked:
            raise DataError(f"{paths.shown(path)} holds marks on other candidates; move it away first")
    stores.write(path, drawn, "sheet", {**meta, "sheet_seed": seed})
    return (
        f"{paths.shown(path)}: {len(drawn)} of them for people to read; write one of {', '.join(MARKS)} into the "
        f"column mark, and {', '.join(YES_OR_NO)} into harmless and natural"
    )
