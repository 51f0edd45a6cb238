"""What all figures share: one style, one palette, two widths, panels, interval bars,
and `publish_figure`.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
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
from paraguard_utils.schemas import Table
from paraguard_utils.stores import Store, write_file

Look: TypeAlias = dict[
    str, Any
]  # keyword arguments of matplotlib that say how something is drawn
COLUMN_WIDTH, PAGE_WIDTH = (
    3.3,
    6.9,
)  # figure widths in inches: one and two columns of a paper
MIN_FONT_SIZE = (
    6  # size in points of a remark inside a figure, the smallest text there is
)

# Hue says what is drawn, and each hue says one thing in all figures; lightness says how
# much. The colours are Okabe and Ito's, with Tol's indigo, purple and sand: every kind
# of colour vision tells them apart.
DECISION_COLOURS = {"accept": "#0072B2", "reject": "#D55E00"}
INTERPRETATION_COLOURS = {"relative": "#332288", "clipped": "#AA4499"}
MODEL_COLOURS = (
    "#009E73",
    "#E69F00",
    "#56B4E9",
)  # colours of the published models, in their order
PART_COLOURS = {
    "meaning": "#DDCC77",
    "style": "#7A7A7A",
    "wording": "#B8B8B8",
    "chance": "#EBEBEB",
}
"""Parts of a decision's variance; only meaning has a hue."""
INK, GREY, PALE = (
    "#000000",
    "#737373",
    "#EDEDED",
)  # what has no group; remarks, what is not tested; backgrounds
OTHER_COLOURS = (
    "#404040",
    "#8C8C8C",
)  # colours of what stands beside the published models, in turn
SHADES = mpl.colors.LinearSegmentedColormap.from_list(
    "shades", ["#FFFFFF", "#777777"]
)  # black text is readable on all
PAPER_LINE: Look = {
    "color": INK,
    "linestyle": (0, (4, 2)),
    "linewidth": 0.8,
}  # dashed: a value of the paper
CHANCE_LINE: Look = {
    "color": GREY,
    "linestyle": (0, (1, 1.5)),
    "linewidth": 1.0,
}  # dotted line of what chance gives

_SYSTEM_PROMPTS = {"none": (":", "o"), "safety": ("-", "s"), "strict": ("--", "^")}


def subplots(
    *args: Any, height: float | None = None, **kwargs: Any
) -> tuple[Figure, Any]:
    """Make a figure and its axes in the project's style.

    Arguments as matplotlib's own, `height` of a page-wide one.
    """
    mpl.use("agg")
    plt.style.use(Path(__file__).with_name("paraguard.mplstyle"))
    if height is not None:
        kwargs["figsize"] = (PAGE_WIDTH, height)
    return plt.subplots(*args, **kwargs)


def publish_figure(
    store: Store,
    name: str,
    figure: Figure,
    panel: pd.DataFrame,
    meta: dict,
    show: bool = True,
) -> None:
    """Write a figure as PNG and PDF, and the numbers it draws (`panel`) as CSV, under
    the store's `figures/`.

    `meta` holds parameters and hashes of inputs. `show` displays the PNG in a notebook.
    """
    png, pdf = (
        store.output_path("figures", f"{name}.{suffix}") for suffix in ("png", "pdf")
    )
    # No software version and no date: the same figure is the same bytes.
    figure.savefig(png, metadata={"Software": None}, pil_kwargs={"compress_level": 0})
    # 128 colours are enough for a chart, and a notebook that shows it stays small.
    with PIL.Image.open(png) as drawn:
        drawn.convert("RGB").quantize(128, dither=PIL.Image.Dither.NONE).save(
            png, optimize=True
        )
    figure.set_layout_engine(
        "none"
    )  # of the PNG: laying out once more takes longer than drawing
    figure.savefig(
        pdf, metadata={"CreationDate": None, "Creator": None, "Producer": None}
    )
    plt.close(figure)
    write_file(store.output_path("figures", f"{name}.csv"), panel, "panel", meta)
    if show:
        display(
            Image(
                png.read_bytes(),
                width=round(figure.get_figwidth() * 110),
                alt=name.replace("_", " "),
            )
        )


def make_system_grid(
    table: Table,
    across: int,
    height: float,
    margin: float = 0.0,
    xlabel: str = "",
    ylabel: str = "",
) -> tuple[Figure, list[tuple[Axes, str, Table]]]:
    """Make a page-wide figure with a titled panel for each system of a table.

    Return each with its system and rows.

    `across` panels, with shared axes, stand in a line, which is `height` inches high;
    `margin` inches are added once.
    """
    groups = list(table.groupby("system", sort=False))
    lines = -(-len(groups) // across)
    figure, axes = subplots(
        lines,
        across,
        height=margin + height * lines,
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    name_panels(axes, [name for name, _ in groups], xlabel, ylabel)
    return figure, [
        (axis, *group) for axis, group in zip(axes.flat, groups, strict=False)
    ]


def name_panels(
    axes: np.ndarray, systems: Sequence[str], xlabel: str, ylabel: str
) -> None:
    """Title the panels of a grid by systems and hide those that are left over.

    Labels stand at the outer ones.
    """
    for axis, title in zip_longest(axes.flat, display_titles(systems)):
        axis.set(title=title, xlabel=xlabel, ylabel=ylabel, visible=title is not None)
        axis.label_outer()


def make_listed_panels(
    table: Table, rows: Sequence[str], across: int
) -> tuple[Figure, list[tuple[Axes, str, Table]]]:
    """Make a panel for each system as `make_target_grid` does, in which `rows` are
    listed from top to bottom.
    """
    across = min(across, table["system"].nunique())
    figure, panels = make_system_grid(
        table, across, 0.55 + 0.15 * len(rows), margin=0.3
    )
    for place, (axis, _, _) in enumerate(panels):
        axis.set_title(axis.get_title("left").replace(", ", "\n"))
        draw_row_rules(axis)
        axis.xaxis.set_tick_params(labelbottom=place + across >= len(panels))
    name_rows(panels[0][0], rows)
    return figure, panels


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
    """Write a remark (`Axes.text`) at a place in data, or in shares of the panel along
    `of` ("x", "y" or "xy").
    """
    shares = {
        "xy": axis.transAxes,
        "x": axis.get_yaxis_transform(),
        "y": axis.get_xaxis_transform(),
    }
    usual: Look = {"size": MIN_FONT_SIZE, "transform": shares.get(of, axis.transData)}
    axis.text(x, y, remark, **(usual | look))


def name_lines(figure: Figure, axis: Axes) -> None:
    """Name what is drawn in a panel, in a line above the figure."""
    handles, names = axis.get_legend_handles_labels()
    figure.legend(
        handles, names, ncols=len(names), loc="outside upper center", frameon=False
    )


def draw_interval_bars(
    axis: Axes,
    rows: pd.DataFrame,
    measure: str,
    at: np.ndarray | pd.Series,
    along: str = "x",
    **look: Any,
) -> None:
    """Draw each row's estimate along x, or y, as a dot on its interval
    (`Axes.errorbar`), at the places `at`.
    """
    value, low, high = (
        rows[f"{measure}{end}"].to_numpy(float) for end in ("", "_low", "_high")
    )
    places = (value, at) if along == "x" else (at, value)
    axis.errorbar(
        *places, **({"fmt": "o", f"{along}err": [value - low, high - value]} | look)
    )


def spread_labels(values: Iterable[float], gap: float, most: float) -> np.ndarray:
    """Move heights of labels down as little as it takes that they are `gap` apart and
    none is above `most`.
    """
    wanted = np.array(list(values), float)
    places, last = wanted.copy(), most + gap
    for number in np.argsort(-wanted, kind="stable"):
        places[number] = last = min(wanted[number], last - gap)
    return places


def label_line_ends(
    figure: Figure, axis: Axes, ends: Sequence[tuple[float, str, Look]]
) -> None:
    """Name lines at their right ends, beside a panel whose limits are set: end, name
    and look of each line.
    """
    figure.draw_without_rendering()  # lays the panels out
    points = axis.get_window_extent().height * 72 / figure.dpi
    low, high = axis.get_ylim()
    places = spread_labels(
        [end for end, _, _ in ends], 1.25 * MIN_FONT_SIZE / points * (high - low), high
    )
    for (end, name, look), place in zip(ends, places, strict=True):
        x, y = [1.02, 1.08, 1.2], [end, place, place]
        axis.plot(
            x,
            y,
            transform=axis.get_yaxis_transform(),
            clip_on=False,
            linewidth=0.8,
            **look,
        )
        write_remark(axis, 1.23, place, name, of="x", va="center")


def model_looks(models: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return title and colour of each model: a published one keeps its own, others have
    their name and a grey.
    """
    chat = published_systems("chat")["title"]
    known = {
        model_of_system(system): title.partition(",")[0]
        for system, title in chat.items()
    }
    colours = dict(zip(known, MODEL_COLOURS, strict=False))
    names = list(dict.fromkeys(models))
    rest = [name for name in names if name not in colours]
    colours |= {
        name: OTHER_COLOURS[place % len(OTHER_COLOURS)]
        for place, name in enumerate(rest)
    }
    return {name: (known.get(name, name), colours[name]) for name in names}


def system_looks(systems: Collection[str]) -> dict[str, tuple[str, str, str]]:
    """Return the colour of each system's model, and the line and the marker of its
    system prompt.
    """
    looks = model_looks(map(model_of_system, systems))
    return {
        name: (
            looks[model_of_system(name)][1],
            *_SYSTEM_PROMPTS.get(name.rpartition("--")[2], ("-.", "D")),
        )
        for name in systems
    }
