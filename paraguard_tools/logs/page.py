"""Write an audit: tables, a figure, and one page without scripts or a network."""

import base64
import html
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paraguard_tools.logs import gate
from paraguard_tools.logs.audit import MAX_NAME_CHARS, Audit, format_cell
from paraguard_utils import text as texts
from paraguard_utils.core.confusion import THETA

_MAX_ON_PAGE = 50
AUDIT_HEADINGS = {
    "n": "rows",
    "n_scored": "decided",
    "n_reject": "refused",
    "n_blocked": "stopped by a filter",
    "n_clusters": "clusters",
    "n_near": "rows with a neighbour",
    "frr": "refused (FRR)",
    "dr": "disagreement ratio (DR)",
    "refused_once": "meanings refused in one wording or more",
    "refused_always": "meanings refused in all",
    "rephrased1": "answered at the first rewording",
    "rephrased3": "within three",
    "dr_few_words": "DR, few words in common",
    "dr_most_words": "DR, most words in common",
    "harmful_refused": "harmful requests refused",
    "rephrased3_harmful": "harmful ones answered within three",
    "rephrased3_difference": "harmless minus harmful",
    "frr_aside": "refused, filters set aside",
    "dr_aside": "DR, filters set aside",
    "frr_read": "refused, as readings correct it",
    "dr_read": "DR, as readings correct it",
}
"""How an audit's columns are headed, for readers who know no names of measures."""


def display_audit(table: pd.DataFrame) -> pd.DataFrame:
    """Turn an audit's table around for readers.

    A row is a measure, a column a system; a dash stands for what is not known.
    """
    columns: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(table.to_dict("records")):
        unique = (  # names may be alike where they are cut
            f"{str(row['system'])[:MAX_NAME_CHARS]}{chr(0x200B) * number}"
        )
        own = columns.setdefault(unique, {})
        for name, heading in AUDIT_HEADINGS.items():
            if f"{name}_low" in table:
                own[heading] = format_cell(row, name)
            elif name in table:
                own[heading] = (
                    f"{row[name]:,.0f}" if np.isfinite(row[name]) else "\u2013"
                )
    return pd.DataFrame(columns)


def list_audit_notes(table: pd.DataFrame) -> list[str]:
    """Return the notes of an audit's table, a line each."""
    return [
        f"{str(row['system'])[:MAX_NAME_CHARS]}: {row['note']}"
        for row in table.to_dict("records")
        if row["note"]
    ]


def write_audit_page(found: Audit, out: Path) -> list[Path]:
    """Write an audit to a folder, and return the files.

    They are its tables, a figure and a page.
    """
    out.mkdir(parents=True, exist_ok=True)
    places = found.refusals["row"].astype(int)
    words = found.decisions.texts(places.to_numpy()).to_numpy() if len(places) else []
    refusals = found.refusals.assign(text=words, row=places + found.decisions.first)
    tables = {
        "audit": found.table,
        "refusals": refusals,
        "brittle_clusters": found.brittle,
        "stops": found.stops,
    }
    files = {out / f"{name}.csv": frame for name, frame in tables.items() if len(frame)}
    for file, frame in files.items():
        safe = [
            column
            for column in ("system", "cluster", "text", "category")
            if column in frame
        ]
        frame = frame.assign(
            **{
                column: texts.escape_formulas(frame[column].astype(str))
                for column in safe
            }
        )
        file.write_text(frame.to_csv(index=False), encoding="utf-8")
    figure = _figure(found.table, out / "audit.png")
    (out / "report.html").write_text(_render(found, refusals, figure), encoding="utf-8")
    return [*files, *([figure] if figure else []), out / "report.html"]


def _figure(table: pd.DataFrame, file: Path) -> Path | None:
    """Draw FRR and DR of each system with their intervals.

    Nothing where matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot as plt

        from paraguard_utils.report.figures import style
    except ModuleNotFoundError as error:
        print(f"no figure: the package {error.name} is not installed", file=sys.stderr)
        return None
    known = table[table["frr"].notna()].head(40)
    if known.empty:
        return None
    figure, axes = style.subplots(
        1, 2, figsize=(style.PAGE_WIDTH, 0.9 + 0.28 * len(known)), sharey=True
    )
    y = np.arange(len(known))[::-1]
    labels = {
        "frr": "share of requests refused",
        "dr": "disagreement ratio: 0 meaning decides, 1 it does not",
    }
    for axis, (name, label) in zip(axes, labels.items(), strict=True):
        value, low, high = (
            known[f"{name}{end}"].to_numpy(float) for end in ("", "_low", "_high")
        )
        ends = np.isfinite(low) & np.isfinite(high) & np.isfinite(value)
        spread = [(value - low)[ends].clip(0), (high - value)[ends].clip(0)]
        axis.errorbar(value[ends], y[ends], xerr=spread, fmt="o", color=style.INK)
        axis.plot(value[~ends], y[~ends], "o", mfc="white", color=style.INK)
        axis.set_xlim(0, max([1.0, *high[ends]]))
        axis.set_xlabel(label)
        axis.set_ylim(-0.6, len(known) - 0.4)
    names = (
        known["system"].astype(str).map(gate.remove_unprintable).str[:MAX_NAME_CHARS]
    )
    axes[0].set_yticks(
        y, names.str.replace("$", r"\$")
    )  # between two of them matplotlib reads mathematics
    figure.savefig(file, metadata={"Software": None})
    plt.close(figure)
    return file


def _render(found: Audit, refusals: pd.DataFrame, figure: Path | None) -> str:
    """Return one page; what the file says is escaped."""
    image = ""
    if figure:
        coded = base64.b64encode(figure.read_bytes()).decode()
        image = (
            '<img alt="share refused and disagreement ratio, by system"'
            f' src="data:image/png;base64,{coded}">'
        )
    listed = refusals.head(_MAX_ON_PAGE).assign(
        system=lambda rows: rows["system"].astype(str).str[:MAX_NAME_CHARS]
    )
    listed = listed[
        [name for name in ("system", "cluster", "isolation", "text") if name in listed]
    ]
    said = "".join(
        f"<li>{html.escape(one)}</li>"
        for one in [*found.sentences, *list_audit_notes(found.table)]
    )
    labeller = found.decisions.labelled_by
    return _PAGE.format(
        name=html.escape(Path(found.decisions.name).name),
        by=(
            "clusters"
            if found.decisions.clustered
            else f"neighbours at cosine {THETA:.2f} or more"
        ),
        said=said,
        labelled=(
            f" Answers were labelled by {html.escape(labeller)}." if labeller else ""
        ),
        image=image,
        table=display_audit(found.table).to_html(border=0, na_rep=""),
        stops=(
            found.stops.to_html(index=False, border=0)
            if len(found.stops)
            else "<p>None.</p>"
        ),
        listed=listed.round(3).to_html(index=False, border=0, na_rep=""),
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Audit of {name}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }}
table {{ border-collapse: collapse; font-size: 0.85rem; display: block; overflow-x: auto }}
th, td {{ text-align: left; padding: 0.3rem 0.6rem; border-bottom: 1px solid #ddd; vertical-align: top }}
img {{ max-width: 100% }}
</style></head><body>
<h1>How sensibly does it refuse? {name}</h1>
<ul>{said}</ul>
{image}
<p>Disagreement ratio: how often two wordings of one request are decided differently, over how often two unrelated
requests are. Wordings of one request are {by}. In brackets: 95 % intervals; a dash where there is too little to
say.{labelled}</p>
{table}
<h2>What providers stopped</h2>
{stops}
<h2>Refusals whose other wordings are answered</h2>
<p>Isolation: the share of a refused request's other wordings that are answered.</p>
{listed}
</body></html>
"""  # noqa: E501
