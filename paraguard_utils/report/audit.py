"""Anybody's decisions, audited: `paraguard audit` (`docs/method.md`, Disagreement). No model of ours is needed."""

import base64
import html
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import union_categoricals
from pyarrow import csv
from tqdm import tqdm

from paraguard_utils import stores
from paraguard_utils.core import disagreement, neighbours
from paraguard_utils.core.decisions import LABELS, as_refused
from paraguard_utils.core.estimates import MIN_MIXED, RESAMPLES, SEED, Estimate, to_columns
from paraguard_utils.errors import DataError
from paraguard_utils.report import tables
from paraguard_utils.schemas import Table
from paraguard_utils.text import formula_safe

BLOCK = 1 << 24
"""Bytes read at a time."""

SHOWN = 200
"""Refusals, and clusters, that are listed."""

FIRST, PART = 256, 4096
"""Texts embedded before the time is told, and in each part after that: what a kill can lose."""

ONLY = "all rows"
"""The system of a file without a column for it."""

TEXT, DECISION, CLUSTER, SYSTEM = "text", "decision", "cluster", "system"


class Columns(NamedTuple):
    """How a file names its columns, and which of its decisions are rejections.

    Attributes
    ----------
    text, decision, cluster, system : str
    rejects : tuple of str
        Decisions that count as rejections, all others being acceptances. Empty: the file says accept or reject.
    """

    text: str = TEXT
    decision: str = DECISION
    cluster: str = CLUSTER
    system: str = SYSTEM
    rejects: tuple[str, ...] = ()


USUAL = Columns()


class Decisions(NamedTuple):
    """A file of decisions.

    Attributes
    ----------
    rows : DataFrame
        row (0 is the first below the header), system, cluster (missing without that column), label.
    file : Path
    columns : Columns
    """

    rows: pd.DataFrame
    file: Path
    columns: Columns

    @property
    def clustered(self) -> bool:
        """Whether the file tells clusters."""
        return "cluster" in self.rows


def read(file: Path, columns: Columns = USUAL) -> Decisions:
    """Read a CSV file of decisions, its texts left out.

    Parameters
    ----------
    file : Path
    columns : Columns

    Returns
    -------
    Decisions

    Raises
    ------
    DataError
        It cannot be read, lacks a column, or a row holds no decision or no cluster: the message names file and row.
    """
    header = _header(file)
    named = [columns.text, columns.decision, columns.cluster, columns.system]
    if len(set(named)) < len(named):
        raise DataError(
            f"{file}: one column cannot be two things; --text, --decision, --cluster and --system must differ"
        )
    if columns.decision not in header:
        raise DataError(f"{file}: there is no column {columns.decision!r}; name the one of decisions with --decision")
    wanted = [name for name in (columns.decision, columns.cluster, columns.system) if name in header]
    if columns.cluster not in header and columns.text not in header:
        raise DataError(f"{file}: there is neither a column {columns.cluster!r} nor {columns.text!r}; name one of them")
    parts: dict[str, list[pd.Categorical]] = {name: [] for name in wanted}
    for start, chunk in _chunks(file, wanted):
        for name in wanted:
            blank = chunk[name].map(bytes.strip) == b""
            if blank.any():
                raise DataError(
                    f"{file}, row {start + int(blank.argmax()) + 2}: {name} is blank; fill it in or leave it out"
                )
            parts[name].append(_decoded(file, start, name, pd.Categorical(chunk[name])))
    if not parts[columns.decision]:
        raise DataError(f"{file}: there are no rows")
    rows = pd.DataFrame({name: union_categoricals(own) for name, own in parts.items()})
    label = _labels(file, rows[columns.decision], columns)
    found = pd.DataFrame({"row": np.arange(len(rows)), "label": label})
    found["system"] = rows[columns.system] if columns.system in header else pd.Categorical([ONLY] * len(rows))
    if columns.cluster in header:
        found["cluster"] = rows[columns.cluster]
    return Decisions(found, file, columns)


def _header(file: Path) -> list[str]:
    try:
        with _opened(file, None) as reader:
            return list(reader.schema.names)
    except UnicodeDecodeError:
        raise DataError(f"{file}: its header is not UTF-8; save it as UTF-8") from None
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            raise DataError(f"{file}: the file is empty; it needs a header and rows") from None
        raise DataError(f"{file}: {_said(error)}") from None


def _opened(file: Path, wanted: Sequence[str] | None) -> csv.CSVStreamingReader:
    """Open a CSV file to be read in parts: every line must have as many fields as the header."""
    return csv.open_csv(
        file,
        # One thread, so that an error tells its row.
        read_options=csv.ReadOptions(use_threads=False, block_size=BLOCK),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            include_columns=wanted,
            column_types={name: pa.binary() for name in wanted or ()},
            strings_can_be_null=False,
        ),
    )


def _chunks(file: Path, wanted: Sequence[str]) -> Iterator[tuple[int, pd.DataFrame]]:
    """Yield parts of a file, as bytes, with the number of their first row."""
    start = 0
    try:
        with _opened(file, wanted) as reader:
            for batch in reader:
                if batch.num_rows:
                    yield start, batch.to_pandas()
                    start += batch.num_rows
    except pa.ArrowInvalid as error:
        raise DataError(f"{file}: {_said(error)}; mend that line") from None


def _said(error: Exception) -> str:
    return str(error).strip().splitlines()[0].replace("CSV parse error: ", "")[:200]


def _decoded(file: Path, start: int, name: str, values: pd.Categorical) -> pd.Categorical:
    try:
        return values.rename_categories([one.decode("utf-8") for one in values.categories])
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file}: {name} is not UTF-8 behind row {start + 1}: {error.reason}; save it as UTF-8"
        ) from None


def _labels(file: Path, decisions: pd.Series, columns: Columns) -> pd.Categorical:
    """Return decisions as `schemas.LABELS`."""
    found = decisions.cat.categories
    if columns.rejects:
        missing = [name for name in columns.rejects if name not in found]
        if missing:
            raise DataError(f"{file}: no decision is {missing[0]!r}; there are {', '.join(map(repr, found[:6]))}")
        named = {name: "reject" if name in columns.rejects else "accept" for name in found}
    else:
        named = {name: name.strip().lower() for name in found}
        other = [name for name in found if named[name] not in LABELS]
        if other:
            row = int((decisions == other[0]).argmax()) + 2
            raise DataError(
                f"{file}, row {row}: the decision {other[0]!r} is none of {', '.join(LABELS)}; say which decisions are "
                f"rejections with --rejects, for example --rejects {other[0]!r}"
            )
    return pd.Categorical(decisions.map(named).astype(str), categories=list(LABELS))


def texts(decisions: Decisions, wanted: np.ndarray) -> pd.Series:
    """Read the texts of some rows, by row number; empty where the file has none.

    Parameters
    ----------
    decisions : Decisions
    wanted : numpy.ndarray of int
        Row numbers.
    """
    name = decisions.columns.text
    if name not in _header(decisions.file):
        return pd.Series("", index=wanted, dtype=str)
    keep, found = np.sort(wanted), []
    for start, chunk in _chunks(decisions.file, [name]):
        own = keep[(keep >= start) & (keep < start + len(chunk))]
        words = [text.decode("utf-8", "replace") for text in chunk[name].to_numpy()[own - start]]
        found.append(pd.Series(words, index=own, dtype=str))
    return pd.concat(found) if found else pd.Series(dtype=str)


def systems(decisions: Decisions, resamples: int = RESAMPLES) -> Table:
    """Measure how often and how sensibly each system of a file with clusters refuses.

    Parameters
    ----------
    decisions : Decisions
        With clusters.
    resamples : int

    Returns
    -------
    DataFrame
        system, n (rows), n_scored, n_reject, n_clusters (with two scored rows or more), frr and dr with intervals, the
        columns of `disagreement.row`, isolation (mean over rejections), note.

    Raises
    ------
    DataError
        No cluster of the file has two scored rows.
    """
    rows = []
    for name, own in _by_system(decisions):
        decided = disagreement.count_decisions(as_refused(own["label"]), own["cluster"])
        alike = disagreement.cluster_profiles(decided)
        found = disagreement.estimate_of_profiles(alike, resamples) if len(decided) else _nothing(resamples)
        scored = int(own["label"].isin(["accept", "reject"]).sum())
        refused = int((own["label"] == "reject").sum())
        row = {"system": name, "n": len(own), "n_scored": scored, "n_reject": refused, "n_clusters": len(decided)}
        every = own.assign(n=own["label"].isin(["accept", "reject"]), rejected=own["label"] == "reject")
        whole = every.groupby("cluster", observed=True)[["n", "rejected"]].sum()
        row |= to_columns({"frr": _rate(disagreement.cluster_profiles(whole), resamples), "dr": found})
        row |= disagreement.row(decided) if len(decided) else {"few_dr": True}
        rows.append(row | {"isolation": _isolation(decided), "note": _note(decided)})
    table = pd.DataFrame(rows)
    if not table["n_clusters"].any():
        raise DataError(
            f"{decisions.file}: no cluster has two rows that are accepted or rejected; leave the column of clusters "
            "out (--cluster none) to compare near neighbours"
        )
    return table


def _by_system(decisions: Decisions) -> Iterator[tuple[str, pd.DataFrame]]:
    for name, own in decisions.rows.groupby("system", observed=True, sort=False):
        yield str(name), own


def _nothing(resamples: int) -> Estimate:
    return Estimate(np.nan, np.nan, np.nan, np.full(resamples, np.nan))


def _rate(alike: pd.DataFrame, resamples: int) -> Estimate:
    """Return the refusal rate over scored rows, with its interval over clusters."""
    alike = alike[alike["n"] > 0]
    times = alike["times"].to_numpy(float)
    if not len(times):
        return _nothing(resamples)
    counts = np.random.default_rng(SEED).multinomial(int(times.sum()), times / times.sum(), size=resamples)
    refused, n = alike["rejected"].to_numpy(float), alike["n"].to_numpy(float)
    return Estimate.percentile(float(times @ refused / (times @ n)), (counts @ refused) / (counts @ n))


def _isolation(decided: pd.DataFrame) -> float:
    refused = decided["rejected"].sum()
    share = (decided["n"] - decided["rejected"]) / (decided["n"] - 1)
    return float((share * decided["rejected"]).sum() / refused) if refused else np.nan


def _note(decided: pd.DataFrame) -> str:
    if len(decided) < 2:
        return "fewer than two clusters with two decisions: DR is undefined"
    refused, scored = decided["rejected"].sum(), decided["n"].sum()
    if not refused or refused == scored:
        return f"{'no' if not refused else 'every'} row with a paraphrase is rejected: DR is undefined"
    if not ((decided["rejected"] > 0) & (decided["rejected"] < decided["n"])).any():
        return "no cluster is decided both ways: DR is 0, without an interval"
    if disagreement.too_few(decided):
        return (
            f"fewer than {disagreement.MIN_DECISIONS} rejections or acceptances, or {MIN_MIXED} mixed clusters: "
            "the interval is too narrow"
        )
    return ""


def without_clusters(
    decisions: Decisions, vectors: np.ndarray, resamples: int = RESAMPLES
) -> tuple[Table, pd.DataFrame]:
    """Measure each system of a file without clusters by near neighbours.

    Parameters
    ----------
    decisions : Decisions
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors of its rows.
    resamples : int

    Returns
    -------
    table : DataFrame
        system, n, n_scored, n_reject, n_near (rows with a neighbour), recall, frr (with an interval over groups of near
        rows) and dr with intervals, few_dr, note.
    rejections : DataFrame
        row, system, isolation of every rejection with a neighbour.
    """
    rows, listed = [], []
    for name, own in _by_system(decisions):
        scored = own[own["label"].isin(["accept", "reject"])]
        refused = (scored["label"] == "reject").to_numpy()
        if scored.empty:
            note = "no row is accepted or rejected"
            rows.append({"system": name, "n": len(own), "n_scored": 0, "n_reject": 0, "few_dr": True, "note": note})
            rows[-1] |= to_columns({"frr": _nothing(resamples), "dr": _nothing(resamples)})
            continue
        near = neighbours.find(vectors[scored["row"].to_numpy()], refused)
        found = disagreement.estimate_near(near.groups, refused, near.near, near.near_rejected, resamples)
        groups = pd.DataFrame({"n": np.bincount(near.groups), "rejected": np.bincount(near.groups, weights=refused)})
        few = min(int(refused.sum()), int((~refused).sum())) < disagreement.MIN_DECISIONS
        row = {"system": name, "n": len(own), "n_scored": len(scored), "n_reject": int(refused.sum())}
        row |= {"n_near": int((near.near > 0).sum()), "recall": near.recall}
        row |= to_columns({"frr": _rate(disagreement.cluster_profiles(groups), resamples), "dr": found}) | {
            "few_dr": few
        }
        note = "" if np.isfinite(found[0]) else "all rows are decided alike, or no two are near: DR is undefined"
        if not note and few:
            note = f"fewer than {disagreement.MIN_DECISIONS} rejections or acceptances: the interval is too narrow"
        rows.append(row | {"note": note})
        with np.errstate(divide="ignore", invalid="ignore"):
            isolated = 1 - near.near_rejected / near.near
        chosen = refused & (near.near > 0)
        listed.append(
            pd.DataFrame({"row": scored["row"].to_numpy()[chosen], "system": name, "isolation": isolated[chosen]})
        )
    empty = pd.DataFrame({"row": np.empty(0, int), "system": [], "isolation": []})
    return pd.DataFrame(rows), pd.concat(listed or [empty], ignore_index=True)


def rejections(decisions: Decisions) -> pd.DataFrame:
    """Return row, system, cluster, others and isolation of every rejection with another decision in its cluster."""
    parts = []
    for name, own in _by_system(decisions):
        isolated = disagreement.isolation(as_refused(own["label"]), own["cluster"])
        parts.append(own.assign(system=name, isolation=isolated)[np.isfinite(isolated)])
    return pd.concat(parts, ignore_index=True)[["row", "system", "cluster", "isolation"]]


def compared(old: Decisions, new: Decisions, resamples: int = RESAMPLES) -> Table:
    """Compare two files of the same clusters: the same resampled clusters, new minus old.

    Parameters
    ----------
    old, new : Decisions
        With clusters.
    resamples : int

    Returns
    -------
    DataFrame
        system, n_clusters (in both), frr and dr, each `x_old`, `x_new` and the difference `x` with its interval; p,
        two-sided, of the difference of DR.

    Raises
    ------
    DataError
        They share no system, or no cluster with two decisions in both.
    """
    for one in (old, new):
        if not one.clustered:
            raise DataError(
                f"{one.file}: there is no column {one.columns.cluster!r}; two files are compared by clusters"
            )
    before, after = dict(_by_system(old)), dict(_by_system(new))
    shared = [name for name in before if name in after]
    if not shared and len(before) == len(after) == 1:  # one system each, whatever it is called
        (first,), (second,) = before, after
        before, shared = {second: before[first]}, [second]
    if not shared:
        raise DataError(f"{old.file} and {new.file} share no system")
    rows = []
    for name in shared:
        decided = [
            disagreement.count_decisions(as_refused(own["label"]), own["cluster"]).astype({"cluster_id": str})
            for own in (before[name], after[name])
        ]
        both = decided[0].merge(decided[1], on="cluster_id", suffixes=("_old", "_new"))
        if len(both) < 2:
            raise DataError(f"{old.file} and {new.file}: fewer than two clusters of {name} have two decisions in both")
        kinds = both.groupby(["n_old", "rejected_old", "n_new", "rejected_new"]).size().rename("times").reset_index()
        times = kinds["times"].to_numpy(float)
        counts = np.random.default_rng(SEED).multinomial(len(both), times / len(both), size=resamples).astype(float)
        row: dict[str, object] = {"system": name, "n_clusters": len(both)}
        for measure, function in (("frr", _plain_rate), ("dr", disagreement.ratios)):
            ends = [
                function(kinds[f"n_{end}"], kinds[f"rejected_{end}"], np.vstack([times, counts]))
                for end in ("old", "new")
            ]
            row |= {f"{measure}_old": ends[0][0], f"{measure}_new": ends[1][0]}
            draws = ends[1][1:] - ends[0][1:]
            row |= to_columns({measure: Estimate.percentile(ends[1][0] - ends[0][0], draws)})
        known = draws[np.isfinite(draws)]
        beyond = 1 + min(np.count_nonzero(known <= 0), np.count_nonzero(known >= 0))
        row["p"] = min(1.0, 2 * beyond / (1 + len(known))) if len(known) > 1 else np.nan
        rows.append(row)
    return pd.DataFrame(rows)


def _plain_rate(n: pd.Series, rejected: pd.Series, times: np.ndarray) -> np.ndarray:
    return (times @ rejected.to_numpy(float)) / (times @ n.to_numpy(float))


def embedded(decisions: Decisions, out: Path) -> np.ndarray:
    """Return the sentence vectors of a file's rows, resumably: what was embedded before a kill is kept.

    Parameters
    ----------
    decisions : Decisions
        With texts.
    out : Path
        Folder for the vectors.
    """
    from paraguard_utils.models import encoder  # seconds to import: only where texts are embedded

    rows = texts(decisions, decisions.rows["row"].to_numpy()).tolist()
    hashes = [encoder.text_hash(text) for text in rows]
    out.mkdir(parents=True, exist_ok=True)
    with stores.Parts(out / "vectors.parquet", "sentences") as parts:
        known = {row.text_hash: row.vector for frame in parts.read() for row in frame.itertuples()}
        missing = {key: text for key, text in zip(hashes, rows, strict=True) if key not in known}
        for chunk in _embedding(missing):
            vectors = list(encoder.encode([missing[key] for key in chunk]))
            parts.add(pd.DataFrame({"text_hash": chunk, "vector": vectors}))
            known |= dict(zip(chunk, vectors, strict=True))
    return np.stack([np.asarray(known[key], np.float16) for key in hashes])


def _embedding(missing: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield parts of what is to be embedded, with a progress bar; the first, small one says how long the rest takes."""
    keys = list(missing)
    started = time.monotonic()
    with tqdm(total=len(keys), desc="embedding", unit="row", disable=not keys) as bar:
        for start in (0, *range(FIRST, len(keys), PART)):
            chunk = keys[start : FIRST if not start else start + PART]
            if not chunk:
                return
            yield chunk
            bar.update(len(chunk))
            if not start and len(keys) > FIRST:
                rate = FIRST / (time.monotonic() - started)
                left = (len(keys) - FIRST) / rate / 60
                print(f"{len(keys)} texts to embed, {rate:.0f} a second, about {left:.0f} min", file=sys.stderr)


def write(decisions: Decisions, table: Table, listed: pd.DataFrame, out: Path) -> list[Path]:
    """Write an audit: the table, the most isolated refusals, the brittlest clusters, a figure and a page.

    Parameters
    ----------
    decisions : Decisions
    table : DataFrame
        From `systems` or `without_clusters`.
    listed : DataFrame
        Rejections with their isolation.
    out : Path
        Folder.

    Returns
    -------
    list of Path
    """
    out.mkdir(parents=True, exist_ok=True)
    order = ["isolation", "row"]
    isolated = listed.sort_values(order, ascending=[False, True]).head(SHOWN)
    isolated = isolated.assign(
        text=formula_safe(texts(decisions, isolated["row"].to_numpy())).reindex(isolated["row"]).to_numpy()
    )
    files = {"audit.csv": table, "isolated.csv": isolated.assign(row=isolated["row"] + 2)}
    if decisions.clustered:
        files["brittle_clusters.csv"] = _brittle(decisions)
    for name, frame in files.items():
        words = {column: formula_safe(frame[column].astype(str)) for column in ("system", "cluster") if column in frame}
        stores.write_text(out / name, frame.assign(**words).to_csv(index=False))
    written = [out / name for name in files]
    figure = _figure(table, out / "audit.png")
    page = _page(decisions, table, isolated, figure)
    stores.write_text(out / "report.html", page)
    return [*written, *([figure] if figure else []), out / "report.html"]


def _brittle(decisions: Decisions) -> pd.DataFrame:
    """List the clusters decided both ways, those nearest to half and half first."""
    parts = []
    for name, own in _by_system(decisions):
        decided = disagreement.count_decisions(as_refused(own["label"]), own["cluster"])
        mixed = decided[(decided["rejected"] > 0) & (decided["rejected"] < decided["n"])]
        even = (mixed["rejected"] / mixed["n"] - 0.5).abs()
        parts.append(mixed.assign(system=name, even=even).sort_values(["even", "cluster_id"]).head(SHOWN))
    frame = pd.concat(parts).rename(columns={"cluster_id": "cluster"})
    return frame[["system", "cluster", "n", "rejected"]]


def _figure(table: Table, file: Path) -> Path | None:
    """Draw meaning and wording of each system; nothing where matplotlib is not installed."""
    try:
        from matplotlib import pyplot as plt

        from paraguard_utils.report.figures.scoring import variance_parts
    except ModuleNotFoundError as error:
        print(f"no figure: the package {error.name} is not installed", file=sys.stderr)
        return None
    known = table[table["dr"].notna()].head(40)
    if known.empty:
        return None
    ends = {f"meaning{end}": 1 - known[f"dr{other}"] for end, other in (("", ""), ("_low", "_high"), ("_high", "_low"))}
    names = known["system"].str.replace("$", r"\$")  # matplotlib reads what stands between two as mathematics
    rows = pd.DataFrame({"target": names, "decoding": "greedy", "few": known["few_dr"].astype(bool), **ends})
    figure = variance_parts(rows.assign(style=0.0, dice=0.0, wording=known["dr"]))
    figure.savefig(file, metadata={"Software": None})
    plt.close(figure)
    return file


def _page(decisions: Decisions, table: Table, isolated: pd.DataFrame, figure: Path | None) -> str:
    """Return one page without scripts or a network; what the file says is escaped."""
    shown = tables.shown(table, ["frr", "dr"], [name for name in COUNTED if name in table])
    rows = isolated.head(50)[[name for name in ("system", "cluster", "isolation", "text") if name in isolated]]
    image = ""
    if figure:
        coded = base64.b64encode(figure.read_bytes()).decode()
        image = f'<img alt="share of the variance of a decision, by system" src="data:image/png;base64,{coded}">'
    name = html.escape(decisions.file.name)
    by = "clusters" if decisions.clustered else f"neighbours at cosine {neighbours.THETA:.2f} or more"
    return PAGE.format(
        name=name,
        by=by,
        image=image,
        table=shown.to_html(index=False, border=0, na_rep=""),
        isolated=rows.round(3).to_html(index=False, border=0, na_rep=""),
    )


COUNTED = ("system", "n", "n_scored", "n_reject", "n_clusters", "n_near", "few_dr", "note")

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Audit of {name}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }}
table {{ border-collapse: collapse; font-size: 0.85rem; display: block; overflow-x: auto }}
th, td {{ text-align: left; padding: 0.3rem 0.6rem; border-bottom: 1px solid #ddd; vertical-align: top }}
img {{ max-width: 100% }}
</style></head><body>
<h1>Does meaning decide? {name}</h1>
<p>FRR: share of rows that are rejected. DR, the disagreement ratio: how often two paraphrases are decided
differently, over how often two unrelated rows are; 0: meaning decides everything, 1: nothing. Paraphrases are {by}.
Intervals: 95 %.</p>
{image}
{table}
<h2>The most isolated refusals</h2>
<p>Isolation: share of a refusal's paraphrases that are accepted.</p>
{isolated}
</body></html>
"""


def gate(table: Table, limit: float) -> list[str]:
    """Return the systems whose DR lies above a limit, as lines; a DR that is undefined passes.

    Parameters
    ----------
    table : DataFrame
    limit : float
    """
    above = table[table["dr"] > limit]
    return [
        f"{row['system']}: DR {tables.estimate(row, 'dr', 2)} is above {limit:g}" for row in above.to_dict("records")
    ]
