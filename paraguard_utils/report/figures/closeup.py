"""Figures of single rejections: the confusion map and the token view."""

from collections.abc import Iterable
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.typing import ColorType

from paraguard_utils.report.figures.style import BLUE, GREY, ORANGE, PAGE, subplots
from paraguard_utils.text import readable


def confusion_map(points: pd.DataFrame, lines: pd.DataFrame, title: str) -> Figure:
    """Draw prompts in a plane, and lines from the most confused rejections to their accepted neighbours.

    Parameters
    ----------
    points, lines : DataFrame
        From `closeup.map_points`. Distances are only a sketch of cosines.
    title : str
    """
    figure, axis = subplots(figsize=(0.75 * PAGE, 0.75 * PAGE + 0.3))
    looks = {
        "accept": ("accepted", {"marker": "o", "s": 7, "facecolors": "none", "edgecolors": BLUE, "linewidths": 0.5}),
        "reject": ("rejected", {"marker": "x", "s": 8, "color": ORANGE, "linewidths": 0.7}),
    }
    for label, (word, look) in looks.items():
        rows = points[points["label"] == label]
        axis.scatter(rows["x"], rows["y"], label=f"{word} (n = {len(rows)})", **look)
    ends = lines[["x", "y", "x_to", "y_to"]].to_numpy().reshape(-1, 2, 2)
    axis.add_collection(LineCollection(ends, colors="black", linewidths=0.5))
    numbered = points[points["number"].notna()].sort_values("number")
    axis.scatter(numbered["x"], numbered["y"], marker="x", s=16, color=ORANGE, linewidths=1.2, zorder=3)
    # One unit of length in the plane, about, for 8 points on paper.
    unit = 8 * np.ptp(points[["x", "y"]].to_numpy(), axis=0).max(initial=0) / (0.75 * PAGE * 72)
    halo = [patheffects.withStroke(linewidth=1.5, foreground="white")]
    for number, place in zip(numbered["number"], _beside(numbered[["x", "y"]].to_numpy(), ends, unit), strict=True):
        axis.text(*place, str(number), size=7, weight="bold", ha="center", va="center", zorder=4, path_effects=halo)
    axis.set_title(title, parse_math=False)
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, labelcolor=[BLUE, ORANGE],
                markerscale=1.5, handletextpad=0, borderpad=0, columnspacing=1)  # fmt: skip
    axis.set_xlabel("t-SNE of sentence vectors: distances are only a sketch of cosines", size=5.5, color=GREY)
    axis.margins(0.02)
    axis.set(xticks=[], yticks=[], aspect="equal")
    axis.spines[:].set_visible(False)
    return figure


def _beside(points: np.ndarray, lines: np.ndarray, unit: float) -> np.ndarray:
    """Find a place for a label one `unit` from each point: of 16 directions the one furthest from what is drawn.

    Parameters
    ----------
    points : numpy.ndarray, shape (n, 2)
    lines : numpy.ndarray, shape (m, 2, 2)
        Ends of the lines that labels keep away from.
    unit : float

    Returns
    -------
    numpy.ndarray, shape (n, 2)
    """
    angles = np.arange(16) * np.pi / 8
    ring = unit * np.column_stack([np.cos(angles), np.sin(angles)])
    along = np.linspace(0, 1, 50)[:, None, None]
    drawn = ((1 - along) * lines[:, 0] + along * lines[:, 1]).reshape(-1, 2)
    places = np.empty((0, 2))
    for point in points:
        # Labels are broader than lines: one counts as a unit nearer than it is.
        free = [
            np.hypot(*(near[:, None] - (point + ring)[None]).T).min(axis=1, initial=4 * unit) - less * unit
            for near, less in ((np.vstack([drawn, points]), 0), (places, 1))
        ]
        places = np.vstack([places, (point + ring)[np.argmax(np.minimum(*free).round(9))]])
    return places


TOKEN_SIZE, LINE, INDENT, LINES = 6, 9.5, 36, 3
"""Token view: font size, height of a line and indent of a prompt, in points; most lines of one prompt."""


def token_view(shown: pd.DataFrame, title: str) -> Figure:
    """Draw rejections above their nearest accepted neighbours, each token shaded by its distance to the other prompt.

    Parameters
    ----------
    shown : DataFrame
        From `closeup.token_pairs`.
    title : str
    """
    width, height, laid = PAGE * 72, 2.2 * LINE, []
    for (_, side), rows in shown.groupby(["number", "side"], sort=False):
        height += 1.7 * LINE if side == "rejected" else 0.0
        marks = _set(rows["token"], width - INDENT)
        laid.append((side, rows, height, marks))
        height += LINE * (1 + marks[-1][0])
    height += LINE / 2
    figure, axis = subplots(figsize=(PAGE, height / 72))
    figure.set_layout_engine("none")
    axis.set(position=(0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axis.axis("off")
    plain = {"va": "center", "size": TOKEN_SIZE, "parse_math": False}
    axis.text(0, 0.8 * LINE, title, **(plain | {"size": 7.5}))
    shades = mpl.cm.ScalarMappable(mpl.colors.Normalize(0, 1, clip=True), "Blues")
    for side, rows, top, marks in laid:
        if side == "rejected":
            pair = rows.iloc[0]
            kin = "same cluster" if pair["same_cluster"] else "other cluster"
            about = (
                f"CI {pair['ci']:.3f}    similarity {pair['similarity']:.2f}, {kin}    Drift {pair['drift']:.2f}"
                f"    ProbShift {pair['prob_shift']:.2f}    PPL contrast {pair['ppl_relative']:.2f}"
            )
            axis.text(0, top - 0.6 * LINE, str(pair["number"]), **(plain | {"size": 7, "weight": "bold"}))
            axis.text(INDENT, top - 0.6 * LINE, about, **plain)
        axis.text(0, top + LINE / 2, side, color={"rejected": ORANGE, "accepted": BLUE}[side], weight="bold", **plain)
        for (line, left, size, text), distance in zip(marks, rows["distance"], strict=False):
            x, y = INDENT + left, top + LINE * line
            shade = shades.to_rgba(distance)
            axis.add_patch(Rectangle((x, y + 0.4), size, LINE - 0.8, facecolor=shade, linewidth=0))
            axis.text(x, y + LINE / 2, text, color=_readable_on(shade), **plain)
        if len(marks) < len(rows):
            line, left, size, _ = marks[-1]
            axis.text(INDENT + left + size, top + LINE * (line + 0.5), " …", **plain)
    bar = figure.add_axes((1 - 84 / width, 1 - 0.9 * LINE / height, 80 / width, 4 / height))
    figure.colorbar(shades, cax=bar, orientation="horizontal", ticks=[0, 0.5, 1])
    bar.tick_params(labelsize=5.5, length=1.5, pad=1)
    bar.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axis.text(width - 94, 0.7 * LINE, "distance of a token to its nearest in the other prompt (1 - cosine)", ha="right",
              **plain)  # fmt: skip
    if not len(shown):
        axis.text(0, 2.2 * LINE, "no rejection has an accepted neighbour", **plain)
    return figure


def _set(tokens: Iterable[str], width: float) -> list[tuple[int, float, float, str]]:
    """Set tokens in lines no wider than `width` points, broken before a word where one fits into a line.

    Returns
    -------
    list of (int, float, float, str)
        Line, left edge, width and drawn text of each token that finds room in `LINES` lines.
    """
    texts = [_drawn(token) for token in tokens]
    sizes = [_width(text) for text in texts]
    starts = [place for place, text in enumerate(texts) if place == 0 or text.startswith(" ")]
    marks: list[tuple[int, float, float, str]] = []
    line, left = 0, 0.0
    for start, stop in pairwise([*starts, len(texts)]):
        whole = sum(sizes[start:stop])
        for place in range(start, stop):
            # A script without spaces is one long word: it breaks between tokens.
            needed = whole if place == start and whole <= width else sizes[place]
            if left and left + needed > width - (_ELLIPSIS if line == LINES - 1 else 0):
                line, left = line + 1, 0.0
            if line == LINES:
                return marks
            text = texts[place] if left else texts[place].lstrip(" ")
            size = sizes[place] if text == texts[place] else _width(text)
            marks.append((line, left, size, text))
            left += size
    return marks


_FONT = FontProperties(family="DejaVu Sans", size=TOKEN_SIZE)
_ELLIPSIS = 8  # points that the mark of a cut prompt takes


def _width(text: str) -> float:
    return text_to_path.get_text_width_height_descent(text, _FONT, ismath=False)[0]


def _drawn(text: str) -> str:
    """Return a token's text as the font can draw it: a line feed as a mark, an empty box for a missing glyph."""
    glyphs = get_font(findfont(_FONT))
    text = readable(text.replace("\n", "↵").replace("\t", " "))
    return "".join(mark if glyphs.get_char_index(ord(mark)) else "□" for mark in text)


def _readable_on(colour: ColorType | np.ndarray) -> str:
    """Black or white, whichever has the higher contrast (WCAG 2) on a colour."""
    channels = mpl.colors.to_rgba_array(colour)[0, :3]
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    return "black" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "white"
