"""The commands that need no optional package.

They are `paraguard audit`, `paraguard label` and `paraguard threshold`. The parameters
of a command are its options, however many there are.
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
from paraguard_tools.answers.canned import read_phrases
from paraguard_tools.logs import audit as audits
from paraguard_tools.logs import gate, page, records
from paraguard_tools.logs.decisions import (
    HARMFUL_WORDS,
    Decisions,
    label_refusals,
    translate,
)
from paraguard_tools.logs.formats import registry
from paraguard_tools.logs.repeats import SameText
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

ColumnOption = Annotated[
    str,
    typer.Option(
        metavar="COLUMN",
        help="Column of these; by default one of a usual name, or none.",
    ),
]

PhrasesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Fixed lines in which your own product declines, one a line.",
    ),
]


def report_audit(decisions: Decisions, folder: Path) -> audits.Audit:
    """Audit a log, print what was read and found, and write it to a folder."""
    print(_fill(decisions.reading.lines), end="\n\n", flush=True)
    vectors = None if decisions.clustered else embed_log(decisions)
    found = audits.audit(decisions, vectors=vectors)
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


def embed_log(decisions: Decisions) -> np.ndarray:
    """Return the sentence vectors of a log's rows.

    Raises DataError if it has no texts, or if the encoder's packages are not there.
    """
    texts = decisions.rows["text"].tolist()
    if not any(texts):
        raise DataError(
            f"{decisions.name}: there are neither clusters nor texts; name one of them,"
            " with --cluster or --text"
        )
    try:
        from paraguard_utils.models import encoder

        return encoder.memoize_embedding(encoder.encode_texts)(texts)
    except ModuleNotFoundError as missing:
        hints = decisions.cluster_hints
        offered = f" Here these may do: {'; '.join(hints)}." if hints else ""
        raise DataError(
            f"{decisions.name}: no column says which requests ask the same (cluster)."
            " Name it with --cluster COLUMN, or cut an id: --cluster"
            f" 'COLUMN~PATTERN'.{offered} Near neighbours can replace clusters, after"
            f" pip install '.[models]' in a clone ({missing.name} is not there)."
        ) from None


def _fill(lines: Sequence[str]) -> str:
    return "\n".join(textwrap.fill(line, 88) for line in lines)


def format_comparison(old: Decisions, new: Decisions) -> str:
    """Return the comparison of two logs as a table."""
    table = audits.compare(old, new)
    rows = {}
    for row in table.to_dict("records"):
        shown = {"clusters": row["n_clusters"], "p (dr)": f"{row['p']:.3f}"}
        for name in ("frr", "dr", "rephrased3"):
            shown[f"{name}, new minus old"] = audits.format_cell(row, name)
        rows[row["system"]] = shown
    return "\n".join([pd.DataFrame(rows).to_string(), *page.list_audit_notes(table)])


def format_plan() -> str:
    """Say how wide intervals will be, under assumed rates."""
    tables = [
        "Half of the width of a 95 % interval, by clusters; refusals: how many to"
        " expect."
    ]
    for rate in (0.05, 0.2, 0.5):
        for dr in (0.3, 0.7):
            plan = audits.plan_clusters(audits.simulate_clusters(rate, dr, size=6))
            tables.append(
                f"6 wordings a cluster, {100 * rate:.0f} % refused, DR {dr}\n"
                f"{plan.to_string(index=False, float_format='%.3f')}"
            )
    return "\n\n".join(tables)


def read_score_rows(
    file: str | Path, columns: Mapping[str, str], harmful: bool = False
) -> pd.DataFrame:
    """Read score, cluster and harmful of each row.

    They come from `columns` or, where "", from those of the usual names. `harmful` is
    assumed where the file does not say. Raise DataError about the first row that lacks
    one of the three.
    """
    source = records.find_log_source(file)
    named = dict.fromkeys(records.USUAL_COLUMNS, "none") | dict(columns)
    rows = records.read_rows(source, named).frame.dropna(axis=1, how="all")
    for name in ("score", "cluster"):
        if name not in rows:
            raise DataError(
                f"{source.name}: there is no column of {name}s; name it with --{name}"
            )
    rows = rows.astype(object).where(rows.notna(), "")
    scores = pd.to_numeric(rows["score"], errors="coerce")
    source.check(rows["score"], scores.abs() < np.inf, "is no number")
    source.check(rows["cluster"], rows["cluster"].str.strip() != "", "is blank")
    if "harmful" in rows:
        marks = translate(rows["harmful"], HARMFUL_WORDS)
        source.check(rows["harmful"], marks.notna(), "is neither true nor false")
    else:
        marks = harmful
    return rows.assign(score=scores, harmful=marks)


def describe_cut(rows: pd.DataFrame, requests: float, confidence: float) -> list[str]:
    """Say which cut keeps the promise on the harmless rows of `read_score_rows`.

    Say also what it still blocks of the others.
    """
    harmful = rows["harmful"].astype(bool)
    own = rows[~harmful]
    cut = choose_promised_threshold(
        own["score"], own["cluster"], requests=requests, confidence=confidence
    )
    if harmful.any():
        blocked = rows.loc[harmful, "score"] > cut.threshold
        ids = rows.loc[harmful, "cluster"]
        share, low, high = ClusterBootstrap(ids).share(ids, blocked)
        price = (
            f"It still blocks {share:.0%} [{low:.0%}, {high:.0%}] of {len(ids)} harmful"
            " requests."
        )
    else:
        price = (
            "What this lets through is unknown: name harmful requests with --twins or"
            " --harmful."
        )
    return [
        f"Block scores above {cut.threshold!r}.",
        f"{cut.blocked} of {cut.clusters} harmless requests have a wording above it."
        f" With {confidence:.0%} confidence, at most {cut.upper:.1%} of such requests,"
        " in as many wordings each, have one that is blocked.",
        price,
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
    refusal_phrases: PhrasesOption = None,
) -> None:
    """Label answers as accepted or refused, on standard output.

    It prints the file with label, kind, rule and p_refusal; under the names
    paraguard_label and so on where the file has such columns itself. What has no label
    is unparsed; its kind says why.

    Example: paraguard label answers.csv --column completion --request prompt >
    labelled.csv
    """
    frame = records.read_table(records.find_log_source(file))
    for name, option in ((column, "--column"), (request, "--request")):
        if name and list(frame).count(name) != 1:
            problem = "no column" if name not in frame else "two columns"
            raise DataError(
                f"{file}: {problem} {name!r}; it has {', '.join(frame)}; name one with"
                f" {option}"
            )
    asked = frame[request] if request else None
    phrases = read_phrases(refusal_phrases) if refusal_phrases else []
    reasons = frame.get("finish_reason")
    found = label_refusals(frame[column], reasons, asked, labeller, phrases)
    print_labelled(frame, found)


def print_labelled(frame: pd.DataFrame, found: pd.DataFrame) -> None:
    """Print a file with the columns of its labels, and keep its own columns."""
    taken = [name for name in found if name in frame]
    if taken:
        found = found.add_prefix("paraguard_")
        print(
            f"The file has columns {', '.join(taken)}: ours are called"
            f" {', '.join(found)}.",
            file=sys.stderr,
        )
    both = [frame.reset_index(drop=True), found.reset_index(drop=True)]
    pd.concat(both, axis=1).to_csv(sys.stdout, index=False)


@app.command()
def threshold(
    file: Annotated[
        str,
        typer.Argument(help="A guard's scores, a row a request; - for standard input."),
    ],
    requests: Annotated[
        float, typer.Option(help="Share of harmless requests it may block.")
    ] = MAX_REQUESTS,
    confidence: Annotated[float, typer.Option(help="How sure that is.")] = CONFIDENCE,
    twins: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Scores of harmful requests, with the same columns."
        ),
    ] = "",
    score: ColumnOption = "",
    cluster: ColumnOption = "",
    harmful: ColumnOption = "",
) -> None:
    """Choose the cut that blocks at most a share of harmless requests.

    A request is blocked if any of its wordings is. What the cut costs is printed too.

    Example: paraguard threshold scores.csv --requests 0.05
    """
    columns = {"score": score, "cluster": cluster, "harmful": harmful}
    rows = read_score_rows(file, columns)
    if twins:
        rows = pd.concat([rows, read_score_rows(twins, columns, harmful=True)])
    print(_fill(describe_cut(rows, requests, confidence)))


@app.command()
def audit(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Decisions or answers, - for standard input; several are one log, or"
            " two with --compare.",
        ),
    ] = None,
    text: ColumnOption = "",
    answer: ColumnOption = "",
    decision: ColumnOption = "",
    cluster: ColumnOption = "",
    system: ColumnOption = "",
    harmful: ColumnOption = "",
    annotation: ColumnOption = "",
    repeat: ColumnOption = "",
    rejects: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE",
            help="A further decision that is a refusal; unknown words are answers then;"
            " repeatable.",
        ),
    ] = None,
    requests: Annotated[
        str, typer.Option("--input", metavar="FILE", help="Input file of a batch.")
    ] = "",
    errors: Annotated[
        str,
        typer.Option(metavar="FILE", help="Error file of a batch, read as rows too."),
    ] = "",
    side_by_side: Annotated[
        bool,
        typer.Option(
            "--side-by-side",
            help="Each file has another wording of every request; rows of one id ask"
            " the same.",
        ),
    ] = False,
    same_text: Annotated[
        SameText,
        typer.Option(
            help="What rows of one text are: runs, doubles to count once, or wordings."
        ),
    ] = "auto",
    refusal_phrases: PhrasesOption = None,
    formats: Annotated[
        bool, typer.Option("--formats", help="List the formats of logs.")
    ] = False,
    labeller: Annotated[
        str,
        typer.Option(help="cues or combined, for answers."),
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
        bool,
        typer.Option("--plan", help="Say how many clusters give which interval."),
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Audit recorded decisions of SmolLM2.")
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
        "harmful": harmful,
        "annotation": annotation,
        "repeat": repeat,
    }
    if formats:
        print(registry.list_formats())
        return
    if plan:
        print(format_plan())
        return
    files = [*(files or ()), *([str(DATA / "demo.csv")] if demo else [])]
    if not files or (compare and len(files) != 2):
        raise SettingsError("name one file or more, two with --compare, or --demo")
    phrases = read_phrases(refusal_phrases) if refusal_phrases else ()

    def read(*names: str) -> Decisions:
        return Decisions.from_files(
            names,
            columns,
            rejects or (),
            requests,
            labeller,
            side_by_side=side_by_side,
            same_text=same_text,
            refusal_phrases=phrases,
        )

    if compare:
        logs = [read(name) for name in files]
    else:
        logs = [read(*files, *([errors] if errors else []))]
    if compare:
        print(format_comparison(*logs))
        return
    before = read(baseline) if baseline else None
    stem = "stdin" if files[0] == records.STDIN else Path(files[0]).name.split(".")[0]
    found = report_audit(logs[0], out or RESULTS / "audit" / stem)
    findings = []
    if fail_above is not None:
        findings += gate.judge_audit(found.table, measure, fail_above)
    if before is not None:
        findings += gate.judge_audit(audits.compare(before, logs[0]), measure, margin)
    for one in findings:
        print(one.line)
    if json_file:
        content = gate.gate_json(found.table, found.sentences, findings)
        json_file.write_text(content, encoding="utf-8")
    if junit:
        junit.write_text(gate.gate_junit(findings), encoding="utf-8")
    if summary:
        with summary.open("a", encoding="utf-8") as opened:
            opened.write(gate.gate_markdown(found.sentences, findings))
    is_gate = fail_above is not None or before is not None
    sys.exit(gate.exit_status(findings) if is_gate else 0)
