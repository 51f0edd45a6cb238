"""The figures: one style, one palette, column widths, an uncertainty mark on every estimate (`paper.md`, Figs. 3, 5).

Each function takes frames and returns a matplotlib figure; `publish` writes it as PNG and PDF with its panel data and
shows the PNG.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import seaborn as sns
from IPython.display import Image, display
from matplotlib import pyplot as plt

from paraguard_utils.cohorts import BINS
from paraguard_utils.gates import MEASURES
from paraguard_utils.metrics import FEW_CLUSTERS
from paraguard_utils.risk import BIN
from paraguard_utils.stores import write
from paraguard_utils.targets import titles

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
    axes[0].text(0.02, 0.95, "passes all gates", color=BLUE, transform=axes[0].transAxes, va="top", weight="bold")
    axes[0].text(0.02, 0.85, "stopped by a gate", color=ORANGE, transform=axes[0].transAxes, va="top", weight="bold")
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
    """Draw how often and how sensibly each target refuses: estimates with 95 % intervals, one panel per measure."""
    names = list(dict.fromkeys(table["target"]))
    panels = (
        ("frr", "FRR", "share of prompts", ("relative",)),
        ("flip_rate", "Flip rate", "share of clusters", ("relative",)),
        ("ci", "CI (ring: floor)", "mean score", ("relative", "clipped")),
        ("excess", "Excess", "within mixed clusters", ("relative", "clipped")),
    )
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
                axis.plot(rows["floor"], y, "o", ms=4.5, mfc="none", mec=colour, mew=0.7, linestyle="none")
                up = 2 if reading == "relative" else 9
                axis.annotate(reading, (1, 1), xytext=(0, up), xycoords="axes fraction", textcoords="offset points",
                              ha="right", color=colour, weight="bold", size=6)  # fmt: skip
        axis.set(title=title, xlabel=label, yticks=range(len(names)), yticklabels=titles(names))
        axis.grid(axis="x", linewidth=0.3)
        axis.set_axisbelow(True)
        axis.locator_params(axis="x", nbins=3)
        if measure == "ci":
            axis.set_xlim(0, 1)
            for position in np.flatnonzero(rows["few"] & rows["ci"].notna()):
                axis.text(0.98, position, "n < 30", ha="right", va="center", size=5.5, color=GREY)
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
        for line, (reading, column) in enumerate((("relative", "ci"), ("clipped", "ci_clipped"))):
            axis.scatter(own["mean_similarity"], own[column], s=7, color=READING_COLOURS[reading], alpha=0.7, lw=0)
            row = correlations[(correlations["target"] == name) & (correlations["reading"] == reading)].iloc[0]
            known = f"r = {row['r']:.2f} [{row['r_low']:.2f}, {row['r_high']:.2f}]"
            text = f"{reading}: {known if np.isfinite(row['r']) else 'r undefined'}"
            axis.text(0.02, 0.11 - 0.08 * line, text, color=READING_COLOURS[reading], transform=axis.transAxes,
                      fontsize=6, weight="bold")  # fmt: skip
        axis.set(title=f"{titles([name])[0]}\nn = {len(own)}", ylim=(0, 1))
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
    return figure


def _cell(row, measure):
    if not row["n"]:
        return "n = 0"
    return f"{row[measure]:.2f}\n[{row[f'{measure}_low']:.2f}, {row[f'{measure}_high']:.2f}]\nn = {row['n']}"
