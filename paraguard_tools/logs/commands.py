"""The commands that need no optional package.

They are `paraguard audit`, `paraguard label` and `paraguard threshold`.
"""

import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import typer

from paraguard_lab.core.thresholds import (
    CONFIDENCE,
    MAX_REQUESTS,
    choose_promised_threshold,
)
from paraguard_tools.logs import audit as audits
from paraguard_tools.logs import gate, page, records
from paraguard_tools.logs.decisions import HARMFUL_WORDS, Decisions, label_refusals
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.errors import DataError, SettingsError
from paraguard_utils.paths import DATA, RESULTS, display_path

OPTIONS: dict[str, Any] = {
    "add_completion": False,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

app = typer.Typer(help="Measure how sensibly a model or a guard refuses.", **OPTIONS)

PART_ROWS = 4096  # texts embedded in each part: what a kill can lose


def report_audit(decisions: Decisions, folder: Path) -> audits.Audit:
    """Audit a log, print what was found and write it to a folder."""
    found = audits.audit(
        decisions, vectors=None if decisions.clustered else embed_log(decisions, folder)
    )
    if decisions.labelled_by:
        print(
            "There is no column of decisions: answers were labelled by"
            f" {decisions.labelled_by}.\n"
        )
    print(_fill(found.sentences), end="\n\n")
    print(page.display_audit(found.table).to_string(), end="\n\n")
    if notes := page.list_audit_notes(found.table):
        print(_fill(notes), end="\n\n")
    written = page.write_audit_page(found, folder)
    print(f"written: {', '.join(display_path(path) for path in written)}")
    return found


def embed_log(decisions: Decisions, out: Path) -> np.ndarray:
    """Return the sentence vectors of a log's rows, kept in a folder.

    DataError if the log has no texts.
    """
    from tqdm import tqdm

    from paraguard_utils.models import encoder

    rows = decisions.texts(decisions.rows.index.to_numpy()).tolist()
    if not any(rows):
        raise DataError(
            f"{decisions.name}: there are neither clusters nor texts; name one of them,"
            " with --cluster or --text"
        )
    hashes = [encoder.hash_text(text) for text in rows]
    out.mkdir(parents=True, exist_ok=True)
    from paraguard_utils.parts import Parts  # a store's packages, for vectors only

    with Parts(out / "vectors.parquet", "sentences") as parts:
        known = {
            row.text_hash: row.vector
            for frame in parts.read()
            for row in frame.itertuples()
        }
        missing = {
            key: text
            for key, text in zip(hashes, rows, strict=True)
            if key not in known
        }
        keys = list(missing)
        for start in tqdm(
            range(0, len(keys), PART_ROWS), desc="embedding", disable=not keys
        ):
            chunk = keys[start : start + PART_ROWS]
            vectors = list(encoder.encode_texts([missing[key] for key in chunk]))
            parts.add(pd.DataFrame({"text_hash": chunk, "vector": vectors}))
            known |= dict(zip(chunk, vectors, strict=True))
    return np.stack([np.asarray(known[key], np.float16) for key in hashes])


def _fill(lines: Sequence[str]) -> str:
    return "\n".join(textwrap.fill(line, 88) for line in lines)


def format_comparison(old: Decisions, new: Decisions) -> str:
    """Return the comparison of two logs as a table."""
    table = audits.compare(old, new)
    rows = {}
    for row in table.to_dict("records"):
        changes = {
            f"{name}, new minus old": audits.format_cell(row, name)
            for name in ("frr", "dr", "rephrased3")
        }
        rows[row["system"]] = {
            "clusters": row["n_clusters"],
            **changes,
            "p (dr)": f"{row['p']:.3f}",
        }
    return "\n".join([pd.DataFrame(rows).to_string(), *page.list_audit_notes(table)])


def format_plan(decisions: Decisions | None) -> str:
    """Say how wide intervals will be.

    The clusters are like those of a log, or drawn under assumed rates.
    """
    if decisions is not None:
        if not decisions.clustered:
            raise SettingsError(
                f"{decisions.name}: a plan needs clusters; leave the file out to plan"
                " by assumed rates"
            )
        counts = {
            name: audits.count_requests(own) for name, own in decisions.by_system()
        }
        if unknown := [name for name, own in counts.items() if own.empty]:
            raise SettingsError(
                f"{decisions.name}: no harmless request of {unknown[0]} is answered or"
                " refused; leave the file out to plan by assumed rates"
            )
    else:
        counts = {
            f"6 wordings a cluster, {100 * rate:.0f} % refused, DR {dr}": (
                audits.simulate_clusters(rate, dr, size=6)
            )
            for rate in (0.05, 0.2, 0.5)
            for dr in (0.3, 0.7)
        }
    plans = {name: audits.plan_clusters(decided) for name, decided in counts.items()}
    tables = [
        f"{name}\n{one.to_string(index=False, float_format='%.3f')}"
        for name, one in plans.items()
    ]
    heading = (
        "Half of the width of a 95 % interval, by clusters; refusals: how many to"
        " expect."
    )
    return "\n\n".join([heading, *tables])


def read_score_rows(
    file: str | Path, columns: Mapping[str, str], harmful: bool = False
) -> pd.DataFrame:
    """Read score, cluster and harmful of each row.

    They come from `columns` or, where "", from those of the usual names. `harmful` is
    assumed where the file does not say. Raise DataError about the first row that lacks
    one of the three.
    """
    source = records.find_log_source(file)
    rows = pd.concat(
        records.read_parts(
            source, dict.fromkeys(records.USUAL_COLUMNS, "none") | dict(columns)
        )
    )
    for name in ("score", "cluster"):
        if name not in rows:
            raise DataError(
                f"{source.name}: there is no column of {name}s; name it with --{name}"
            )
    rows["score"] = pd.to_numeric(rows["score"], errors="coerce").replace(
        [np.inf, -np.inf], np.nan
    )
    rows["cluster"] = rows["cluster"].replace(r"^\s*$", np.nan, regex=True)
    rows["harmful"] = (
        rows["harmful"].map(lambda word: HARMFUL_WORDS.get(str(word).strip().lower()))
        if "harmful" in rows
        else harmful
    )
    for row, lacks in rows[rows.isna().any(axis=1)].isna().iterrows():
        advice = (
            "harmful is true or false"
            if lacks["harmful"]
            else "give it, or leave the row out"
        )
        raise DataError(
            f"{source.name}, {source.place(int(row))}: there is no {lacks.idxmax()};"
            f" {advice}"
        )
    return rows


def describe_cut(rows: pd.DataFrame, requests: float, confidence: float) -> list[str]:
    """Say which cut keeps the promise on the harmless rows of `read_score_rows`.

    Say also what it still blocks of the others.
    """
    harmful = rows["harmful"].astype(bool)
    own = rows[~harmful]
    cut = choose_promised_threshold(
        own["score"], own["cluster"], requests=requests, confidence=confidence
    )
    lines = [
        f"Block scores above {cut.threshold!r}.",
        (
            f"{cut.blocked} of {cut.clusters} harmless meanings have a wording above"
            f" it. With {confidence:.0%} confidence, at most {cut.upper:.1%} of such"
            " meanings, in as many wordings each, have one that is blocked."
        ),
    ]
    if not harmful.any():
        return [
            *lines,
            (
                "What this lets through is unknown: name harmful requests with --twins"
                " or --harmful."
            ),
        ]
    ids, hits = rows.loc[harmful, "cluster"], rows.loc[harmful, "score"] > cut.threshold
    share, low, high = ClusterBootstrap(ids).share(ids, hits)
    return [
        *lines,
        (
            f"It still blocks {share:.0%} [{low:.0%}, {high:.0%}] of {len(ids)} harmful"
            " requests."
        ),
    ]


@app.command()
def label(
    file: Annotated[
        Path,
        typer.Argument(
            help="CSV of answers; a column finish_reason is used where there is one."
        ),
    ],
    column: Annotated[str, typer.Option(help="Column of the answers.")] = "response",
    request: Annotated[
        str, typer.Option(help="Column of what was asked, where there is one.")
    ] = "",
    labeller: Annotated[
        Literal["combined", "cues"],
        typer.Option(help="Cue list and classifier, or the cue list alone (no torch)."),
    ] = "combined",
) -> None:
    """Label answers as accepted or refused, on standard output.

    It prints the file with label, kind, rule and p_refusal.

    Example: paraguard label answers.csv --column completion --request prompt >
    labelled.csv
    """
    try:
        frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise DataError(f"{file}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file}: cannot be read: {str(error).splitlines()[0]}; pass a CSV file in"
            " UTF-8"
        ) from error
    for name, option in ((column, "--column"), (request, "--request")):
        if name and name not in frame:
            raise DataError(
                f"{file}: no column {name!r}; it has {', '.join(frame)}; name one with"
                f" {option}"
            )
    asked = frame[request] if request else None
    found = label_refusals(frame[column], frame.get("finish_reason"), asked, labeller)
    frame.assign(**found).to_csv(sys.stdout, index=False)


@app.command()
def threshold(
    file: Annotated[
        str,
        typer.Argument(help="A guard's scores, a row a request; - for standard input."),
    ],
    requests: Annotated[
        float, typer.Option(help="Share of harmless meanings it may block.")
    ] = MAX_REQUESTS,
    confidence: Annotated[float, typer.Option(help="How sure that is.")] = CONFIDENCE,
    twins: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Scores of harmful requests, with the same columns."
        ),
    ] = "",
    score: Annotated[
        str, typer.Option(help="Column of scores.", show_default="score, probability")
    ] = "",
    cluster: Annotated[
        str, typer.Option(help="Column of clusters.", show_default="cluster, ...")
    ] = "",
    harmful: Annotated[
        str,
        typer.Option(help="Column: should be blocked.", show_default="harmful, ..."),
    ] = "",
) -> None:
    """Choose the cut that blocks at most a share of harmless meanings.

    A meaning is blocked if any of its wordings is. What the cut costs is printed too.

    Example: paraguard threshold scores.csv --meanings 0.05
    """
    columns = {"score": score, "cluster": cluster, "harmful": harmful}
    parts = [
        read_score_rows(file, columns),
        *([read_score_rows(twins, columns, harmful=True)] if twins else []),
    ]
    print(_fill(describe_cut(pd.concat(parts), requests, confidence)))


@app.command()
def audit(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Decisions or answers, - for standard input; two with --compare.",
        ),
    ] = None,
    text: Annotated[
        str,
        typer.Option(help="Column of the requests.", show_default="text, prompt, ..."),
    ] = "",
    answer: Annotated[
        str,
        typer.Option(
            help="Column of the answers.", show_default="answer, response, ..."
        ),
    ] = "",
    decision: Annotated[
        str,
        typer.Option(
            help="Column of the decisions.", show_default="decision, refused, ..."
        ),
    ] = "",
    cluster: Annotated[
        str,
        typer.Option(
            help="Column of clusters; none: near neighbours.",
            show_default="cluster, ...",
        ),
    ] = "",
    system: Annotated[
        str, typer.Option(help="Column of systems.", show_default="system, model, ...")
    ] = "",
    harmful: Annotated[
        str,
        typer.Option(help="Column: should be refused.", show_default="harmful, ..."),
    ] = "",
    annotation: Annotated[
        str,
        typer.Option(help="Column of what a reader says.", show_default="annotation"),
    ] = "",
    rejects: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE",
            help="A decision that is a refusal, all others not; repeatable.",
        ),
    ] = None,
    requests: Annotated[
        str, typer.Option("--input", metavar="FILE", help="Input file of a batch.")
    ] = "",
    labeller: Annotated[
        str,
        typer.Option(
            help="cues or combined, for answers.", show_default="the better one"
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to.", show_default="results/audit/FILE"),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare two logs of the same clusters.")
    ] = False,
    baseline: Annotated[
        str, typer.Option(metavar="FILE", help="Fail where it got worse than this log.")
    ] = "",
    margin: Annotated[
        float, typer.Option(help="How much worse than the baseline is still not worse.")
    ] = 0.0,
    fail_above: Annotated[
        float | None, typer.Option(min=0, help="Fail where the measure is above this.")
    ] = None,
    measure: Annotated[
        Literal["dr", "frr"],
        typer.Option(help="What --fail-above and --baseline judge."),
    ] = "dr",
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write what was found."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the gate's verdicts.")
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append Markdown, for a job's page."),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say how many clusters give which interval.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Audit 1,620 recorded decisions of SmolLM2.")
    ] = False,
) -> None:
    """Say how often and how sensibly any model or guard refuses.

    It audits decisions or answers. Exit codes: 0 not worse, 1 error, 2 usage, 3 worse,
    4 too little to say.

    Example: paraguard audit log.jsonl
    """
    columns = {
        "text": text,
        "answer": answer,
        "decision": decision,
        "cluster": cluster,
        "system": system,
    }
    columns |= {"harmful": harmful, "annotation": annotation}
    files = [*(files or ()), *([str(DATA / "demo.csv")] if demo else [])]
    if len(files) != (0 if plan and not files else 1 + compare):
        raise SettingsError("name one file, two with --compare, or --demo")
    logs = [
        Decisions.from_file(name, columns, rejects or (), requests, labeller)
        for name in files
    ]
    if plan or compare:
        print(
            format_plan(logs[0] if logs else None) if plan else format_comparison(*logs)
        )
        return
    before = (
        Decisions.from_file(baseline, columns, rejects or (), requests, labeller)
        if baseline
        else None
    )
    stem = "stdin" if files[0] == records.STDIN else Path(files[0]).name.split(".")[0]
    found = report_audit(logs[0], out or RESULTS / "audit" / stem)
    findings = (
        gate.judge_audit(found.table, measure, fail_above)
        if fail_above is not None
        else []
    )
    if before is not None:
        findings += gate.judge_audit(audits.compare(before, logs[0]), measure, margin)
    for one in findings:
        print(one.line)
    if json_file:
        json_file.write_text(
            gate.gate_json(found.table, found.sentences, findings), encoding="utf-8"
        )
    if junit:
        junit.write_text(gate.gate_junit(findings), encoding="utf-8")
    if summary:
        with summary.open("a", encoding="utf-8") as opened:
            opened.write(gate.gate_markdown(found.table, found.sentences, findings))
    sys.exit(0 if fail_above is None and before is None else gate.exit_status(findings))
