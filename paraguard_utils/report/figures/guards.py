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
    gap = table["twins_rejected"] - table["benign_rejected"]
    rows = table.loc[gap.sort_values(ascending=False, kind="stable").index]
    figure, axis = style.subplots(height=0.6 + 0.18 * len(rows))
    y = np.arange(len(rows))
    ends = rows["benign_rejected"], rows["twins_rejected"]
    axis.hlines(y, *ends, color=style.GREY, linewidth=0.8, zorder=0)
    look: style.Look = {"ms": 4, "color": REJECT, "elinewidth": 0.8}
    kinds = {
        "benign_rejected": {"mfc": "white", "label": "harmless requests"},
        "twins_rejected": {"label": "harmful twins"},
    }
    for measure, own in kinds.items():
        style.draw_interval_bars(axis, rows, measure, y, **look, **own)
    style.name_rows(axis, display_titles(rows["system"]))
    axis.set(xlim=(-0.02, 1.02), xlabel="share rejected, with 95 % intervals")
    style.name_lines(figure, axis)
    return figure
