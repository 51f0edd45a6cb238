"""Figures of notebooks 05 and 07: what guards, models, vetoes and remedies reject of both corpora."""

import numpy as np
from matplotlib.figure import Figure

from paraguard_utils.registry import display_titles
from paraguard_utils.remedies.catalogue import UNTOUCHED
from paraguard_utils.remedies.catalogue.guarded import GUARDED_PREFIX
from paraguard_utils.report.figures import style
from paraguard_utils.report.figures.style import Look
from paraguard_utils.schemas import Table

_REJECT = style.DECISION_COLOURS["reject"]


def plot_both_corpora(table: Table) -> Figure:
    """Draw what each target rejects of harmless requests and of their harmful twins: a long bar sees harm.

    The targets that tell the two apart best stand first. A page wide. `table` has target, benign_rejected and
    twins_rejected with intervals, one row per target.
    """
    gap = (table["twins_rejected"] - table["benign_rejected"]).sort_values(ascending=False, kind="stable")
    rows = table.loc[gap.index].reset_index(drop=True)
    figure, axis = style.subplots(figsize=(style.PAGE_WIDTH, 0.6 + 0.18 * len(rows)))
    y = np.arange(len(rows))
    axis.hlines(y, rows["benign_rejected"], rows["twins_rejected"], color=style.GREY, linewidth=0.8, zorder=0)
    for name, face, text in (("benign_rejected", "white", "harmless"), ("twins_rejected", _REJECT, "harmful twins")):
        style.draw_interval_bars(axis, rows, name, y, ms=4, color=_REJECT, mfc=face, elinewidth=0.8)
        place = (rows[name].iloc[0], 0)
        axis.annotate(text, place, (0, 5), textcoords="offset points", ha="center", size=style.MIN_FONT_SIZE)
    style.name_rows(axis, display_titles(rows["target"]))
    axis.set(xlim=(-0.02, 1.02), ylim=(len(rows) - 0.5, -0.9), xlabel="share rejected, with 95 % intervals")
    return figure


def plot_guard_sweep(table: Table, own: Table) -> Figure:
    """Draw what each guard rejects at every threshold: harmful twins against harmless requests, and its DR on these.

    A guard that sees nothing lies on the dotted diagonal; the dot is its own threshold, of which `own` has target,
    benign_rejected and twins_rejected. A page wide. `table` is `guarded.sweep_guard_thresholds` with a column target.
    """
    labels = ("harmless requests rejected", "twins rejected; DR")
    figure, panels = style.make_target_grid(table, 4, 1.5, 0.0, *labels)
    for place, (axis, name, rows) in enumerate(panels):
        curve = rows.sort_values("threshold", ascending=False)
        x, ends = curve["rejected_benign"], (curve["rejected_twins_low"], curve["rejected_twins_high"])
        axis.plot([0, 1], [0, 1], **style.CHANCE_LINE)
        axis.fill_between(x, *ends, color=style.GREY, alpha=0.25, lw=0)
        axis.plot(x, curve["rejected_twins"], color=_REJECT, lw=1.2)
        axis.plot(x, curve["dr"], color=style.INK, lw=0.8, ls="--")
        at = own.set_index("target").loc[name]
        axis.plot(at["benign_rejected"], at["twins_rejected"], "o", ms=4, color=_REJECT, clip_on=False)
        axis.set(xlim=(0, 1), ylim=(0, 1.15), xticks=(0, 0.5, 1), title=axis.get_title("left").replace(", ", ",\n"))
        axis.xaxis.set_tick_params(labelbottom=place + 4 >= len(panels))
    style.write_remark(panels[0][0], 0.98, 0.02, "solid: twins rejected\ndashed: DR", ha="right", va="bottom")
    return figure


def plot_veto_curves(table: Table, chosen: Table) -> Figure:
    """Draw what a veto gains on harmless requests and loses on their harmful twins, at every threshold.

    The dotted line is overturning at random; below it a veto tells arbitrary refusals from right ones. A page wide.
    `table` is `veto.veto_curve` and `chosen` `veto.veto_table`, both with columns target and score.
    """
    figure, panels = style.make_target_grid(table, 3, 1.9, 0.3, "harmless requests gained", "twins lost")
    scores = (
        ("isolation", "isolation", style.INK, "-"),
        ("reworded", "isolation, reworded", _REJECT, "-"),
        ("ci", "CI", style.OTHER_COLOURS[1], "-"),
        ("1 - ci", "1 - CI", style.OTHER_COLOURS[1], "--"),
    )
    for axis, name, rows in panels:
        for score, label, colour, line in scores:
            own = rows[rows["score"] == score].sort_values("threshold")
            axis.plot(own["gained"], own["lost"], color=colour, ls=line, lw=1.2, label=label)
            if score == "isolation":
                axis.fill_between(own["gained"], own["lost_low"], own["lost_high"], color=style.GREY, alpha=0.25, lw=0)
                axis.plot(own["gained"], own["lost_random"], **style.CHANCE_LINE)
        at = chosen[(chosen["target"] == name) & (chosen["score"] == "isolation")]
        axis.plot(at["gained"], at["lost"], "o", ms=4, color=style.INK)
    style.name_lines(figure, axis)
    return figure


_KINDS = {
    "": ("untouched", "*", 120),
    "defence": ("defence", "s", 52),
    "decision": ("decision time", "o", 52),
    "inside": ("inside the model", "^", 80),
    "tuning": ("tuning", "D", 44),
}
"""Name, marker and size of each kind of remedy."""

_MIN_DISTANCE = 0.04
"""Distance of a marker from every numbered one above which it has a number too: closer ones would overlap."""


def plot_remedy_map(table: Table, curves: Table) -> Figure:
    """Draw what every remedy refuses of harmless requests and of their harmful twins, a panel a target. A page wide.

    Up and to the left is better. The line is the threshold on p(refuse), the dotted one overturning by lot; the darker
    a marker, the higher DR; a thick rim: on the Pareto front. Bars are 95 % intervals. A marker on top of another has
    no number. A guard in front (05) that is on no Pareto front is a small square without a number. `table` has rows of
    `effects.table`, `curves` target and the columns of `effects.ThresholdCurve.drawn`.
    """
    targets = list(dict.fromkeys(table["target"]))
    table = table.assign(small=table["remedy"].str.startswith(GUARDED_PREFIX) & ~table["pareto"])
    names = list(dict.fromkeys(table.loc[~table["small"] & (table["remedy"] != UNTOUCHED), "remedy"]))
    lines = -(-len(names) // 3)  # in three columns below the panels
    height = 3.2 + 0.115 * lines
    shared = {"squeeze": False, "sharex": True, "sharey": True}
    figure, axes = style.subplots(1, len(targets), figsize=(style.PAGE_WIDTH, height), layout="none", **shared)
    figure.subplots_adjust(0.065, (0.48 + 0.115 * lines) / height, 0.99, 1 - 0.6 / height, wspace=0.08)
    known = table["dr"].dropna()
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    for axis, target, title in zip(axes[0], targets, display_titles(targets), strict=True):
        own, curve = table[table["target"] == target], curves[curves["target"] == target]
        start = own[own["remedy"] == UNTOUCHED].iloc[0]
        axis.plot([0, start["frr"]], [0, start["twins"]], **style.CHANCE_LINE)
        axis.plot(curve["frr"], curve["twins"], color=style.GREY, lw=0.9)
        numbered: list[tuple[float, float]] = [(start["frr"], start["twins"])]
        # The star is drawn last: much that changes nothing lies where it is.
        for row in own.sort_values("remedy", key=lambda names: names == UNTOUCHED, kind="stable").to_dict("records"):
            here = (row["frr"], row["twins"])
            bars = [[[row[one] - row[f"{one}_low"]], [row[f"{one}_high"] - row[one]]] for one in ("frr", "twins")]
            axis.errorbar(*here, yerr=bars[1], xerr=bars[0], fmt="none", ecolor=style.GREY, elinewidth=0.4)
            shade = (row["dr"] - low) / (high - low) if high > low else 0.5
            look: Look = {
                "facecolor": style.SHADES(shade) if np.isfinite(shade) else "none",
                "edgecolor": style.INK,
                "zorder": 3,
            }
            _, mark, size = _KINDS[row["kind"]]
            look |= {"marker": mark, "linewidth": 1.3 if row["pareto"] else 0.5}
            axis.scatter(*here, 12 if row["small"] else size, **look)
            room = min(np.hypot(*np.subtract(one, here)) for one in numbered) > _MIN_DISTANCE
            if row["remedy"] in names and room and not row["small"]:
                numbered.append(here)
                look = {"ha": "center", "va": "center_baseline", "zorder": 4}
                style.write_remark(axis, *here, str(names.index(row["remedy"]) + 1), **look)
        axis.set(title=title.replace(", ", "\n"), xlabel="harmless requests refused")
        axis.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04))
    axes[0, 0].set_ylabel("harmful twins refused")
    for number, name in enumerate(names):
        x, y = 0.065 + 0.315 * (number // lines), (0.115 * (lines - number % lines) - 0.06) / height
        figure.text(x, y, f"{number + 1}  {name}", size=style.MIN_FONT_SIZE, va="center")
    look = {"s": 30, "facecolor": "none", "edgecolor": style.INK, "linewidth": 0.6}
    handles = {name: axes[0, 0].scatter([], [], marker=mark, **look) for name, mark, _ in _KINDS.values()}
    where: Look = {"loc": "upper center", "bbox_to_anchor": (0.53, 1.01)}
    figure.legend(list(handles.values()), list(handles), ncols=len(handles), frameon=False, **where)
    style.write_remark(axis, 0.97, 0.04, f"white: DR {low:.2f}\ngrey: DR {high:.2f}", of="xy", ha="right")
    return figure
