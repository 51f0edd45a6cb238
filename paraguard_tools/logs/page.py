"""Write an audit: tables, a figure, and one page without scripts or a network."""

import base64
import html
import sys
from pathlib import Path

import pandas as pd

from paraguard_lab.sheets import escape_formulas
from paraguard_tools.logs import gate
from paraguard_tools.logs.audit import (
    AUDIT_HEADINGS,
    MAX_NAME_CHARS,
    Audit,
    format_cell,
)
from paraguard_utils.core.confusion import THETA

_MAX_ON_PAGE = 50
_NAMED_BY_USERS = ["system", "cluster", "text", "category"]


def display_audit(table: pd.DataFrame) -> pd.DataFrame:
    """Turn an audit's table around for readers.

    A row is a measure, a column a system; a dash stands for what is not known.
    """
    rows = table.to_dict("records")
    shown = {}
    for name, heading in AUDIT_HEADINGS.items():
        if f"{name}_low" in table:
            shown[heading] = [format_cell(row, name) for row in rows]
        elif name in table:
            counts = [f"{row[name]:,.0f}" for row in rows]
            shown[heading] = [one.replace("nan", "\u2013") for one in counts]
    systems = table["system"].astype(str).str[:MAX_NAME_CHARS]
    return pd.DataFrame(shown, index=systems.to_list()).T


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
    words = found.decisions.rows.loc[places, "text"].to_numpy()
    refusals = found.refusals.assign(text=words, row=places + found.decisions.first)
    tables = {
        "audit": found.table,
        "refusals": refusals,
        "brittle_clusters": found.brittle,
        "stops": found.stops,
    }
    files = []
    for name, frame in tables.items():
        if len(frame):
            files.append(out / f"{name}.csv")
            named = frame.columns.intersection(_NAMED_BY_USERS)
            cells = escape_formulas(frame[named].astype(str))
            frame = frame.assign(**cells)
            frame.to_csv(files[-1], index=False, lineterminator="\n")
    figure = _figure(found.table, out / "audit.png")
    if figure:
        files.append(figure)
    files.append(out / "report.html")
    files[-1].write_text(_render(found, refusals, figure), encoding="utf-8")
    return files


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
    figure, axes = style.subplots(1, 2, height=0.9 + 0.28 * len(known), sharey=True)
    labels = {
        "frr": "share of requests refused",
        "dr": "disagreement ratio: 0 meaning decides, 1 it does not",
    }
    for axis, (name, label) in zip(axes, labels.items(), strict=True):
        style.draw_interval_bars(axis, known, name, range(len(known)), color=style.INK)
        axis.set_xlim(0, max(1.0, known[f"{name}_high"].max()))
        axis.set_xlabel(label)
    # Between two dollars matplotlib reads mathematics
    names = known["system"].astype(str).map(gate.remove_unprintable)
    style.name_rows(axes[0], names.str[:MAX_NAME_CHARS].str.replace("$", r"\$"))
    figure.savefig(file, metadata={"Software": None})
    plt.close(figure)
    return file


def _render(found: Audit, refusals: pd.DataFrame, figure: Path | None) -> str:
    """Return one page; what the file says is escaped."""
    image = ""
    if figure:
        coded = base64.b64encode(figure.read_bytes()).decode()
        image = _IMAGE.format(coded)
    listed = refusals.head(_MAX_ON_PAGE).filter(
        ["system", "cluster", "isolation", "text"]
    )
    listed["system"] = listed["system"].astype(str).str[:MAX_NAME_CHARS]
    said = [*found.sentences, *list_audit_notes(found.table)]
    if found.decisions.labelled_by:
        said.append(f"Answers were labelled by {found.decisions.labelled_by}.")
    by = "clusters"
    if not found.decisions.clustered:
        by = f"neighbours at cosine {THETA:.2f} or more"
    stops = "None."
    if len(found.stops):
        stops = found.stops.to_html(index=False, border=0)
    return _PAGE.format(
        name=html.escape(Path(found.decisions.name).name),
        by=by,
        said="".join(f"<li>{html.escape(one)}</li>" for one in said),
        image=image,
        table=display_audit(found.table).to_html(border=0, na_rep=""),
        stops=stops,
        listed=listed.round(3).to_html(index=False, border=0, na_rep=""),
    )


_IMAGE = """<img alt="share refused and disagreement ratio, by system"
src="data:image/png;base64,{}">"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Audit of {name}</title>
<style>
body {{
  font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a;
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
}}
table {{
  border-collapse: collapse; font-size: 0.85rem; display: block; overflow-x: auto;
}}
th, td {{
  text-align: left; vertical-align: top;
  padding: 0.3rem 0.6rem; border-bottom: 1px solid #ddd;
}}
img {{ max-width: 100% }}
</style></head><body>
<h1>How sensibly does it refuse? {name}</h1>
<ul>{said}</ul>
{image}
<p>Disagreement ratio: how often two wordings of one request are decided differently,
over how often two unrelated requests are. Wordings of one request are {by}. In
brackets: 95 % intervals; a dash where there is too little to say.</p>
{table}
<h2>What providers stopped</h2>
{stops}
<h2>Refusals whose other wordings are answered</h2>
<p>Isolation: the share of a refused request's other wordings that are answered.</p>
{listed}
</body></html>
"""
