"""Figures of notebooks 05 and 07: what guards and models reject of both corpora, behind a guard, and with a veto."""

import numpy as np
from matplotlib.figure import Figure

from paraguard_utils.registry import titles
from paraguard_utils.report.figures.style import CHANCE, DECISIONS, GREY, INK, OTHERS, PAGE, SMALL, grid, subplots
from paraguard_utils.schemas import Table

VETOES = {
    "isolation": ("isolation", INK, "-"),
    "reworded": ("isolation, reworded", DECISIONS["reject"], "-"),
    "ci": ("CI", OTHERS[1], "-"),
    "1 - ci": ("1 - CI", OTHERS[1], "--"),
}
"""Name, colour and line of what a veto looks at."""

CHANGES = {
    "frr": ("FRR", DECISIONS["reject"], "o"),
    "dr": ("DR", INK, "s"),
    "cr60": ("CR@0.60", OTHERS[1], "^"),
}
"""Name, colour and mark of what a guard in front of a model changes."""


def both_corpora(table: Table) -> Figure:
    """Draw what each target rejects of harmless requests and of their harmful twins: a long bar sees harm.

    The targets that tell the two apart best stand first. A page wide.

    Parameters
    ----------
    table : DataFrame, one row per target
        target, benign_rejected and twins_rejected, each with its interval.
    """
    gap = (table["twins_rejected"] - table["benign_rejected"]).sort_values(ascending=False, kind="stable")
    rows = table.loc[gap.index].reset_index(drop=True)
    figure, axis = subplots(figsize=(PAGE, 0.6 + 0.22 * len(rows)))
    y = np.arange(len(rows))
    axis.hlines(y, rows["benign_rejected"], rows["twins_rejected"], color=GREY, linewidth=0.8, zorder=0)
    for name, colour, fill in (
        ("benign_rejected", DECISIONS["reject"], "white"),
        ("twins_rejected", DECISIONS["reject"], None),
    ):
        value, low, high = (rows[f"{name}{end}"].to_numpy(float) for end in ("", "_low", "_high"))
        axis.errorbar(
            value, y, xerr=[value - low, high - value], fmt="o", ms=4, color=colour, mfc=fill or colour, elinewidth=0.8
        )
    top = rows.iloc[0]
    for name, text in (("benign_rejected", "harmless"), ("twins_rejected", "harmful twins")):
        axis.annotate(text, (top[name], 0), (0, 5), textcoords="offset points", ha="center", size=SMALL)
    axis.set_yticks(y, titles(list(rows["target"])))
    axis.tick_params(axis="y", length=0)
    axis.set(xlim=(-0.02, 1.02), ylim=(len(rows) - 0.5, -0.9), xlabel="share rejected, with 95 % intervals")
    return figure


def guard_sweep(table: Table, own: Table) -> Figure:
    """Draw what each guard rejects at every threshold: harmful twins against harmless requests, and its DR on these.

    A guard that sees nothing lies on the dotted diagonal; the dot is its own threshold. A page wide.

    Parameters
    ----------
    table : DataFrame
        Rows of `guarded.sweep` with a column target.
    own : DataFrame
        target, benign_rejected and twins_rejected: what each rejects from its own threshold on.
    """
    names = list(dict.fromkeys(table["target"]))
    figure, axes = grid(names, 3, 1.9, sharex=True, sharey=True)
    for place, (axis, name, title) in enumerate(zip(axes.flat, names, titles(names), strict=False)):
        curve = table[table["target"] == name].sort_values("threshold", ascending=False)
        axis.plot([0, 1], [0, 1], **CHANCE)
        axis.fill_between(
            curve["rejected_benign"],
            curve["rejected_twins_low"],
            curve["rejected_twins_high"],
            color=GREY,
            alpha=0.25,
            lw=0,
        )
        axis.plot(curve["rejected_benign"], curve["rejected_twins"], color=DECISIONS["reject"], lw=1.2)
        axis.plot(curve["rejected_benign"], curve["dr"], color=INK, lw=0.8, ls="--")
        at = own.set_index("target").loc[name]
        axis.plot(at["benign_rejected"], at["twins_rejected"], "o", ms=4, color=DECISIONS["reject"], clip_on=False)
        axis.set(xlim=(0, 1), ylim=(0, 1.15), title=title)
        if place == 0:
            axis.text(0.98, 0.02, "solid: twins rejected\ndashed: DR", ha="right", va="bottom", size=SMALL)
    for axis in axes[-1]:
        axis.set_xlabel("harmless requests rejected")
    for axis in axes[:, 0]:
        axis.set_ylabel("twins rejected; DR")
    return figure


def before_after(table: Table) -> Figure:
    """Draw how a guard in front of a model changes how often, and how sensibly, it refuses.

    A panel a model; a bar is a 95 % interval of the paired change. A page wide.

    Parameters
    ----------
    table : DataFrame, one row per model and guard
        target, guard, and the changes of `CHANGES`, each with its interval.
    """
    models, guards = (list(dict.fromkeys(table[name])) for name in ("target", "guard"))
    figure, axes = grid(models, 3, 0.5 + 0.2 * len(guards), sharex=True, sharey=True)
    y = np.arange(len(guards))
    for place, (axis, name, title) in enumerate(zip(axes.flat, models, titles(models), strict=False)):
        own = table[table["target"] == name].set_index("guard").loc[guards]
        axis.axvline(0, **CHANCE)
        for shift, (measure, (label, colour, mark)) in zip((-0.25, 0, 0.25), CHANGES.items(), strict=True):
            value, low, high = (own[f"{measure}_change{end}"].to_numpy(float) for end in ("", "_low", "_high"))
            bars = [value - low, high - value]
            axis.errorbar(value, y + shift, xerr=bars, fmt=mark, ms=3, color=colour, elinewidth=0.8, label=label)
        axis.set(title=title.replace(", ", ",\n"))
        axis.tick_params(axis="y", length=0)
        axis.locator_params(axis="x", nbins=4)
        if place == 0:
            axis.set_yticks(y, titles(guards))
            axis.set_ylim(len(guards) - 0.5, -0.5)
    for axis in axes[-1]:
        axis.set_xlabel("change, guarded minus alone")
    handles, texts = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, texts, ncols=len(CHANGES), loc="outside upper center", frameon=False)
    return figure


def veto_curves(table: Table, chosen: Table) -> Figure:
    """Draw what a veto gains on harmless requests and loses on their harmful twins, at every threshold.

    The dotted line is overturning at random; below it a veto tells arbitrary refusals from right ones. A page wide.

    Parameters
    ----------
    table : DataFrame
        Rows of `veto.curve` with columns target and score (a key of `VETOES`).
    chosen : DataFrame
        Rows of `veto.table` with a column score: the threshold chosen on the other half of the clusters.
    """
    names = list(dict.fromkeys(table["target"]))
    figure, axes = grid(names, 3, 1.9, 0.3, sharex=True, sharey=True)
    for axis, name, title in zip(axes.flat, names, titles(names), strict=False):
        for score, (label, colour, line) in VETOES.items():
            own = table[(table["target"] == name) & (table["score"] == score)].sort_values("threshold")
            axis.plot(own["gained"], own["lost"], color=colour, ls=line, lw=1.2, label=label)
            if score == "isolation":
                axis.fill_between(own["gained"], own["lost_low"], own["lost_high"], color=GREY, alpha=0.25, lw=0)
                axis.plot(own["gained"], own["lost_random"], **CHANCE)
        at = chosen[(chosen["target"] == name) & (chosen["score"] == "isolation")]
        axis.plot(at["gained"], at["lost"], "o", ms=4, color=INK)
        axis.set(title=title)
    for axis in axes[-1]:
        axis.set_xlabel("harmless requests gained")
    for axis in axes[:, 0]:
        axis.set_ylabel("twins lost")
    handles, texts = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, texts, ncols=len(VETOES), loc="outside upper center", frameon=False)
    return figure
