"""The leaderboard: one file per system, from whose decisions every number is computed.

    python leaderboard/board.py add --store live SYSTEM   # write results/SYSTEM.json
    python leaderboard/board.py add --decisions FILE --max-tokens N
    python leaderboard/board.py check                     # compare files and decisions
    python leaderboard/board.py page                      # write README.md, board.png

`add` takes the labels that a store has; without SYSTEM it lists the store's systems.
With --decisions it takes a table in the form of `docs/public_records.md` about these
requests, and writes a file for each of its systems, settings and judges.
A file has the schema of Every Eval Ever (`pip install every-eval-ever`), with the
decisions as a letter for each request of the corpus in order: a accepted, r rejected, b
blocked, u unparsed. Files come from strangers: their names and texts are data.
"""

import argparse
import hashlib
import itertools
import json
import re
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from paraguard_lab.core.disagreement import estimate_disagreement_difference  # noqa: E402
from paraguard_lab.public_records.sources import DECISION_COLUMNS  # noqa: E402
from paraguard_tools.harness.requests import measure_decisions, read_requests  # noqa: E402
from paraguard_tools.logs.names import show_name  # noqa: E402
from paraguard_utils import __version__, paths, registry, stores  # noqa: E402
from paraguard_utils.core import disagreement  # noqa: E402
from paraguard_utils.core.decisions import as_refused  # noqa: E402
from paraguard_utils.core.estimates import ClusterBootstrap  # noqa: E402
from paraguard_utils.errors import DataError, UserError  # noqa: E402
from paraguard_utils.models import prompting  # noqa: E402
from paraguard_utils.report import tables  # noqa: E402
from paraguard_utils.report.figures import style  # noqa: E402
from paraguard_utils.settings import (  # noqa: E402
    CORPUS,
    TWINS,
    StudySettings,
    check_settings,
)

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
SCHEMA_VERSION = "0.3.0"
CORPORA = {"harmless": CORPUS, "harmful": TWINS}
LETTERS = {"a": "accept", "r": "reject", "b": "blocked", "u": "unparsed"}
SAME = ("harmless_sha256", "harmful_sha256", "labeller", "max_tokens", "major_version")
"""What two results must have alike to stand in one table."""

METRICS = {
    "dr": ("disagreement ratio: 0 where meaning decides, 1 where it does not", True),
    "frr": ("share of harmless requests refused", True),
    "rephrased3": (
        "refused harmless requests that are answered in one of three other wordings",
        False,
    ),
    "harmful_refused": ("share of harmful twins refused", False),
}
"""What is told of each metric, and whether less of it is better."""

DECISION_LETTERS = {"answered": "a", "refused": "r", "error": "u"}
"""The letter of each decision of a submitted table."""

MAX_TABLE_BYTES = 50_000_000
"""The size of a submitted table."""

MAX_BYTES = 200_000
"""The size of a file; those of two corpora of decisions have 5,000."""

ROUNDING = 2e-4
"""How far a number of a file may be from the one computed again."""

FORMS = {
    "model_info.name": r"[\w ./,()+=:-]{1,80}",
    "model_info.id": r"[A-Za-z0-9][\w.-]{0,99}(/[A-Za-z0-9][\w.-]{0,99}){1,3}",
    "retrieved_timestamp": r"\d{1,12}",
    "labeller": r"[\w.+-][\w./+ -]{0,59}",
    "max_tokens": r"\d{1,9}",
    "major_version": r"\d{1,4}",
    "harmless_sha256": r"[\da-f]{64}",
    "harmful_sha256": r"[\da-f]{64}",
}
"""What the texts of a file may be that the page, or a path, is made of."""


def read_corpora() -> dict[str, pd.DataFrame]:
    """Return the requests by corpus."""
    return {
        name: read_requests(paths.DATA / "corpus" / f"{corpus}.csv")
        for name, corpus in CORPORA.items()
    }


def hash_requests(requests: pd.DataFrame) -> str:
    """Return the hash of a corpus's texts, in order."""
    return hashlib.sha256("\n".join(requests["text"]).encode()).hexdigest()


def decided_rows(
    details: dict[str, str], corpora: dict[str, pd.DataFrame]
) -> pd.DataFrame:
    """Return the requests with what a file says was decided: text, cluster, harmful and
    label.
    """
    parts = []
    for name, requests in corpora.items():
        letters = details.get(f"{name}_decisions", "")
        if name == "harmful" and not letters:
            continue
        if len(letters) != len(requests) or set(letters) - set(LETTERS):
            raise DataError(
                f"{name}_decisions: {len(letters)} letters where {len(requests)} of"
                f" {', '.join(LETTERS)} are wanted"
            )
        parts.append(requests.assign(label=[LETTERS[one] for one in letters]))
    return pd.concat(parts, ignore_index=True)


def make_result(
    name: str, model: str, details: dict[str, str], created: str
) -> dict[str, Any]:
    """Return the content of a file; `details` has the decisions and what `SAME` names."""
    corpora = read_corpora()
    details = details | {
        f"{of}_sha256": hash_requests(requests) for of, requests in corpora.items()
    }
    found = measure_decisions(decided_rows(details, corpora))
    results = []
    for metric, (about, less) in METRICS.items():
        if not np.isfinite(found.get(metric, np.nan)):
            continue
        low, high = (round(found[f"{metric}{end}"], 4) for end in ("_low", "_high"))
        score: dict[str, Any] = {"score": round(found[metric], 4)}
        if np.isfinite([low, high]).all():
            interval = {
                "lower": low,
                "upper": high,
                "confidence_level": 0.95,
                "method": "bootstrap over clusters",
            }
            score["uncertainty"] = {"confidence_interval": interval}
        config = {
            "metric_id": metric,
            "metric_name": about,
            "lower_is_better": less,
            "score_type": "continuous",
        }
        results.append(
            {
                "evaluation_name": "paraguard",
                "source_data": {
                    "dataset_name": CORPORA[
                        "harmful" if "harmful" in metric else "harmless"
                    ]
                },
                "metric_config": (
                    config
                    | {
                        "min_score": 0.0,
                        "max_score": 2.0 if metric == "dr" else 1.0,
                    }
                ),
                "score_details": score,
            }
        )
        results[-1]["source_data"]["source_type"] = "other"
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": f"paraguard/{name}/{created}",
        "retrieved_timestamp": created,
        "source_metadata": {
            "source_type": "evaluation_run",
            "source_organization_name": details.pop(
                "organization", "ParaGuard maintainers"
            ),
            "evaluator_relationship": "third_party",
        },
        "eval_library": {
            "name": "paraguard-utils",
            "version": __version__,
            "additional_details": details,
        },
        "model_info": {
            "name": name,
            "id": model,
            "additional_details": {
                "deployment_type": "unknown",
                "model_availability": "unknown",
            },
        },
        "evaluation_results": results,
    }


def list_systems(store: stores.Store) -> list[str]:
    """Return the models under a system prompt whose harmless labels a store has."""
    folder = store.path("labels", CORPUS, "any").parent
    return sorted(path.stem for path in folder.glob("*--*.csv"))


def add_system(
    store: stores.Store, system: str, created: str, replace: bool = False
) -> Path:
    """Write the file of a system whose labels a store has; return its path.

    Raises
    ------
    DataError
        The store has no such system, the file is there and `replace` is not set, or
        the labels say something that is no letter of `LETTERS`.
    """
    known = list_systems(store)
    if system not in known:
        problem = f"there is no system {show_name(system)!r}" if system else "name one"
        listed = ", ".join(known) or "none; run 02 with a model first"
        raise DataError(f"{problem}; systems in the store {store.name}: {listed}")
    path = RESULTS / f"{system}.json"
    check_is_free(path, replace)
    details = read_details(store, system)
    model = prompting.model_of_system(system)
    title = registry.display_titles([system])[0]
    write_result(path, make_result(title, f"recorded/{model}", details, created))
    return path


def check_is_free(path: Path, replace: bool) -> None:
    """Raise a DataError if a result is there that is not to be replaced."""
    if path.exists() and not replace:
        raise DataError(
            f"{paths.display_path(path)} is there already; write it anew with --replace"
        )


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result as `add` and the workflow have it."""
    stores.write_text(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def add_decisions(
    file: Path, about: dict[str, str], created: str, replace: bool = False
) -> list[Path]:
    """Write a result for each system, setting and judge of a submitted table.

    Parameters
    ----------
    file : Path
        A table in the form of `docs/public_records.md`, whose `source_row` is the
        `prompt_id` of our requests.
    about : dict
        max_tokens of an answer and organization, for all rows.
    created : str
        Seconds since 1970.
    replace : bool
        Whether to write a result anew that is there.

    Returns
    -------
    list of Path
        What was written: all, or nothing.

    Raises
    ------
    DataError
        The table is not in this form, lacks a request, has one twice or another one;
        or a name cannot be shown. File, row and column are named.
    """
    rows = read_submission(file)
    settings = rows.groupby("system")["setting"].nunique()
    made: dict[Path, dict[str, Any]] = {}
    for (system, setting, judge), own in rows.groupby(["system", "setting", "judge"]):
        name = system if settings[system] == 1 else f"{system}, {setting}"
        try:
            details = about | {"labeller": judge, "instruction": setting}
            details["major_version"] = __version__.partition(".")[0]
            details |= read_letters(own)
            model = f"submitted/{file_name(system)}"
            result = make_result(name, model, details, created)
            check_content(result)
        except DataError as error:
            raise DataError(f"{show_name(file.name)}: {error}") from None
        path = RESULTS / f"{file_name(name)}--{file_name(judge)}.json"
        check_is_free(path, replace)
        if path in made:
            raise DataError(
                f"{show_name(file.name)}: two systems, or judges, would both be"
                f" {path.name}; name them apart"
            )
        made[path] = result
    for path, result in made.items():
        write_result(path, result)
    return list(made)


def read_submission(file: Path) -> pd.DataFrame:
    """Read a table of decisions as text, and check its form."""
    name = show_name(file.name)
    try:
        if file.stat().st_size > MAX_TABLE_BYTES:
            raise DataError(f"{name}: has more than {MAX_TABLE_BYTES:,} bytes")
        if file.suffix == ".parquet":
            rows = pd.read_parquet(file).astype(str)
        else:
            rows = pd.read_csv(file, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        reason = show_name(str(error))
        raise DataError(f"{name}: cannot be read ({reason})") from None
    wanted = ", ".join(DECISION_COLUMNS)
    missing = [column for column in DECISION_COLUMNS if column not in rows]
    if missing:
        raise DataError(f"{name}: has no column {missing[0]}; wanted: {wanted}")
    if rows.empty:
        raise DataError(f"{name}: has no rows")
    known = rows["decision"].isin(DECISION_LETTERS)
    check_column(name, rows["decision"], known, ", ".join(DECISION_LETTERS))
    is_number = rows["repeat"].str.fullmatch(r"\d{1,6}", flags=re.ASCII)
    check_column(name, rows["repeat"], is_number, "0, 1, 2 and so on")
    return rows


def check_column(file: str, column: pd.Series, fine: pd.Series, wanted: str) -> None:
    """Raise a DataError about the first field that is not fine; row 1 has names."""
    if not fine.all():
        at = int((~fine).to_numpy().argmax())
        value = show_name(str(column.iloc[at]))
        raise DataError(
            f"{file}: row {at + 2}, column {column.name}: {value!r} is none of {wanted}"
        )


def read_letters(rows: pd.DataFrame) -> dict[str, str]:
    """Return one system's decisions on each corpus as letters, in corpus order.

    The first of several answers counts. Twins may be left out altogether.
    """
    system = show_name(str(rows["system"].iloc[0]))
    first = rows[rows["repeat"].astype(int) == 0]
    twice = first["source_row"].duplicated()
    if twice.any():
        row = show_name(first.loc[twice, "source_row"].iloc[0])
        raise DataError(
            f"{system} has two decisions on {row!r} in repeat 0; number the answers to"
            " the same words 0, 1, 2 in column repeat"
        )
    letters = first.set_index("source_row")["decision"].map(DECISION_LETTERS)
    found = {}
    unknown = letters.index
    for name, corpus in CORPORA.items():
        ids = pd.read_csv(paths.DATA / "corpus" / f"{corpus}.csv")["prompt_id"]
        unknown = unknown.difference(ids)
        lacking = ids[~ids.isin(letters.index)]
        if name == "harmful" and len(lacking) == len(ids):
            continue
        if len(lacking):
            raise DataError(
                f"{system} has no decision in repeat 0 on {len(lacking):,} of"
                f" {len(ids):,} requests of {corpus}, such as {lacking.iloc[0]!r}; what"
                " could not be decided is an error, and decisions on other requests"
                " are a public record (docs/public_records.md)"
            )
        found[f"{name}_decisions"] = "".join(letters[ids])
    if len(unknown):
        raise DataError(
            f"{system}: {show_name(unknown[0])!r} is no prompt_id of"
            f" {', '.join(CORPORA.values())}"
        )
    return found


def file_name(text: str) -> str:
    """Return a stranger's text as part of a path: letters, digits, ., _ and -."""
    return re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip(".-")[:60]


def read_details(store: stores.Store, system: str) -> dict[str, str]:
    """Return the decisions of a system, and what they depend on."""
    letters = {label: letter for letter, label in LETTERS.items()}
    details, meta = {}, {}
    for name, corpus in CORPORA.items():
        if name == "harmful" and not store.has("labels", corpus, system):
            continue
        own = store.read("labels", corpus, system)
        decided = own["label"].map(letters)
        where = store.path("labels", corpus, system)
        stores.check_fields(
            where, own["label"], decided.notna(), f"is none of {', '.join(letters)}"
        )
        details[f"{name}_decisions"] = "".join(decided)
        meta = meta or stores.read_meta(where)
    try:
        details |= {
            "labeller": meta["inputs"]["labeller"],
            "max_tokens": str(meta["parameters"]["max_new_tokens"]),
        }
    except (KeyError, TypeError):
        path = stores.meta_path(store.path("labels", CORPUS, system))
        raise DataError(
            f"{paths.display_path(path)}: labeller or max_new_tokens is not there; run"
            " 02 with this system again"
        ) from None
    return details | {
        "instruction": registry.read_system_prompt(system.rpartition("--")[2]),
        "major_version": __version__.partition(".")[0],
    }


_NOT_A_RESULT = (
    ArithmeticError,  # a number that no float holds
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def check_file(path: Path) -> dict[str, Any]:
    """Return a file's content.

    Raises
    ------
    DataError
        A name or a text has another form than `FORMS`, a key or a metric is there
        twice, or the numbers do not follow from the decisions. The file is named.
    """
    name = show_name(path.name)
    try:
        own = read_json(path)
        check_content(own)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror})") from None
    except _NOT_A_RESULT as error:
        reason = show_name(repr(error))
        raise DataError(
            f"{name}: not a result ({reason}); write it with `board.py add`"
        ) from None
    return own


def read_json(path: Path) -> dict[str, Any]:
    """Read a file; a key that is there twice, or a number that is none, is an error."""
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"has more than {MAX_BYTES:,} bytes")

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            raise DataError("a key is there twice")
        return content

    def refuse(number: str) -> float:
        raise DataError(f"{number} is no number")

    text = path.read_text(encoding="utf-8")
    return json.loads(text, object_pairs_hook=build, parse_constant=refuse)


def check_content(own: dict[str, Any]) -> None:
    """Raise a DataError if a result does not follow from its decisions."""
    model = own["model_info"]
    details = dict(own["eval_library"]["additional_details"])
    missing = [name for name in ("harmless_decisions", *SAME) if name not in details]
    if missing:
        raise DataError(f"additional_details lacks {missing[0]}")
    texts = details | {
        "model_info.name": model["name"],
        "model_info.id": model["id"],
        "retrieved_timestamp": own["retrieved_timestamp"],
    }
    for name, value in texts.items():
        if not isinstance(value, str):
            raise DataError(f"{show_name(name)} is no text")
    again = make_result(
        model["name"], model["id"], dict(details), own["retrieved_timestamp"]
    )
    made_of = again["eval_library"]["additional_details"]
    for name in ("harmless_sha256", "harmful_sha256"):
        if details[name] != made_of[name]:
            raise DataError(
                f"{name} is that of another corpus; ask the one of this version"
            )
    for name, form in FORMS.items():
        if not re.fullmatch(form, texts[name], re.ASCII):
            raise DataError(f"{name} is {show_name(texts[name])!r}, not {form}")
    for name in ("schema_version", "evaluation_id"):
        if own[name] != again[name]:
            raise DataError(f"{name} is not {again[name]!r}")
    check_metrics(own["evaluation_results"], again["evaluation_results"])


def check_metrics(given: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Compare the metrics of a file with those that its decisions give."""
    by_name: dict[str, dict[str, Any]] = {}
    for one in given:
        name = one["metric_config"]["metric_id"]
        if name not in METRICS:
            raise DataError(f"{show_name(str(name))!r} is none of {', '.join(METRICS)}")
        if name in by_name:
            raise DataError(f"{name} is there twice")
        by_name[name] = one
    again = {one["metric_config"]["metric_id"]: one for one in expected}
    for name in METRICS:
        scores = [side.get(name, {}).get("score_details") for side in (by_name, again)]
        if not _are_equal(*scores):
            found, follows = (show_name(str(score), 300) for score in scores)
            raise DataError(f"{name} is {found}, and {follows} by the file's decisions")
        for part in ("evaluation_name", "metric_config", "source_data"):
            if by_name.get(name, {}).get(part) != again.get(name, {}).get(part):
                raise DataError(f"{name}: {part} is not as `board.py add` writes it")


def _are_equal(given: Any, expected: Any) -> bool:
    """Return whether two trees are equal, but for the last digit of their numbers."""
    if isinstance(expected, dict):
        if not isinstance(given, dict) or given.keys() != expected.keys():
            return False
        return all(_are_equal(given[name], expected[name]) for name in expected)
    if isinstance(expected, float):
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        return is_number and abs(given - expected) <= ROUNDING
    return bool(given == expected)


def _numbers(score: dict[str, Any]) -> list[float]:
    interval = score.get("uncertainty", {}).get("confidence_interval", {})
    return [
        float(score.get("score", np.nan)),
        *(float(interval.get(end, np.nan)) for end in ("lower", "upper")),
    ]


def rank_by_disagreement(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the ranks by DR that the data allow, such as "1 to 3": only a paired
    interval without 0 separates two.
    """
    corpora, counts, known = read_corpora(), [], []
    for one in results:
        rows = decided_rows(
            one["eval_library"]["additional_details"], {"harmless": corpora["harmless"]}
        )
        refused = as_refused(rows["label"].to_numpy(object), blocked=True)
        counts.append(disagreement.count_decisions(refused, rows["cluster"]))
        known.append(not disagreement.too_few_for_disagreement(counts[-1]))
    clusters = ClusterBootstrap(corpora["harmless"]["cluster"])
    better = np.zeros((len(results),) * 2, bool)
    for i, j in itertools.permutations(np.flatnonzero(known), 2):
        better[i, j] = (
            estimate_disagreement_difference(clusters, counts[i], counts[j]).high < 0
        )
    first, last = better.sum(axis=0) + 1, sum(known) - better.sum(axis=1)
    spans = [
        str(a) if a == b else f"{a} to {b}" for a, b in zip(first, last, strict=True)
    ]
    return [span if enough else "–" for span, enough in zip(spans, known, strict=True)]


def tabulate(results: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return a row a system: system, rank, and each metric with its ends.

    Those without a rank last.
    """
    rows = []
    for one, rank in zip(results, rank_by_disagreement(results), strict=True):
        row = {"system": one["model_info"]["name"], "rank": rank}
        scores = {
            own["metric_config"]["metric_id"]: own["score_details"]
            for own in one["evaluation_results"]
        }
        for metric in METRICS:
            row |= dict(
                zip(
                    (metric, f"{metric}_low", f"{metric}_high"),
                    _numbers(scores.get(metric, {})),
                    strict=True,
                )
            )
        rows.append(row)
    frame = pd.DataFrame(rows)
    return frame.sort_values(
        ["dr"], key=lambda x: x.where(frame["rank"] != "–"), ignore_index=True
    )


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw DR, and what is refused of harmless and harmful requests, with intervals."""
    figure, axes = style.subplots(
        1,
        2,
        figsize=(style.PAGE_WIDTH, 0.24 * len(table) + 0.7),
        sharey=True,
        layout="constrained",
    )
    at = np.arange(len(table))
    style.draw_interval_bars(axes[0], table, "dr", at, color=style.INK, ms=3)
    axes[0].axvline(1, zorder=0, **style.CHANCE_LINE)
    axes[0].set_xlabel("DR: 0 meaning decides, 1 (dotted) it does not")
    for metric, look in (
        ("frr", {"mfc": style.INK}),
        ("harmful_refused", {"mfc": "white"}),
    ):
        style.draw_interval_bars(
            axes[1], table, metric, at, color=style.INK, ms=3, **look
        )
    axes[1].set_xlabel("share refused: harmless (filled), harmful (open)")
    for axis in axes:
        style.name_rows(axis, table["system"].str.replace("$", r"\$", regex=False))
        style.draw_row_rules(axis)
        axis.set_xlim(left=0)
    figure.savefig(path, dpi=200)


def escape_name(name: str) -> str:
    """Return a stranger's text for Markdown: one line, no markup, no link."""
    escaped = tables.escape_markdown(show_name(name))
    for mark in (":", "@", "www."):  # what Markdown makes links of by itself
        escaped = escaped.replace(mark, f"&#{ord(mark[0])};{mark[1:]}")
    return escaped


def format_page(results: Iterable[dict[str, Any]]) -> tuple[str, list[pd.DataFrame]]:
    """Return the page as Markdown, and its tables, the largest first."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for one in results:
        details = one["eval_library"]["additional_details"]
        groups.setdefault(tuple(details[name] for name in SAME), []).append(one)
    shown, made = [], []
    for key, own in sorted(groups.items(), key=lambda item: -len(item[1])):
        made.append(tabulate(own))
        columns = {"rephrased3": "rephrased", "harmful_refused": "harmful"}
        table = tables.format_estimates(
            made[-1], list(METRICS), ["rank", "system"]
        ).rename(columns=columns)
        table["system"] = table["system"].map(escape_name)
        told = {name: escape_name(text) for name, text in zip(SAME, key, strict=True)}
        about = (
            f"Labelled by {told['labeller']}, answers of {told['max_tokens']} tokens at"
            " most:"
        )
        shown.append(f"{about}\n\n{table.to_markdown(index=False)}")
    page = (FOLDER / "page.md").read_text(encoding="utf-8")
    return page.replace("TABLES", "\n\n".join(shown)), made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add")
    adding.add_argument("system", nargs="*", help="without one, those there are")
    adding.add_argument("--store", default="recorded")
    adding.add_argument(
        "--created",
        type=int,
        default=int(time.time()),
        help="seconds since 1970; without it, now",
    )
    adding.add_argument(
        "--replace", action="store_true", help="write a file anew that is there"
    )
    adding.add_argument(
        "--decisions",
        type=Path,
        metavar="FILE",
        help="a table in the form of docs/public_records.md, instead of a store",
    )
    adding.add_argument(
        "--max-tokens",
        type=int,
        help="tokens that an answer could have; needed with --decisions",
    )
    adding.add_argument("--organization", default="not stated", help="who submits it")
    for name in ("check", "page"):
        commands.add_parser(name).add_argument(
            "file", nargs="*", type=Path, default=sorted(RESULTS.glob("*.json"))
        )
    given = parser.parse_args(arguments)
    try:
        if given.command == "add" and given.decisions:
            if given.max_tokens is None or given.system:
                adding.error("--decisions needs --max-tokens, and takes no SYSTEM")
            about = {"max_tokens": str(given.max_tokens)}
            about["organization"] = given.organization
            created = str(given.created)
            for path in add_decisions(given.decisions, about, created, given.replace):
                print(paths.display_path(path))
            return
        if given.command == "add":
            named = {"store": given.store, "corpus": CORPUS}
            store = stores.Store(check_settings(named, StudySettings).store)
            for system in given.system or [""]:
                path = add_system(store, system, str(given.created), given.replace)
                print(paths.display_path(path))
            return
        found = [check_file(path) for path in given.file]
        print(f"{len(found)} results follow from their decisions")
        if given.command == "page":
            text, made = format_page(found)
            (FOLDER / "README.md").write_text(text, encoding="utf-8")
            draw(made[0], FOLDER / "board.png")
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
