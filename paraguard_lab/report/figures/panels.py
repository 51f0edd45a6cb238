"""What figures beyond the paper share: panels of systems, and more colours."""

from collections.abc import Sequence
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from paraguard_utils.report.figures import style
from paraguard_utils.schemas import Table

Panel: TypeAlias = tuple[Axes, str, Table]
"""A panel of a figure, the system that it shows, and that system's rows."""

PART_COLOURS = {
    "meaning": "#DDCC77",
    "style": "#7A7A7A",
    "wording": "#B8B8B8",
    "chance": "#EBEBEB",
}
"""Parts of a decision's variance; only meaning has a hue."""
PALE = "#EDEDED"
"""Backgrounds."""
SHADES = LinearSegmentedColormap.from_list("shades", ["#FFFFFF", "#777777"])
"""A scale on all of which black text is readable."""


def make_system_grid(
    table: Table, across: int, height: float
) -> tuple[Figure, list[Panel]]:
    """Make a grid (`make_grid`) with a panel for each system of a table."""
    groups = list(table.groupby("system", sort=False))
    figure, axes = style.make_grid([name for name, _ in groups], across, height)
    panels = []
    for axis, (name, rows) in zip(axes, groups, strict=True):
        panels.append((axis, name, rows))
    return figure, panels


def make_listed_panels(
    table: Table, rows: Sequence[str], across: int
) -> tuple[Figure, list[Panel]]:
    """Make a panel for each system, in which `rows` are listed from top to bottom."""
    across = min(across, table["system"].nunique())
    figure, panels = make_system_grid(table, across, 0.55 + 0.15 * len(rows))
    for axis, _, _ in panels:
        axis.set_title(axis.get_title("left").replace(", ", "\n"))
        style.draw_row_rules(axis)
    style.name_rows(panels[0][0], rows)
    return figure, panels
