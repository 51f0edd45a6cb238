"""The leaderboard: one file a system, from whose decisions every number is computed
again.

    python leaderboard/board.py add --store live TARGET   # write results/TARGET.json
    from the labels of a store python leaderboard/board.py check                     #
    compare every file with its own decisions python leaderboard/board.py page
    # write README.md and board.png

A file has the schema of Every Eval Ever (`pip install every-eval-ever`), with the
decisions as a letter for each request of the corpus in order: a accepted, r rejected, b
blocked, u unparsed.
"""

import argparse
import hashlib
import itertools
import json
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
from paraguard_tools.harness.requests import measure_decisions, read_requests  # noqa: E402
from paraguard_utils import __version__, paths, registry, stores  # noqa: E402
from paraguard_utils.core import disagreement  # noqa: E402
from paraguard_utils.core.decisions import as_refused  # noqa: E402
from paraguard_utils.core.estimates import ClusterBootstrap  # noqa: E402
from paraguard_utils.errors import DataError, UserError  # noqa: E402
from paraguard_utils.models import prompting  # noqa: E402
from paraguard_utils.report import tables  # noqa: E402
from paraguard_utils.report.figures import style  # noqa: E402
from paraguard_utils.settings import CORPUS, TWINS  # noqa: E402

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


def add_system(store: stores.Store, system: str, created: str) -> Path:
    """Write the file of a system whose labels a store has; return its path."""
    letters = {label: letter for letter, label in LETTERS.items()}
    details, meta = {}, {}
    for name, corpus in CORPORA.items():
        if name == "harmless" or store.has("labels", corpus, system):
            own = store.read("labels", corpus, system)
            details[f"{name}_decisions"] = "".join(own["label"].map(letters))
            meta = meta or stores.read_meta(store.path("labels", corpus, system))
    details |= {
        "labeller": meta["inputs"]["labeller"],
        "max_tokens": str(meta["parameters"]["max_new_tokens"]),
    }
    details |= {
        "instruction": registry.read_system_prompt(system.rpartition("--")[2]),
        "major_version": __version__.partition(".")[0],
    }
    model = prompting.model_of_system(system)
    path = RESULTS / f"{system}.json"
    found = make_result(
        registry.display_titles([system])[0], f"recorded/{model}", details, created
    )
    path.write_text(
        json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return path


def check_file(path: Path) -> dict[str, Any]:
    """Return a file's content.

    DataError where its numbers do not follow from its decisions.
    """
    try:
        own = json.loads(path.read_text(encoding="utf-8"))
        library, model = own["eval_library"], own["model_info"]
        details = dict(library["additional_details"])
        missing = [
            name for name in ("harmless_decisions", *SAME) if name not in details
        ]
        if missing:
            raise DataError(f"additional_details lacks {missing[0]}")
        again = make_result(
            model["name"], model["id"], details, own["retrieved_timestamp"]
        )
        for name in ("harmless_sha256", "harmful_sha256"):
            if details[name] != again["eval_library"]["additional_details"][name]:
                raise DataError(
                    f"{name} is that of another corpus; ask the one of this version"
                )
        given, expected = (
            {
                one["metric_config"]["metric_id"]: one["score_details"]
                for one in side["evaluation_results"]
            }
            for side in (own, again)
        )
        for metric in sorted(given.keys() | expected.keys()):
            if not np.allclose(
                *(_numbers(side.get(metric, {})) for side in (given, expected)),
                atol=2e-4,
                equal_nan=True,
            ):
                raise DataError(
                    f"{metric} is {given.get(metric)}, and {expected.get(metric)} by"
                    " the file's decisions"
                )
    except DataError as error:
        raise DataError(f"{path.name}: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path.name}: not a result ({error!r}); write it with `board.py add`"
        ) from None
    return own


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
        style.name_rows(axis, table["system"])
        style.draw_row_rules(axis)
        axis.set_xlim(left=0)
    figure.savefig(path, dpi=200)


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
        told = dict(zip(SAME, key, strict=True))
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
    adding.add_argument("system", nargs="+")
    adding.add_argument("--store", default="recorded")
    adding.add_argument(
        "--created",
        default=str(int(time.time())),
        help="seconds since 1970; without it, now",
    )
    for name in ("check", "page"):
        commands.add_parser(name).add_argument(
            "file", nargs="*", type=Path, default=sorted(RESULTS.glob("*.json"))
        )
    given = parser.parse_args(arguments)
    try:
        if given.command == "add":
            for system in given.system:
                print(
                    paths.display_path(
                        add_system(stores.Store(given.store), system, given.created)
                    )
                )
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
