"""What all figures share: style, palette, widths, panels and `publish_figure`."""

import os
from collections.abc import Collection, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
import pandas as pd
import PIL.Image
from IPython.display import Image, display
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_utils.models.prompting import model_of_system
from paraguard_utils.registry import display_titles, published_systems
from paraguard_utils.stores import Store, write_file

Look: TypeAlias = dict[str, Any]
"""Keyword arguments of matplotlib that say how something is drawn."""

# Widths of a figure in inches: one column and two columns of a paper.
COLUMN_WIDTH = 3.3
PAGE_WIDTH = 6.9

MIN_FONT_SIZE = 6
"""Size in points of a remark inside a figure, the smallest text there is."""

# Hue says what is drawn, and each hue says one thing in all figures; lightness says how
# much. The colours are Okabe and Ito's, with Tol's indigo, purple and sand, which every
# kind of colour vision can distinguish.
DECISION_COLOURS = {"accept": "#0072B2", "reject": "#D55E00"}
INTERPRETATION_COLOURS = {"relative": "#332288", "clipped": "#AA4499"}
MODEL_COLOURS = ("#009E73", "#E69F00", "#56B4E9")
"""Colours of the published models, in their order."""
INK = "#000000"
"""What belongs to no group."""
GREY = "#737373"
"""Remarks, and what is not tested."""
OTHER_COLOURS = ("#404040", "#8C8C8C")
"""Colours of models that are not published, in turn."""
PAPER_LINE: Look = {
    "color": INK,
    "linestyle": (0, (4, 2)),
    "linewidth": 0.8,
}
"""Dashed: a value of the paper."""
CHANCE_LINE: Look = {
    "color": GREY,
    "linestyle": (0, (1, 1.5)),
    "linewidth": 1.0,
}
"""Dotted: what chance gives."""

_SYSTEM_PROMPTS = {"none": (":", "o"), "safety": ("-", "s"), "strict": ("--", "^")}
"""The line and the marker of each system prompt."""

NO_PDF = "PARAGUARD_NO_PDF"
"""Environment variable: if it is set, figures are PNG and numbers only.

A PDF takes longer than all else about a figure, and a notebook shows none.
"""

_STYLE_FILE = Path(__file__).with_name("paraguard.mplstyle")


def subplots(
    *args: Any, height: float | None = None, **kwargs: Any
) -> tuple[Figure, Any]:
    """Make a figure and its axes in the project's style.

    Arguments are those of `pyplot.subplots`; `height`, in inches, makes the figure as
    wide as a page.
    """
    mpl.use("agg")
    plt.style.use(_STYLE_FILE)
    if height is not None:
        kwargs["figsize"] = (PAGE_WIDTH, height)
    return plt.subplots(*args, **kwargs)


def publish_figure(
    store: Store, name: str, figure: Figure, panel: pd.DataFrame, meta: dict
) -> None:
    """Write a figure as PNG and PDF, and the numbers that it draws as CSV; show it.

    They go to the store's `figures/`, without the PDF where `NO_PDF` is set. `panel`
    has the numbers, `meta` the parameters and the hashes of inputs.
    """
    png = store.output_path("figures", f"{name}.png")
    figure.savefig(png)
    # 128 colours are enough for a chart, and a notebook that shows it stays small.
    with PIL.Image.open(png) as picture:
        reduced = picture.convert("RGB").quantize(128)
    reduced.save(png, optimize=True)
    if not os.environ.get(NO_PDF):
        # Without software version and date, the same figure is the same bytes.
        undated = {"Creator": None, "Producer": None, "CreationDate": None}
        figure.savefig(png.with_suffix(".pdf"), metadata=undated)
    plt.close(figure)
    write_file(png.with_suffix(".csv"), panel, "panel", meta)
    _display(png)


def show_figure(store: Store, name: str) -> None:
    """Show a figure of the store in a notebook, as an earlier notebook published it.

    A figure that is not in the store is left out: a picture of the record must not
    stand among the results of another run.
    """
    if store.has("figures", f"{name}.png"):
        _display(store.path("figures", f"{name}.png"))


def _display(png: Path) -> None:
    """Show a picture in a notebook, at half of its pixels."""
    display(Image(png.read_bytes(), retina=True, alt=png.stem.replace("_", " ")))


def make_grid(
    names: Sequence[str], across: int, height: float
) -> tuple[Figure, list[Axes]]:
    """Make a page-wide figure with a panel for each name, titled by it.

    A line has `across` panels with shared axes and is `height` inches high.
    """
    lines = -(-len(names) // across)
    height = 0.3 + height * lines
    figure, axes = subplots(
        lines, across, height=height, squeeze=False, sharex=True, sharey=True
    )
    for place, title in enumerate(display_titles(names)):
        axis = axes.flat[place]
        axis.set_title(title)
        axis.xaxis.set_tick_params(labelbottom=place + across >= len(names))
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    return figure, list(axes.flat[: len(names)])


def name_rows(axis: Axes, names: Sequence[str]) -> None:
    """Name the rows 0, 1, ... of a panel, the first on top."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)


def draw_row_rules(axis: Axes) -> None:
    """Draw thin lines at the ticks of x behind the data, and no ticks at the rows."""
    axis.grid(axis="x", linewidth=0.3)
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", length=0)


def write_remark(
    axis: Axes, x: float, y: float, remark: str, of: str = "", **look: Any
) -> None:
    """Write a remark at a place in a panel.

    The place is in data, or in shares of the panel along `of` ("x", "y" or "xy").
    `look` are keyword arguments of `Axes.text`.
    """
    transforms = {
        "": axis.transData,
        "xy": axis.transAxes,
        "x": axis.get_yaxis_transform(),
        "y": axis.get_xaxis_transform(),
    }
    default: Look = {"size": MIN_FONT_SIZE, "transform": transforms[of]}
    axis.text(x, y, remark, **(default | look))


def name_lines(figure: Figure, axis: Axes, across: int = 5) -> None:
    """Name what is drawn in a panel above the figure, `across` names in a line."""
    handles, names = axis.get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        ncols=min(len(names), across),
        loc="outside upper center",
        frameon=False,
    )


def draw_interval_bars(
    axis: Axes,
    rows: pd.DataFrame,
    measure: str,
    at: np.ndarray | pd.Series,
    along: str = "x",
    **look: Any,
) -> None:
    """Draw each row's estimate as a dot on its interval, at the places `at`.

    The estimate is drawn along x or y; `look` are keyword arguments of `Axes.errorbar`.
    """
    columns = [measure, f"{measure}_low", f"{measure}_high"]
    value, low, high = rows[columns].to_numpy(float).T
    error = np.clip([value - low, high - value], 0, None)
    look = {"fmt": "o"} | look
    if along == "x":
        axis.errorbar(value, at, xerr=error, **look)
    else:
        axis.errorbar(at, value, yerr=error, **look)


def draw_judged_bars(
    axis: Axes,
    rows: pd.DataFrame,
    measure: str,
    at: np.ndarray,
    too_few: np.ndarray,
    **look: Any,
) -> None:
    """Draw estimates as `draw_interval_bars` does, in grey if they rest on too few."""
    grey: Look = {"color": GREY, "label": None}
    for chosen, own in ((too_few, grey), (~too_few, {"color": INK})):
        if chosen.any():
            draw_interval_bars(axis, rows[chosen], measure, at[chosen], **look | own)


def model_colours(models: Iterable[str]) -> dict[str, str]:
    """Return the colour of each model; one that is not published has a grey."""
    chat = map(model_of_system, published_systems("chat").index)
    published = dict(zip(dict.fromkeys(chat), MODEL_COLOURS, strict=False))
    others = cycle(OTHER_COLOURS)
    colours = {}
    for name in dict.fromkeys(models):
        colours[name] = published.get(name) or next(others)
    return colours


def system_looks(systems: Collection[str]) -> dict[str, tuple[str, str, str]]:
    """Return the colour of a system's model, and the line and marker of its prompt."""
    colours = model_colours(map(model_of_system, systems))
    looks = {}
    for name in systems:
        line, marker = _SYSTEM_PROMPTS.get(name.rpartition("--")[2], ("-.", "D"))
        looks[name] = (colours[model_of_system(name)], line, marker)
    return looks
