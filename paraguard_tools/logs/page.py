"""Write an audit: tables, a figure, and one page without scripts or a network."""

import base64
import html
import io
import sys
import warnings
from pathlib import Path

import pandas as pd

from paraguard_lab.sheets import format_sheet
from paraguard_tools.logs.audit import (
    AUDIT_HEADINGS,
    Audit,
    format_cell,
    lines_read,
)
from paraguard_tools.logs.files import remove_file, write_whole, write_whole_text
from paraguard_tools.logs.names import (
    MAX_NAME_CHARS,
    escape_unprintable,
    show_system_name,
)
from paraguard_utils.core.confusion import THETA

_MAX_ON_PAGE = 50
_NAMED_BY_USERS = ["system", "cluster", "text", "category"]

FILES = (
    "audit.csv",
    "refusals.csv",
    "brittle_clusters.csv",
    "stops.csv",
    "audit.png",
    "report.html",
)
"""What an audit may write to its folder."""


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
    return pd.DataFrame(
        shown, index=[show_system_name(row["system"]) for row in rows]
    ).T


def list_audit_notes(table: pd.DataFrame) -> list[str]:
    """Return the notes of an audit's table, a line each."""
    return [
        f"{show_system_name(row['system'])}: {row['note']}"
        for row in table.to_dict("records")
        if row["note"]
    ]


def write_audit_page(found: Audit, out: Path) -> list[Path]:
    """Write an audit to a folder, and return the files.

    They are its tables, a figure and a page. Of an earlier audit in the folder nothing
    is left, and each file is written whole or not at all.
    """
    places = found.refusals["row"].astype(int)
    words = found.decisions.rows.loc[places, "text"].to_numpy()
    refusals = found.refusals.assign(text=words, row=places + found.decisions.first)
    tables = {
        "audit": found.table,
        "refusals": refusals,
        "brittle_clusters": found.brittle,
        "stops": found.stops,
    }
    for name in FILES:
        remove_file(out / name)
    files = []
    for name, frame in tables.items():
        if len(frame):
            files.append(out / f"{name}.csv")
            write_whole_text(files[-1], format_sheet(frame))
    figure = _draw(found.table)
    if figure:
        files.append(out / "audit.png")
        write_whole(files[-1], lambda part: part.write_bytes(figure))
    files.append(out / "report.html")
    write_whole_text(files[-1], _render(found, refusals, figure))
    return files


def _draw(table: pd.DataFrame) -> bytes:
    """Draw FRR and DR of each system with their intervals, as PNG.

    Nothing where matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot as plt

        from paraguard_utils.report.figures import style
    except ModuleNotFoundError as error:
        print(
            f"the report has no picture, which takes the package {error.name}",
            file=sys.stderr,
        )
        return b""
    known = table[table["frr"].notna()].head(40)
    if known.empty:
        return b""
    figure, axes = style.subplots(1, 2, height=0.9 + 0.28 * len(known), sharey=True)
    labels = {
        "frr": "share of requests refused",
        "dr": "DR: 0 wordings agree, 1 as unrelated requests",
    }
    for axis, (name, label) in zip(axes, labels.items(), strict=True):
        style.draw_interval_bars(axis, known, name, range(len(known)), color=style.INK)
        axis.set_xlim(0, max(1.0, known[f"{name}_high"].max()))
        axis.set_xlabel(label)
    # Between two dollars matplotlib reads mathematics
    names = known["system"].astype(str).str[:MAX_NAME_CHARS].map(escape_unprintable)
    style.name_rows(axes[0], names.str.replace("$", r"\$"))
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        # The font lacks the letters of many scripts, and says so a letter
        warnings.filterwarnings("ignore", message=r"Glyph .* missing")
        figure.savefig(drawn, format="png", metadata={"Software": None})
    plt.close(figure)
    return drawn.getvalue()


def _render(found: Audit, refusals: pd.DataFrame, figure: bytes) -> str:
    """Return one page; what the file says is escaped."""
    image = ""
    if figure:
        coded = base64.b64encode(figure).decode()
        image = _IMAGE.format(coded)
    overturned = refusals[refusals["isolation"] > 0].head(_MAX_ON_PAGE)
    listed = "None."
    if len(overturned):
        shown = overturned.filter(["system", "cluster", "isolation", "text"]).round(3)
        listed = _escape_cells(shown).to_html(index=False, border=0, na_rep="")
    said = [
        *lines_read(found.decisions),
        *found.sentences,
        *list_audit_notes(found.table),
    ]
    if found.decisions.labelled_by:
        said.append(f"Answers were labelled by {found.decisions.labelled_by}.")
    by = "clusters"
    if not found.decisions.clustered:
        by = f"neighbours at cosine {THETA:.2f} or more"
    stops = "None."
    if len(found.stops):
        stops = _escape_cells(found.stops).to_html(index=False, border=0)
    name = escape_unprintable(Path(found.decisions.name).name)
    return _PAGE.format(
        name=html.escape(name),
        by=by,
        said="".join(f"<li>{html.escape(one)}</li>" for one in said),
        image=image,
        table=display_audit(found.table).to_html(border=0, na_rep=""),
        stops=stops,
        listed=listed,
    )


def _escape_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Make visible what users' names hold, and cut the names of systems."""
    shown = frame.copy()
    for name in frame.columns.intersection(_NAMED_BY_USERS):
        most = MAX_NAME_CHARS if name == "system" else None
        texts = frame[name].astype(object).map(str).str[:most]
        shown[name] = texts.map(escape_unprintable)
    return shown


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
<h1>How consistently does it refuse? {name}</h1>
<ul>{said}</ul>
{image}
<p>Disagreement ratio: how often two wordings of one request are decided differently,
over how often two unrelated requests are. Wordings of one request are {by}. In
brackets: 95 % intervals; a dash where there is too little to say.</p>
{table}
<h2>What providers stopped</h2>
{stops}
<h2>Refusals of which another wording is answered</h2>
<p>Isolation: the share of a refused request's other wordings that are answered.</p>
{listed}
</body></html>
"""
