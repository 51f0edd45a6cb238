"""A figure of notebook A2: how risk is distributed."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_lab.report.figures.panels import PALE
from paraguard_utils.corpus.gates import BIN_WIDTH
from paraguard_utils.report.figures import style
from paraguard_utils.settings import Gates


def plot_risk_distributions(distribution: pd.DataFrame, limits: Gates) -> Figure:
    """Draw each group's risk, with its median marked and the paper's gate shaded.

    A column wide.

    Parameters
    ----------
    distribution : DataFrame
        From `charged.describe_risks`.
    limits : Gates
        The gate's lowest and highest risk.
    """
    groups = list(dict.fromkeys(distribution["group"]))
    size = (style.COLUMN_WIDTH, 0.6 * len(groups) + 0.4)
    figure, axes = style.subplots(len(groups), 1, figsize=size, sharex=True)
    for axis, group in zip(axes, groups, strict=True):
        axis.axvspan(limits.min_risk, limits.max_risk, color=PALE, lw=0)
        _draw_risks(axis, group, distribution[distribution["group"] == group])
    style.write_remark(
        axes[0],
        limits.min_risk,
        1.02,
        "gate",
        of="y",
        color=style.GREY,
    )
    axes[-1].set_xlabel("risk")
    return figure


def _draw_risks(axis: Axes, group: str, rows: pd.DataFrame) -> None:
    """Draw the histogram of one group, and write how many texts the gate takes."""
    shares = rows["n"] / rows["texts"]
    axis.bar(
        rows["low"],
        shares,
        color=style.OTHER_COLOURS[1],
        align="edge",
        width=BIN_WIDTH,
        ec="white",
        lw=0.3,
    )
    first = rows.iloc[0]
    median = first["median"]
    axis.axvline(median, color=style.INK, linewidth=1)
    style.write_remark(
        axis,
        median,
        1.02,
        f" median {median:.2f}",
        of="y",
    )
    about = f"{group}\nn = {first['texts']:,}\n{first['within']:.0%} within"
    style.write_remark(
        axis,
        0.99,
        0.95,
        about,
        of="xy",
        ha="right",
        va="top",
    )
    axis.set(xlim=(0, 1), yticks=[])
    axis.spines["left"].set_visible(False)
