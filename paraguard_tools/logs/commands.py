"""The commands that need no optional package.

They are `paraguard audit`, `paraguard label` and `paraguard threshold`. The parameters
of a command are its options, however many there are.
"""

import hashlib
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from paraguard_lab.sheets import format_sheet
from paraguard_tools.answers.canned import read_phrases
from paraguard_tools.logs import audit as audits
from paraguard_tools.logs import gate, names, page, records
from paraguard_tools.logs.decisions import (
    HARMFUL_WORDS,
    Decisions,
    label_refusals,
    translate,
)
from paraguard_tools.logs.formats import registry
from paraguard_tools.logs.options import (
    DEFAULT_MARGIN,
    JudgingOptions,
    ReadingOptions,
    Reports,
    refuse_options,
)
from paraguard_tools.logs.repeats import SameText
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.errors import DataError, SettingsError
from paraguard_utils.paths import DATA, RESULTS

OPTIONS: dict[str, Any] = {
    "add_completion": False,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

_QUOTED = re.compile(r'"[^"]*"')

app = typer.Typer(
    help="Measure how consistently a model or a guard refuses.", **OPTIONS
)

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
    """Audit a log, write what was found to a folder, and print it.

    What was read is said before any rate.
    """
    vectors = None if decisions.clustered else embed_log(decisions)
    found = audits.audit(decisions, vectors=vectors)
    written = page.write_audit_page(found, folder)
    read = map(names.escape_line, audits.lines_read(decisions))
    print(_fill(list(read)), end="\n\n", flush=True)
    if decisions.labelled_by:
        print(
            "There is no column of decisions: answers were labelled by"
            f" {decisions.labelled_by}.\n"
        )
    print(_fill(found.sentences), end="\n\n")
    print(page.display_audit(found.table).to_string(), end="\n\n")
    if notes := page.list_audit_notes(found.table):
        print(_fill(notes), end="\n\n")
    listed = ", ".join(path.name for path in written)
    print(f"written to {names.escape_line(_locate(folder))}: {listed}")
    return found


def _locate(path: Path) -> str:
    """Return a path that leads there from the folder of the caller."""
    path = path.absolute()
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return path.as_posix()


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

        return encoder.encode_texts(texts)
    except ModuleNotFoundError as missing:
        hints = decisions.cluster_hints
        offered = f" Here these may do: {'; '.join(hints)}." if hints else ""
        raise DataError(
            f"{decisions.name}: no column says which requests ask the same (cluster)."
            " Name it with --cluster COLUMN, or cut an id: --cluster"
            f" 'COLUMN~PATTERN'.{offered} Or let near neighbours stand in for clusters:"
            f" pip install '.[models]' in a clone (it brings {missing.name})."
        ) from None


def _fill(lines: Sequence[str]) -> str:
    """Break lines, but not before % or inside a quoted name.

    Half a name could look like a line of ours.
    """
    filled = []
    for line in lines:
        joined = _QUOTED.sub(lambda name: name[0].replace(" ", "\xa0"), line)
        joined = joined.replace(" %", "\xa0%")
        broken = textwrap.fill(joined, 88, break_on_hyphens=False)
        filled.append(broken.replace("\xa0", " "))
    return "\n".join(filled)


def format_comparison(old: Decisions, new: Decisions) -> str:
    """Return the comparison of two logs as a table."""
    table = audits.compare(old, new)
    rows = {}
    for row in table.to_dict("records"):
        shown = {
            "clusters in both": _format_shares(row, "n_shared", "n_clusters"),
            "without a decision": _format_sides(row, "n_undecided"),
            "p (dr)": f"{row['p']:.3f}".replace("nan", "\u2013"),
        }
        for name in ("frr", "dr", "rephrased3"):
            shown[f"{name}, new minus old"] = audits.format_cell(row, name)
        flips = "\u2013"
        if row["n_matched"] > 0:
            flips = (
                f"{row['became_refused']:,.0f} became refused,"
                f" {row['became_answered']:,.0f} answered,"
                f" of {row['n_matched']:,.0f} in both"
            )
        shown["requests with one text"] = flips
        rows[names.show_system_name(row["system"])] = shown
    return "\n".join([pd.DataFrame(rows).to_string(), *page.list_audit_notes(table)])


def _format_shares(row: Mapping[str, Any], part: str, whole: str) -> str:
    """Say how many of both logs' are shared."""
    if row["only_in"]:
        return "\u2013"
    return f"{row[part]:,.0f} of {_format_sides(row, whole)}"


def _format_sides(row: Mapping[str, Any], name: str) -> str:
    """Return a count of the older log, and of the newer."""
    if row["only_in"]:
        return "\u2013"
    return f"{row[f'{name}_old']:,.0f} and {row[f'{name}_new']:,.0f}"


def format_plan() -> str:
    """Say how wide intervals will be, under assumed rates."""
    tables = [
        "Half of the width of a 95 % interval, by clusters; refusals: how many to"
        " expect."
    ]
    clusters = ClusterBootstrap(range(audits.SIMULATED_CLUSTERS))
    for rate in (0.05, 0.2, 0.5):
        for dr in (0.3, 0.7):
            decided = audits.simulate_clusters(rate, dr, size=6)
            plan = audits.plan_clusters(decided, clusters)
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
    """Print a file with the columns of its labels, and keep its own columns.

    Texts that a spreadsheet would run as formulas are escaped (`sheets.format_sheet`).
    """
    taken = [name for name in found if name in frame]
    if taken:
        found = found.add_prefix("paraguard_")
        print(
            f"The file has columns {', '.join(taken)}: ours are called"
            f" {', '.join(found)}.",
            file=sys.stderr,
        )
    both = [frame.reset_index(drop=True), found.reset_index(drop=True)]
    sys.stdout.write(format_sheet(pd.concat(both, axis=1)))


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
    """Choose the threshold that blocks at most a share of harmless requests.

    A request is blocked if any of its wordings is. What it costs is printed too.

    Example: paraguard threshold scores.csv --requests 0.05
    """
    columns = {"score": score, "cluster": cluster, "harmful": harmful}
    rows = read_score_rows(file, columns)
    if twins:
        rows = pd.concat([rows, read_score_rows(twins, columns, harmful=True)])
    print(_fill(describe_cut(rows, requests, confidence)))


def name_audit_folder(file: str, demo: bool = False) -> Path:
    """Return the folder of a log's audit: two logs have two, whatever they are called.

    Its name ends with a few letters that stand for where the log is.
    """
    if demo or file == records.STDIN:
        return RESULTS / "audit" / ("demo" if demo else "stdin")
    path = Path(file).absolute()
    place = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()
    stem = re.sub(r"[^\w-]+", "_", path.name.split(".")[0]).strip("_")[:60]
    return RESULTS / "audit" / f"{stem or 'log'}-{place[:6]}"


@contextmanager
def _usage_errors(context: typer.Context) -> Iterator[None]:
    """Turn settings that are not allowed into errors of usage, of this command."""
    try:
        yield
    except SettingsError as error:
        raise typer.BadParameter(str(error), context) from None
    except typer.BadParameter as error:
        error.ctx = error.ctx or context
        raise


@app.command()
def audit(
    context: typer.Context,
    logs: Annotated[
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
    conversation: ColumnOption = "",
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
        typer.Option(
            metavar="cues|combined",
            help="Who labels answers, if there are no decisions.",
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write to.", show_default="one for each log in results/audit"
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare two logs of the same clusters.")
    ] = False,
    baseline: Annotated[
        str, typer.Option(metavar="FILE", help="Fail where it got worse than this log.")
    ] = "",
    margin: Annotated[
        float | None,
        typer.Option(
            help="How much worse than the baseline is still not worse.",
            show_default=str(DEFAULT_MARGIN),
        ),
    ] = None,
    fail_above: Annotated[
        float | None, typer.Option(help="Fail where the measure is above this.")
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="dr|frr",
            help="What is judged; repeatable.",
            show_default="dr by --fail-above, both by --baseline",
        ),
    ] = None,
    max_undecided: Annotated[
        float | None,
        typer.Option(
            help="Share of the requests that may lack a decision, for a verdict.",
            show_default=str(gate.MAX_UNDECIDED),
        ),
    ] = None,
    min_shared: Annotated[
        float | None,
        typer.Option(
            help="Share of either log's clusters that --baseline must share.",
            show_default=str(gate.MIN_SHARED),
        ),
    ] = None,
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
    """Say how often and how consistently any model or guard refuses.

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
        "conversation": conversation,
    }
    reading = ReadingOptions(
        columns,
        tuple(rejects or ()),
        requests,
        errors,
        labeller,
        side_by_side,
        same_text,
        refusal_phrases,
    )
    judging = JudgingOptions(
        baseline,
        fail_above,
        margin,
        tuple(dict.fromkeys(measure or ())),
        max_undecided,
        min_shared,
    )
    reports = Reports(out, json_file, junit, summary)
    named = [*(logs or ()), *([str(DATA / "demo.csv")] if demo else [])]
    with _usage_errors(context):
        if formats:
            print(registry.list_formats())
            return
        if plan:
            others = {"--compare": compare, "--demo": demo, "a file": logs}
            given = reading.given | judging.given | reports.given
            refuse_options(others | given, "with --plan")
            print(format_plan())
            return
        if not named or (compare and len(named) != 2) or (demo and len(named) > 1):
            raise typer.BadParameter(
                "name one file or more, two with --compare, or --demo"
            )
        if compare:
            refuse_options(judging.given | reports.given, "with --compare")
        if demo:
            refuse_options(reading.given | judging.given, "with --demo")
        judging.check_given(reports)
        reading.check_given([*named, baseline])
        limits = judging.make_limits()
        folder = out or name_audit_folder(named[0], demo)
        pages = [] if compare else [folder / name for name in page.FILES]
        reports.make_way(pages, [*named, baseline, requests, errors])
        if compare:
            print(format_comparison(*(reading.read(name) for name in named)))
            return
        log = reading.read(*named, *filter(None, [errors]))
        before = reading.read(baseline) if baseline else None
    found = report_audit(log, folder)
    findings = limits.judge(found, before)
    for one in findings:
        print(one.line)
    reports.write(found, findings)
    sys.exit(gate.exit_status(findings) if limits.given else 0)
