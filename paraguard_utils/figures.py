"""The figures: one style, one palette, column widths, an uncertainty mark on every estimate.

Each function takes frames and returns a matplotlib figure; `publish` writes it as PNG and PDF with its panel data and
shows the PNG.
"""

from itertools import pairwise
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
import numpy as np
import PIL.Image
import seaborn as sns
from IPython.display import Image, display
from matplotlib import patheffects
from matplotlib import pyplot as plt
from matplotlib.collections import LineCollection
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path

from paraguard_utils import signals
from paraguard_utils.cohorts import BINS
from paraguard_utils.gates import MEASURES
from paraguard_utils.metrics import CI, FEW, FEW_CLUSTERS
from paraguard_utils.risk import BIN
from paraguard_utils.stores import write
from paraguard_utils.targets import titles
from paraguard_utils.text import readable

COLUMN, PAGE = 3.35, 6.9
"""Figure widths in inches: one and two columns of a paper."""

# Okabe and Ito's colours, told apart with every kind of colour vision.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"
READING_COLOURS = {"relative": BLUE, "clipped": ORANGE}


def _subplots(*args, **kwargs):
    mpl.use("agg")
    plt.style.use(Path(__file__).with_name("paraguard.mplstyle"))
    return plt.subplots(*args, **kwargs)


def publish(store, name, figure, panel, meta):
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
    # 256 colours are enough for a chart, and a notebook that shows it stays small.
    with PIL.Image.open(png) as drawn:
        drawn.convert("RGB").quantize(256, dither=PIL.Image.Dither.NONE).save(png, optimize=True)
    figure.savefig(pdf, metadata={"CreationDate": None, "Creator": None, "Producer": None})
    plt.close(figure)
    write(store.target_path("figures", f"{name}.csv"), panel, "panel", meta)
    display(Image(png.read_bytes(), width=round(figure.get_figwidth() * 110), alt=name.replace("_", " ")))


def gate_distributions(counts, limits):
    """Draw histograms of what the gates measure, with their cut lines; passing and stopped candidates stacked.

    Parameters
    ----------
    counts : DataFrame
        From `gates.histogram`.
    limits : gates.Gates
    """
    figure, axes = _subplots(1, len(MEASURES), figsize=(PAGE, 1.9), sharey=True)
    cuts = {
        "similarity": [limits.min_similarity],
        "content_overlap": [limits.max_overlap],
        "risk": [limits.min_risk, limits.max_risk],
    }
    for axis, (measure, label) in zip(axes, MEASURES.items(), strict=True):
        rows = counts[counts["measure"] == measure]
        bars = {"align": "edge", "width": BIN, "linewidth": 0.3, "edgecolor": "white"}
        axis.bar(rows["low"], rows["passes"], color=BLUE, **bars)
        axis.bar(rows["low"], rows["stopped"], bottom=rows["passes"], color=ORANGE, **bars)
        for cut in cuts[measure]:
            axis.axvline(cut, color="black", linestyle="--", linewidth=0.8)
        axis.set(xlabel=label, ylabel="candidates" if axis is axes[0] else "", xlim=(0, 1))
    totals = counts[counts["measure"] == next(iter(MEASURES))]
    fates = (("passes", "pass all gates", BLUE), ("stopped", "stopped by a gate", ORANGE))
    for line, (fate, words, colour) in enumerate(fates):
        text = f"{totals[fate].sum()} {words}"
        axes[0].text(0.02, 0.95 - 0.1 * line, text, color=colour, transform=axes[0].transAxes, va="top", weight="bold",
                     size=6)  # fmt: skip
    return figure


def risk_distributions(distribution, limits):
    """Draw the risk scorer's distribution in each group of texts, the paper's gate shaded, medians marked.

    Parameters
    ----------
    distribution : DataFrame
        From `risk.distribution`.
    limits : gates.Gates
    """
    groups = list(dict.fromkeys(distribution["group"]))
    figure, axes = _subplots(len(groups), 1, figsize=(COLUMN, 0.55 * len(groups) + 0.4), sharex=True)
    for axis, group in zip(axes, groups, strict=True):
        rows = distribution[distribution["group"] == group]
        axis.axvspan(limits.min_risk, limits.max_risk, color="0.92", lw=0)
        axis.bar(rows["low"], rows["n"] / rows["texts"], align="edge", width=BIN, color=BLUE, edgecolor="white", lw=0.3)
        axis.axvline(rows["median"].iloc[0], color=ORANGE, linewidth=1)
        about = f"{group}\nn = {rows['texts'].iloc[0]}\n{rows['within'].iloc[0]:.0%} within"
        axis.text(0.99, 0.9, about, transform=axis.transAxes, ha="right", va="top", size=5.5)
        axis.set(xlim=(0, 1), yticks=[])
        axis.spines["left"].set_visible(False)
    axes[0].text(limits.min_risk + 0.01, 1.05, "gate", transform=axes[0].get_xaxis_transform(), size=6, color=GREY)
    axes[-1].set_xlabel("risk (orange: median)")
    return figure


def target_overview(table):
    """Draw how often and how sensibly each target refuses: estimates with 95 % intervals, one panel per measure.

    Rings are the floor of CI: the matched one where the table has it, else the CI of accepted prompts.
    """
    names = list(dict.fromkeys(table["target"]))
    matched = "floor_matched" in table
    floor_column, floor_name = ("floor_matched", "matched floor") if matched else ("floor", "unmatched floor")
    panels = (
        ("frr", "FRR", "share of\nprompts", ("relative",)),
        ("flip_rate", "Flip rate", "share of\nclusters", ("relative",)),
        ("ci", "CI", f"mean score,\nring: {floor_name}", ("relative", "clipped")),
        ("excess", "Excess in clusters", "rejected minus\naccepted pairs", ("relative", "clipped")),
        *(
            [("excess_matched", "Excess over floor", "CI minus\nmatched floor", ("relative", "clipped"))]
            if matched
            else []
        ),
    )
    counts = table.drop_duplicates("target").set_index("target").loc[names, ["n_reject", "n_scored"]]
    counted = [
        f"{title}\n{row.n_reject} of {row.n_scored} rejected"
        for title, row in zip(titles(names), counts.itertuples(), strict=True)
    ]
    figure, axes = _subplots(1, len(panels), figsize=(PAGE, 0.8 + 0.32 * len(names)), sharey=True)
    for axis, (measure, title, label, readings) in zip(axes, panels, strict=True):
        both = len(readings) == 2
        for shift, reading in zip((-0.13, 0.13) if both else (0,), readings, strict=True):
            rows = table[table["reading"] == reading].set_index("target").loc[names]
            y = np.arange(len(names)) + shift
            value, low, high = (rows[f"{measure}{end}"].to_numpy() for end in ("", "_low", "_high"))
            colour = READING_COLOURS[reading] if both else "black"
            axis.errorbar(value, y, xerr=[value - low, high - value], fmt="o", ms=3, capsize=0, color=colour)
            if measure == "ci":
                floor, low, high = (rows[f"{floor_column}{end}"].to_numpy() for end in ("", "_low", "_high"))
                axis.errorbar(floor, y, xerr=[floor - low, high - floor], fmt="o", ms=4.5, mfc="none", mew=0.7,
                              elinewidth=0.7, capsize=0, color=colour)  # fmt: skip
                up = 2 if reading == "relative" else 9
                axis.annotate(reading, (1, 1), xytext=(0, up), xycoords="axes fraction", textcoords="offset points",
                              ha="right", color=colour, weight="bold", size=6)  # fmt: skip
        axis.set(title=title, xlabel=label, yticks=range(len(names)), yticklabels=counted)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x", linewidth=0.3)
        axis.set_axisbelow(True)
        axis.locator_params(axis="x", nbins=3)
        if measure == "ci":
            axis.set_xlim(0, 1)
            for position in np.flatnonzero(rows["few"] & rows["ci"].notna()):
                axis.text(0.98, position, "n < 30", ha="right", va="center", size=5.5, color=GREY)
        elif measure == "excess_matched":
            axis.axvline(0, color="black", linewidth=0.6)
        elif measure == "excess":
            axis.axvline(0, color="black", linewidth=0.6)
            for position in np.flatnonzero(rows["n_mixed"].between(1, FEW_CLUSTERS - 1)):
                text = f"only {rows['n_mixed'].iloc[position]} clusters"
                axis.text(0.98, position - 0.33, text, transform=axis.get_yaxis_transform(), ha="right", va="center",
                          size=5.5, color=GREY, bbox={"color": "white", "pad": 0.5})  # fmt: skip
        else:
            axis.set_xlim(left=0)
        for position in np.flatnonzero(rows[measure].isna()):
            axis.text(
                0.02, position, "undefined", transform=axis.get_yaxis_transform(), va="center", size=5.5, color=GREY
            )
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def ci_against_similarity(scores, correlations):
    """Draw CI(r) against mean neighbour similarity, one panel per target, with r and its interval (Fig. 3).

    Parameters
    ----------
    scores : DataFrame
        Scored rejections of all targets: target, mean_similarity, ci, ci_clipped.
    correlations : DataFrame
        target, reading, r, r_low, r_high.
    """
    names = list(dict.fromkeys(correlations["target"]))
    lines = -(-len(names) // 3)
    figure, axes = _subplots(
        lines, min(len(names), 3), figsize=(PAGE, 2.2 * lines), sharex=True, sharey=True, squeeze=False
    )
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        own = scores[scores["target"] == name]
        for line, (reading, column) in enumerate(CI.items()):
            axis.scatter(own["mean_similarity"], own[column], s=7, color=READING_COLOURS[reading], alpha=0.7, lw=0)
            row = correlations[(correlations["target"] == name) & (correlations["reading"] == reading)].iloc[0]
            known = f"r = {row['r']:.2f} [{row['r_low']:.2f}, {row['r_high']:.2f}]"
            text = f"{reading}: {known if np.isfinite(row['r']) else 'r undefined'}"
            axis.text(0.02, 0.11 - 0.08 * line, text, color=READING_COLOURS[reading], transform=axis.transAxes,
                      fontsize=6, weight="bold")  # fmt: skip
        few = f", fewer than {FEW}" if len(own) < FEW else ""
        axis.set(title=f"{titles([name])[0]}\nn = {len(own)}{few}", ylim=(0, 1))
    for axis in axes[-1]:
        axis.set_xlabel("mean similarity to accepted neighbours")
    for axis in axes[:, 0]:
        axis.set_ylabel("CI of a rejection")
    return figure


def cohort_heat_map(table):
    """Draw CR@0.60 and CI by surface risk and neighbour similarity for one target, a column per reading (Fig. 5)."""
    figure, axes = _subplots(2, 2, figsize=(PAGE, 4.6), sharex=True, sharey=True)
    for number, (line, (measure, label)) in enumerate(zip(axes, (("cr60", "CR@0.60"), ("ci", "CI")), strict=True)):
        for axis, reading in zip(line, READING_COLOURS, strict=True):
            rows = table[(table["reading"] == reading) & table["risk"].isin(BINS) & table["similarity"].isin(BINS)]
            texts = rows.assign(text=[_cell(row, measure) for row in rows.to_dict("records")])
            values, texts = (
                frame.pivot(index="risk", columns="similarity", values=column).reindex(index=BINS[::-1], columns=BINS)
                for frame, column in ((rows, measure), (texts, "text"))
            )
            sns.heatmap(
                values, annot=texts.to_numpy(), fmt="", vmin=0, vmax=1, cmap="Blues", ax=axis, linewidths=0.5,
                cbar=axis is line[-1], cbar_kws={"label": label}, annot_kws={"fontsize": 6.5},
            )  # fmt: skip
            axis.set(
                title=f"{label}, {reading} reading",
                xlabel="similarity to accepted neighbours" if number else "",
                ylabel="surface risk" if axis is line[0] else "",
            )
            for y, x in np.argwhere(values.isna().to_numpy()):
                axis.text(x + 0.5, y + 0.5, "n = 0", ha="center", va="center", size=6.5, color=GREY)
            axis.tick_params(length=0)
    name = titles([table["target"].iloc[0]])[0] if len(table) else ""
    figure.suptitle(f"{name}, by thirds of its rejections (fewer than 30 in a cell are a rough guess)", size=7.5)
    return figure


def _cell(row, measure):
    if not row["n"]:
        return "n = 0"
    return f"{row[measure]:.2f}\n[{row[f'{measure}_low']:.2f}, {row[f'{measure}_high']:.2f}]\nn = {row['n']}"


def confusion_map(points, lines, title):
    """Draw prompts in a plane, and lines from the most confused rejections to their accepted neighbours.

    Parameters
    ----------
    points, lines : DataFrame
        From `views.map_points`. Distances are only a sketch of cosines.
    title : str
    """
    figure, axis = _subplots(figsize=(0.75 * PAGE, 0.75 * PAGE + 0.3))
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


def _beside(points, lines, unit):
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


def token_view(shown, title):
    """Draw rejections above their nearest accepted neighbours, each token shaded by its distance to the other prompt.

    Parameters
    ----------
    shown : DataFrame
        From `views.token_pairs`.
    title : str
    """
    width, height, laid = PAGE * 72, 2.2 * LINE, []
    for (_, side), rows in shown.groupby(["number", "side"], sort=False):
        height += 1.7 * LINE if side == "rejected" else 0.0
        marks = _set(rows["token"], width - INDENT)
        laid.append((side, rows, height, marks))
        height += LINE * (1 + marks[-1][0])
    height += LINE / 2
    figure, axis = _subplots(figsize=(PAGE, height / 72))
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


def _set(tokens, width):
    """Set tokens in lines no wider than `width` points, broken before a word where one fits into a line.

    Returns
    -------
    list of (int, float, float, str)
        Line, left edge, width and drawn text of each token that finds room in `LINES` lines.
    """
    texts = [_drawn(token) for token in tokens]
    sizes = [_width(text) for text in texts]
    starts = [place for place, text in enumerate(texts) if place == 0 or text.startswith(" ")]
    marks, line, left = [], 0, 0.0
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


def _width(text):
    return text_to_path.get_text_width_height_descent(text, _FONT, ismath=False)[0]


def _drawn(text):
    """Return a token's text as the font can draw it: a line feed as a mark, an empty box for a missing glyph."""
    glyphs = get_font(findfont(_FONT))
    text = readable(text.replace("\n", "↵").replace("\t", " "))
    return "".join(mark if glyphs.get_char_index(ord(mark)) else "□" for mark in text)


def _readable_on(colour):
    """Black or white, whichever has the higher contrast (WCAG 2) on a colour."""
    channels = np.array(mpl.colors.to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    return "black" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "white"


def ci_correlates(table, titled, parts, limit):
    """Draw what CI(r) correlates with: r with its interval, a row per covariate, a panel per target.

    Parameters
    ----------
    table : DataFrame
        From `validity.correlations`.
    titled, parts : dict of str to str
        Titles of the covariates and of the signals, which are parts of CI.
    limit : float
        The paper's break condition on |r|, dashed.
    """
    names, rows = list(dict.fromkeys(table["target"])), [*titled, *parts]
    figure, axes = _target_panels(names, [*titled.values(), *(f"{part} (part of CI)" for part in parts.values())], 3)
    for axis, name in zip(axes, names, strict=True):
        own = table[table["target"] == name]
        axis.axhspan(len(titled) - 0.5, len(rows) - 0.5, color="0.93", lw=0)
        for x, style in ((0, "-"), (-limit, "--"), (limit, "--")):
            axis.axvline(x, color=GREY if x else "black", linestyle=style, linewidth=0.6)
        for shift, (reading, colour) in zip((-0.15, 0.15), READING_COLOURS.items(), strict=True):
            found = own[own["reading"] == reading].set_index("covariate").loc[rows]
            value, low, high = (found[f"r{end}"].to_numpy() for end in ("", "_low", "_high"))
            y = np.arange(len(rows)) + shift
            axis.errorbar(value, y, xerr=[value - low, high - value], fmt="o", ms=2.5, lw=0.9, color=colour)
            for position in np.flatnonzero(np.isnan(value)):
                axis.text(-0.97, y[position], "undefined", va="center", size=5, color=colour)
        few = " (few)" if own["few"].any() else ""
        axis.set_title(f"{axis.get_title('left')}, n = {own['n'].max()}{few}", fontsize=7)
    axes[0].set(xlim=(-1.03, 1.03), xticks=[-1, -0.5, 0, 0.5, 1], xticklabels=["−1", "−0.5", "0", "0.5", "1"])
    for x, (reading, colour) in zip((-36, -4), READING_COLOURS.items(), strict=True):
        axes[0].annotate(reading, (0, 1), xytext=(x, 3), xycoords="axes fraction", textcoords="offset points",
                         ha="right", color=colour, weight="bold", size=6)  # fmt: skip
    figure.supxlabel("r with CI of a rejection (dashed: the break condition)", size=7)
    return figure


def strategy_flips(table):
    """Draw how often each strategy flips its seed's decision: to refusal rightwards, to acceptance leftwards.

    Parameters
    ----------
    table : DataFrame
        From `cohorts.groups`; a panel per target.
    """
    names = list(dict.fromkeys(table["target"]))
    table = table[(table["kind"] == "strategy") & (table["n_flip"] > 0)]
    strategies = list(dict.fromkeys(table["group"])) or ["no variant"]
    figure, axes = _target_panels(names, strategies, across=3)
    sides = (("to_reject", 1, ORANGE, "to refusal"), ("to_accept", -1, BLUE, "to acceptance"))
    for axis, name in zip(axes, names, strict=True):
        rows = table[table["target"] == name].set_index("group").reindex(strategies)
        for measure, sign, colour, side in sides:
            value, low, high = (sign * rows[f"{measure}{end}"].to_numpy() for end in ("", "_low", "_high"))
            axis.barh(range(len(strategies)), value, height=0.6, color=colour, alpha=0.3, linewidth=0)
            axis.hlines(range(len(strategies)), low, high, color=colour, linewidth=1)
            axis.plot(value, range(len(strategies)), "o", ms=3, color=colour)
            axis.text(0.5 + 0.03 * sign, 1.01, side, transform=axis.transAxes, color=colour, size=6, weight="bold",
                      ha="left" if sign > 0 else "right", va="bottom")  # fmt: skip
        axis.axvline(0, color="black", linewidth=0.6)
        least, most = (int(bound) for bound in rows["n_flip"].fillna(0).agg(["min", "max"]))
        counted = f"n = {least}" if least == most else f"n = {least} to {most}"
        axis.set_title(f"{axis.get_title('left')}, {counted}", fontsize=7, pad=13)
    edge = 1.05 * table[["to_reject_high", "to_accept_high"]].max().max()
    axes[0].set_xlim((-edge, edge) if edge > 0 else (-1, 1))
    axes[0].xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    figure.supxlabel("share of variants decided otherwise than their seed (n: variants of a strategy)", size=7)
    return figure


def cohort_regression(table, adjustment):
    """Draw odds ratios of refusal with 95 % intervals, a panel per target; filled where sure after Holm's correction.

    Parameters
    ----------
    table : DataFrame
        From `cohorts.regression`.
    adjustment : str
        The term that is adjusted for and not tested, drawn in grey.
    """
    names, terms = (list(dict.fromkeys(table[column])) for column in ("target", "term"))
    figure, axes = _target_panels(names, terms, across=4)
    for axis, name in zip(axes, names, strict=True):
        rows = table[table["target"] == name].set_index("term").reindex(terms)
        for y, (term, row) in enumerate(rows.iterrows()):
            colour = GREY if term == adjustment else BLUE
            axis.hlines(y, row["odds_ratio_low"], row["odds_ratio_high"], color=colour, linewidth=1)
            inner = colour if row["p_holm"] < 0.05 else "white"
            axis.plot(row["odds_ratio"], y, "o", ms=3.5, mfc=inner, mec=colour, mew=0.9)
        axis.axvline(1, color="black", linewidth=0.6)
        counted = f"{rows['n_reject'].iloc[0]} of {rows['n'].iloc[0]} refused"
        axis.set_title(f"{axis.get_title('left')}\n{counted}", fontsize=7)
        if rows["odds_ratio"].isna().all():
            axis.text(0.5, 0.5, fill(rows["note"].iloc[0], 22), transform=axis.transAxes, ha="center", va="center",
                      size=6, color=GREY, bbox={"color": "white", "pad": 1})  # fmt: skip
        else:
            for y in np.flatnonzero(rows["odds_ratio"].isna()):
                axis.text(1.05, y, "undefined", va="center", size=5.5, color=GREY)
    axes[0].set_xscale("log")
    edge = 1.1 * np.nanmax([2.0, *np.exp(np.abs(np.log(table[["odds_ratio_low", "odds_ratio_high"]]))).max()])
    ticks = [tick for tick in (0.1, 0.25, 0.5, 1, 2, 4, 10) if 1 / edge <= tick <= edge]
    axes[0].set(xlim=(1 / edge, edge))
    axes[0].set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes[0].minorticks_off()
    figure.supxlabel(
        "odds ratio of refusal: strategies against their seed, others per standard deviation "
        "(filled: p < 0.05 after Holm's correction)", size=7,
    )  # fmt: skip
    return figure


def _target_panels(names, rows, across):
    """Make a panel per target with shared axes and a line per row, top to bottom; return the figure and the panels."""
    lines, across = -(-len(names) // across), min(across, len(names))
    figure, axes = _subplots(
        lines, across, figsize=(PAGE, 0.3 + (0.55 + 0.15 * len(rows)) * lines), sharex=True, sharey=True, squeeze=False
    )
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for place, axis in enumerate(axes.flat[: len(names)]):
        axis.set_title(titles([names[place]])[0].replace(", ", "\n"), fontsize=7)
        axis.yaxis.set_tick_params(length=0)
        axis.grid(axis="x", linewidth=0.3)
        axis.set_axisbelow(True)
        axis.xaxis.set_tick_params(labelbottom=place + across >= len(names))
    axes[0, 0].set_yticks(range(len(rows)), rows)
    axes[0, 0].set_ylim(len(rows) - 0.5, -0.5)
    return figure, list(axes.flat[: len(names)])


STYLES = {"none": ":", "safety": "-", "strict": "--"}


def weight_simplex(table):
    """Draw each target's excess under every weighting of the three signals; filled where its interval lies above 0.

    Parameters
    ----------
    table : DataFrame
        The dimension `weights` of the sensitivity table: target, setting ("drift/prob_shift/ppl"), excess, excess_low.
    """
    names = list(dict.fromkeys(table["target"]))
    lines = -(-len(names) // 3)
    figure, axes = _subplots(lines, 3, figsize=(PAGE, 2.25 * lines), squeeze=False)
    parts = table["setting"].str.split("/", expand=True).astype(float).to_numpy()
    x, y = parts[:, 2] + parts[:, 1] / 2, parts[:, 1] * np.sqrt(3) / 2
    scale = mpl.colors.Normalize(min(0.0, table["excess"].min()), table["excess"].max())
    colours = mpl.colormaps["cividis"]
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name, title in zip(axes.flat, names, titles(names), strict=False):
        mine = (table["target"] == name).to_numpy()
        shade = colours(scale(table.loc[mine, "excess"]))
        above = (table.loc[mine, "excess_low"] > 0).to_numpy()
        face = np.where(above[:, None], shade, (1, 1, 1, 1))
        axis.scatter(x[mine], y[mine], s=34, c=face, edgecolors=shade, linewidths=1.1)
        paper = mine & (table["setting"] == "0.4/0.1/0.5").to_numpy()
        axis.scatter(x[paper], y[paper], s=90, facecolors="none", edgecolors="black", linewidths=0.9)
        for text, place, up in (
            ("Drift", (0, -0.1), "top"),
            ("PPL", (1, -0.1), "top"),
            ("ProbShift", (0.5, 0.95), "bottom"),
        ):
            axis.text(*place, text, ha="center", va=up, size=6.5)
        axis.set(xlim=(-0.12, 1.12), ylim=(-0.2, 1.0), aspect="equal")
        axis.set_title(title, y=1.02)
        axis.axis("off")
    bar = figure.colorbar(mpl.cm.ScalarMappable(scale, colours), ax=axes, shrink=0.6, pad=0.01)
    bar.set_label("excess (ring: the paper's weights; hollow: interval reaches 0)", size=6)
    return figure


def against_k(table):
    """Draw CI, CR@0.60 and CD against the number of neighbours, a line and its 95 % band per target.

    Parameters
    ----------
    table : DataFrame
        The dimension `k` of the sensitivity table.
    """
    figure, axes = _subplots(1, 3, figsize=(PAGE, 2.3))
    names = list(dict.fromkeys(table["target"]))
    families = list(dict.fromkeys(name.rpartition("--")[0] for name in names))
    deepest = table["setting"].astype(int).max() if len(table) else signals.K
    ends = {}
    for axis, (measure, label) in zip(axes, (("cr60", "CR@0.60"), ("cd", "CD"), ("ci", "CI")), strict=True):
        for name in names:
            rows = table[table["target"] == name]
            k = rows["setting"].astype(int)
            family, _, wrapper = name.rpartition("--")
            colour = (BLUE, ORANGE, GREEN)[families.index(family) % 3]
            axis.plot(k, rows[measure], color=colour, linestyle=STYLES.get(wrapper, "-."))
            axis.fill_between(k, rows[f"{measure}_low"], rows[f"{measure}_high"], color=colour, alpha=0.1, lw=0)
            if np.isfinite(rows[measure].iloc[-1]):
                ends[name] = (rows[measure].iloc[-1], colour, STYLES.get(wrapper, "-."))
        axis.axvline(signals.K, color=GREY, linewidth=0.6)
        axis.set(xlabel="k (grey line: the paper's)", ylabel=label, xlim=(1, deepest), ylim=(0, None))
        axis.set_xticks([1, 5, 10, 15, 20])
    step = axes[-1].get_ylim()[1] * 0.07
    blocks = [sorted((name for name in ends if name.rpartition("--")[0] == one), key=ends.get) for one in families]
    top = -np.inf
    for own in sorted(filter(None, blocks), key=lambda own: ends[own[0]]):
        middle = np.mean([ends[name][0] for name in own])
        bottom = max(middle - step * (len(own) - 1) / 2, top + step)
        for number, name in enumerate(own):
            top = bottom + number * step
            _, colour, style = ends[name]
            sample = (deepest * 1.03, deepest * 1.19)
            axes[-1].plot(sample, (top, top), color=colour, linestyle=style, linewidth=1.1, clip_on=False)
            axes[-1].annotate(titles([name])[0], (deepest * 1.22, top), size=5.5, color=colour, va="center",
                              annotation_clip=False)  # fmt: skip
    return figure


def cr_curve(curve):
    """Draw CR against tau beside what permuted labels give, a panel per target.

    Parameters
    ----------
    curve : DataFrame
        target, reading, tau, cr, null, null_low, null_high.
    """
    names = list(dict.fromkeys(curve["target"]))
    lines = -(-len(names) // 3)
    figure, axes = _subplots(lines, 3, figsize=(PAGE, 1.9 * lines), sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name, title in zip(axes.flat, names, titles(names), strict=False):
        for reading, colour in READING_COLOURS.items():
            rows = curve[(curve["target"] == name) & (curve["reading"] == reading)]
            axis.fill_between(rows["tau"], rows["null_low"], rows["null_high"], color="0.75", lw=0)
            axis.plot(rows["tau"], rows["null"], color=GREY, linewidth=0.7)
            axis.plot(rows["tau"], rows["cr"], color=colour, marker="o", ms=1.8)
            half = rows.loc[(rows["cr"] >= 0.5), "tau"].max()
            if np.isfinite(half):
                side = -0.03 if reading == "relative" else 0.06
                axis.text(half + side, 0.5, reading, color=colour, size=6, ha="right" if side < 0 else "left")
        axis.set(title=title, xlim=(0, 1), ylim=(0, 1.02))
    for axis in axes[-1]:
        axis.set_xlabel("tau")
    for axis in axes[:, 0]:
        axis.set_ylabel("CR@tau")
    axes[0, 0].text(0.99, 0.78, "grey: 95 % of\npermutations", size=5.5, color=GREY, ha="right")
    return figure


def settings_overview(table, default):
    """Draw CI and excess under the settings of several dimensions, a column per target, intervals drawn.

    Parameters
    ----------
    table : DataFrame
        Rows of the sensitivity table; those without an excess are left out of its panels.
    default : dict of str to str
        The usual setting of each dimension, drawn in black.
    """
    names = list(dict.fromkeys(table["target"]))
    moving = table[table["excess"].notna()]
    heights = [max(1, len(part.groupby(["dimension", "setting"]))) for part in (table, moving)]
    figure, axes = _subplots(2, len(names), figsize=(PAGE, 0.15 * sum(heights) + 1.5), sharey="row", sharex="row",
                             squeeze=False, height_ratios=heights)  # fmt: skip
    for line, part, (measure, label) in zip(axes, (table, moving), (("ci", "CI"), ("excess", "excess")), strict=True):
        keys = list(dict.fromkeys(zip(part["dimension"], part["setting"], strict=True)))
        for axis, name, title in zip(line, names, titles(names), strict=True):
            rows = part[part["target"] == name].set_index(["dimension", "setting"]).reindex(keys)
            usual = np.array([default[dimension] == setting for dimension, setting in keys], bool)
            for which, colour in ((usual, "black"), (~usual, BLUE)):
                value, low, high = (rows.loc[which, f"{measure}{end}"].to_numpy() for end in ("", "_low", "_high"))
                axis.errorbar(value, np.flatnonzero(which), xerr=[value - low, high - value], fmt="o", ms=2.2,
                              elinewidth=0.7, color=colour)  # fmt: skip
            for place in range(1, len(keys)):
                if keys[place][0] != keys[place - 1][0]:
                    axis.axhline(place - 0.5, color="0.8", linewidth=0.5)
            axis.set(xlabel=label, ylim=(max(len(keys), 1) - 0.5, -0.5), yticks=range(len(keys)))
            axis.set_yticklabels([f"{dimension}: {setting}" for dimension, setting in keys], size=5.5)
            axis.grid(axis="x", linewidth=0.3)
            axis.locator_params(axis="x", nbins=3)
            if measure == "excess":
                axis.axvline(0, color="black", linewidth=0.6)
            else:
                axis.set_title(title.replace(", ", ",\n"), size=6)
    return figure
