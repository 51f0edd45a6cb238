"""What all figures share: one style, one palette, column widths, panels, bars of uncertainty, and how they are written.

Each function of the other modules takes frames and returns a matplotlib figure; `publish` writes it as PNG and PDF with
its panel data and shows the PNG.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import PIL.Image
from IPython.display import Image, display
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_utils.registry import titles
from paraguard_utils.stores import Store, write

COLUMN, PAGE = 3.35, 6.9
"""Figure widths in inches: one and two columns of a paper."""

# Okabe and Ito's colours, told apart with every kind of colour vision.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"
SKY, AMBER = "#56B4E9", "#E69F00"
READING_COLOURS = {"relative": BLUE, "clipped": ORANGE}


def subplots(*args: Any, **kwargs: Any) -> tuple[Figure, Any]:
    """Make a figure and its axes in the project's style; arguments as matplotlib's own."""
    mpl.use("agg")
    plt.style.use(Path(__file__).with_name("paraguard.mplstyle"))
    return plt.subplots(*args, **kwargs)


def publish(store: Store, name: str, figure: Figure, panel: pd.DataFrame, meta: dict) -> None:
    """Write a figure as PNG, PDF and panel CSV under the store's `figures/`, show the PNG and return nothing.

    Parameters
    ----------
    store : stores.Store
    name : str
        File name without suffix.
    figure : matplotlib.figure.Figure
    panel : DataFrame
        The numbers that are drawn.
    meta : dict
        Parameters and hashes of inputs.
    """
    png, pdf = (store.target_path("figures", f"{name}.{suffix}") for suffix in ("png", "pdf"))
    # No software version and no date: the same figure is the same bytes.
    figure.savefig(png, metadata={"Software": None})
    # 128 colours are enough for a chart, and a notebook that shows it stays small.
    with PIL.Image.open(png) as drawn:
        drawn.convert("RGB").quantize(128, dither=PIL.Image.Dither.NONE).save(png, optimize=True)
    figure.savefig(pdf, metadata={"CreationDate": None, "Creator": None, "Producer": None})
    plt.close(figure)
    write(store.target_path("figures", f"{name}.csv"), panel, "panel", meta)
    display(Image(png.read_bytes(), width=round(figure.get_figwidth() * 110), alt=name.replace("_", " ")))


def grid(
    names: Sequence[str], across: int, height: float, margin: float = 0.0, **kwargs: Any
) -> tuple[Figure, np.ndarray]:
    """Make a page-wide grid of panels for targets, hiding those that are left over.

    Parameters
    ----------
    names : sequence of str
        Targets, a panel each.
    across : int
        Panels in a line.
    height, margin : float
        Of a line, and of what comes to all lines, in inches.
    **kwargs
        As of `subplots`.

    Returns
    -------
    figure : matplotlib.figure.Figure
    axes : numpy.ndarray of Axes, shape (lines, across)
    """
    lines = -(-len(names) // across)
    figure, axes = subplots(lines, across, figsize=(PAGE, margin + height * lines), squeeze=False, **kwargs)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    return figure, axes


def interval_bars(axis: Axes, rows: pd.DataFrame, measure: str, y: np.ndarray, **look: Any) -> None:
    """Draw an estimate of each row as a dot on the bar of its interval, at heights `y`; `look` is `Axes.errorbar`'s."""
    value, low, high = (rows[f"{measure}{end}"].to_numpy() for end in ("", "_low", "_high"))
    axis.errorbar(value, y, xerr=[value - low, high - value], fmt="o", **look)


def target_panels(names: Sequence[str], rows: Sequence[str], across: int) -> tuple[Figure, list[Axes]]:
    """Make a panel per target with shared axes and a line per row, top to bottom; return the figure and the panels."""
    across = min(across, len(names))
    figure, axes = grid(names, across, 0.55 + 0.15 * len(rows), margin=0.3, sharex=True, sharey=True)
    for place, axis in enumerate(axes.flat[: len(names)]):
        axis.set_title(titles([names[place]])[0].replace(", ", "\n"), fontsize=7)
        axis.yaxis.set_tick_params(length=0)
        axis.grid(axis="x", linewidth=0.3)
        axis.set_axisbelow(True)
        axis.xaxis.set_tick_params(labelbottom=place + across >= len(names))
    axes[0, 0].set_yticks(range(len(rows)), rows)
    axes[0, 0].set_ylim(len(rows) - 0.5, -0.5)
    return figure, list(axes.flat[: len(names)])
