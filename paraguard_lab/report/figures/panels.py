"""Panels of figures whose rows are listed: strategies, terms, covariates."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from paraguard_utils.report.figures import style
from paraguard_utils.schemas import Table


def make_listed_panels(
    table: Table, rows: Sequence[str], across: int
) -> tuple[Figure, list[style.Panel]]:
    """Make a panel for each system, in which `rows` are listed from top to bottom."""
    across = min(across, table["system"].nunique())
    figure, panels = style.make_system_grid(table, across, 0.55 + 0.15 * len(rows))
    for axis, _, _ in panels:
        axis.set_title(axis.get_title("left").replace(", ", "\n"))
        style.draw_row_rules(axis)
    style.name_rows(panels[0][0], rows)
    return figure, panels
