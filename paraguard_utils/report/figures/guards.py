"""The figure of notebook 05: what guards reject of harmless and harmful requests."""

import numpy as np
from matplotlib.figure import Figure

from paraguard_utils.registry import display_titles
from paraguard_utils.report.figures import style
from paraguard_utils.schemas import Table

REJECT = style.DECISION_COLOURS["reject"]


def plot_both_corpora(table: Table) -> Figure:
    """Draw what each system rejects of harmless requests and of their harmful twins.

    A long bar means that the system distinguishes harmful from harmless requests; the
    longest are on top. A page wide. `table` has system, benign_rejected and
    twins_rejected with intervals, one row per system.
    """
    rows = table.assign(gap=table["twins_rejected"] - table["benign_rejected"])
    rows = rows.sort_values(
        "gap",
        ascending=False,
        kind="stable",
        ignore_index=True,
    )
    figure, axis = style.subplots(height=0.6 + 0.18 * len(rows))
    y = np.arange(len(rows))
    axis.hlines(
        y,
        rows["benign_rejected"],
        rows["twins_rejected"],
        color=style.GREY,
        linewidth=0.8,
        zorder=0,
    )
    marks = [
        ("benign_rejected", "white", "harmless"),
        ("twins_rejected", REJECT, "harmful twins"),
    ]
    for measure, face, text in marks:
        style.draw_interval_bars(
            axis,
            rows,
            measure,
            y,
            ms=4,
            color=REJECT,
            mfc=face,
            elinewidth=0.8,
        )
        axis.annotate(
            text,
            (rows[measure].iloc[0], 0),
            (0, 5),
            textcoords="offset points",
            ha="center",
            size=style.MIN_FONT_SIZE,
        )
    style.name_rows(axis, display_titles(rows["system"]))
    axis.set(
        xlim=(-0.02, 1.02),
        ylim=(len(rows) - 0.5, -0.9),
        xlabel="share rejected, with 95 % intervals",
    )
    return figure
