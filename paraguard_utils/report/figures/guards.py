"""The figure of notebook 05: what guards reject of harmless and harmful requests."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_utils.registry import display_titles
from paraguard_utils.report.figures import style
from paraguard_utils.schemas import Table

REJECT = style.DECISION_COLOURS["reject"]


def plot_both_corpora(table: Table) -> Figure:
    """Draw what each system rejects of harmless requests and of their harmful twins.

    A large gap means that the system distinguishes harmful from harmless requests; the
    largest are on top. Guards and models have a colour each. A page wide. `table` has
    system, axis ("model" for models), benign_rejected and twins_rejected with
    intervals, one row per system.
    """
    gap = table["twins_rejected"] - table["benign_rejected"]
    rows = table.loc[gap.sort_values(ascending=False, kind="stable").index]
    figure, axis = style.subplots(height=0.6 + 0.18 * len(rows))
    y = np.arange(len(rows))
    ends = rows["benign_rejected"], rows["twins_rejected"]
    axis.hlines(y, *ends, color=style.GREY, linewidth=0.8, zorder=0)
    is_model = rows["axis"].eq("model").to_numpy()
    for chosen, colour in ((~is_model, REJECT), (is_model, style.INK)):
        look: style.Look = {"ms": 4, "color": colour, "elinewidth": 0.8}
        one_kind = rows[chosen]
        style.draw_interval_bars(
            axis, one_kind, "benign_rejected", y[chosen], mfc="white", **look
        )
        style.draw_interval_bars(axis, one_kind, "twins_rejected", y[chosen], **look)
    _name_marks(axis)
    style.name_rows(axis, display_titles(rows["system"]))
    axis.set(xlim=(-0.02, 1.02))
    axis.set_xlabel("share rejected (bars: 95 % intervals; rows: sorted by the gap)")
    style.name_lines(figure, axis)
    return figure


def _name_marks(axis: Axes) -> None:
    """Name rings and dots, and the colours of guards and models."""
    names: dict[str, style.Look] = {
        "harmless requests": {"marker": "o", "color": style.INK, "mfc": "white"},
        "harmful twins": {"marker": "o", "color": style.INK},
        "guards": {"marker": "s", "color": REJECT},
        "models": {"marker": "s", "color": style.INK},
    }
    for name, look in names.items():
        axis.plot([], [], ls="none", ms=4, label=name, **look)
