"""Figures of notebooks 05 and 07: what guards and models reject of both corpora, behind a guard, and with a veto."""

import numpy as np
from matplotlib.figure import Figure

from paraguard_utils.registry import titles
from paraguard_utils.report.figures.style import (
    CHANCE,
    DECISIONS,
    GREY,
    INK,
    OTHERS,
    PAGE,
    SMALL,
    grid,
    interval_bars,
    list_rows,
    subplots,
)
from paraguard_utils.schemas import Table

_REJECT = DECISIONS["reject"]


def both_corpora(table: Table) -> Figure:
    """Draw what each target rejects of harmless requests and of their harmful twins: a long bar sees harm.

    The targets that tell the two apart best stand first. A page wide. `table` has target, benign_rejected and
    twins_rejected with intervals, one row per target.
    """
    gap = (table["twins_rejected"] - table["benign_rejected"]).sort_values(ascending=False, kind="stable")
    rows = table.loc[gap.index].reset_index(drop=True)
    figure, axis = subplots(figsize=(PAGE, 0.6 + 0.22 * len(rows)))
    y = np.arange(len(rows))
    axis.hlines(y, rows["benign_rejected"], rows["twins_rejected"], color=GREY, linewidth=0.8, zorder=0)
    for name, face, text in (
        ("benign_rejected", "white", "harmless"),
        ("twins_rejected", _REJECT, "harmful twins"),
    ):
        interval_bars(axis, rows, name, y, ms=4, color=_REJECT, mfc=face, elinewidth=0.8)
        place = (rows[name].iloc[0], 0)
        axis.annotate(text, place, (0, 5), textcoords="offset points", ha="center", size=SMALL)
    list_rows(axis, titles(rows["target"]))
    axis.tick_params(axis="y", length=0)
    axis.set(xlim=(-0.02, 1.02), ylim=(len(rows) - 0.5, -0.9), xlabel="share rejected, with 95 % intervals")
    return figure


def guard_sweep(table: Table, own: Table) -> Figure:
    """Draw what each guard rejects at every threshold: harmful twins against harmless requests, and its DR on these.

    A guard that sees nothing lies on the dotted diagonal; the dot is its own threshold. A page wide.

    `table` has rows of `guarded.sweep` with a column target; `own` has target, benign_rejected and twins_rejected at
    each guard's own threshold.
    """
    names = list(dict.fromkeys(table["target"]))
    figure, axes = grid(names, 3, 1.9, xlabel="harmless requests rejected", ylabel="twins rejected; DR")
    for axis, name in zip(axes, names, strict=True):
        curve = table[table["target"] == name].sort_values("threshold", ascending=False)
        x, ends = curve["rejected_benign"], (curve["rejected_twins_low"], curve["rejected_twins_high"])
        axis.plot([0, 1], [0, 1], **CHANCE)
        axis.fill_between(x, *ends, color=GREY, alpha=0.25, lw=0)
        axis.plot(x, curve["rejected_twins"], color=_REJECT, lw=1.2)
        axis.plot(x, curve["dr"], color=INK, lw=0.8, ls="--")
        at = own.set_index("target").loc[name]
        axis.plot(at["benign_rejected"], at["twins_rejected"], "o", ms=4, color=_REJECT, clip_on=False)
        axis.set(xlim=(0, 1), ylim=(0, 1.15))
    axes[0].text(0.98, 0.02, "solid: twins rejected\ndashed: DR", ha="right", va="bottom", size=SMALL)
    return figure


def before_after(table: Table) -> Figure:
    """Draw how a guard in front of a model changes its FRR, DR and CR@0.60, with 95 % intervals of the paired change.

    A panel a model. A page wide. `table` has a row per target and guard with frr_change, dr_change and cr60_change.
    """
    models, guards = (list(dict.fromkeys(table[name])) for name in ("target", "guard"))
    figure, axes = grid(models, 3, 0.5 + 0.2 * len(guards), xlabel="change, guarded minus alone")
    y = np.arange(len(guards))
    marks = (("frr", "FRR", _REJECT, "o"), ("dr", "DR", INK, "s"), ("cr60", "CR@0.60", OTHERS[1], "^"))
    for axis, name in zip(axes, models, strict=True):
        own = table[table["target"] == name].set_index("guard").loc[guards]
        axis.axvline(0, **CHANCE)
        for shift, (measure, label, colour, mark) in zip((-0.25, 0, 0.25), marks, strict=True):
            look = {"fmt": mark, "ms": 3, "color": colour, "elinewidth": 0.8, "label": label}
            interval_bars(axis, own, f"{measure}_change", y + shift, **look)
        axis.set_title(axis.get_title("left").replace(", ", ",\n"))
        axis.tick_params(axis="y", length=0)
        axis.locator_params(axis="x", nbins=4)
    list_rows(axes[0], titles(guards))
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, ncols=len(marks), loc="outside upper center", frameon=False)
    return figure


def veto_curves(table: Table, chosen: Table) -> Figure:
    """Draw what a veto gains on harmless requests and loses on their harmful twins, at every threshold.

    The dotted line is overturning at random; below it a veto tells arbitrary refusals from right ones. A page wide.

    `table` has rows of `veto.curve`, `chosen` those of `veto.table`, whose threshold was chosen on the other half of
    the clusters; both with columns target and score.
    """
    names = list(dict.fromkeys(table["target"]))
    figure, axes = grid(names, 3, 1.9, 0.3, xlabel="harmless requests gained", ylabel="twins lost")
    scores = (
        ("isolation", "isolation", INK, "-"),
        ("reworded", "isolation, reworded", _REJECT, "-"),
        ("ci", "CI", OTHERS[1], "-"),
        ("1 - ci", "1 - CI", OTHERS[1], "--"),
    )
    for axis, name in zip(axes, names, strict=True):
        for score, label, colour, line in scores:
            own = table[(table["target"] == name) & (table["score"] == score)].sort_values("threshold")
            axis.plot(own["gained"], own["lost"], color=colour, ls=line, lw=1.2, label=label)
            if score == "isolation":
                axis.fill_between(own["gained"], own["lost_low"], own["lost_high"], color=GREY, alpha=0.25, lw=0)
                axis.plot(own["gained"], own["lost_random"], **CHANCE)
        at = chosen[(chosen["target"] == name) & (chosen["score"] == "isolation")]
        axis.plot(at["gained"], at["lost"], "o", ms=4, color=INK)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, ncols=len(scores), loc="outside upper center", frameon=False)
    return figure
