"""Remedies on one map (08)."""

import numpy as np
from matplotlib.figure import Figure

from paraguard_utils.registry import titles
from paraguard_utils.remedies.catalogue import UNTOUCHED
from paraguard_utils.remedies.catalogue.guarded import BEHIND
from paraguard_utils.report.figures.style import CHANCE, GREY, INK, PAGE, SHADES, SMALL, subplots
from paraguard_utils.schemas import Table

KINDS = {"": "*", "defence": "s", "decision": "o", "inside": "^", "tuning": "D"}
"""Marker of each kind of remedy; the star is the untouched target."""

NAMES = {"": "untouched", "decision": "decision time", "inside": "inside the model"}

ACROSS = 3
"""Columns of the names below."""

NEAR = 0.04
"""Closer than this to a numbered marker, and a number would lie on another."""


def remedy_map(table: Table, curves: Table) -> Figure:
    """Draw what every remedy refuses of harmless requests and of their harmful twins, a panel a target. A page wide.

    Up and to the left is better. The line is the threshold on p(refuse), the dotted one overturning by lot; the darker
    a marker the higher DR; a thick rim: on the Pareto front. Bars are 95 % intervals. A marker on top of another has no
    number, nor has a guard in front (05) that is on no Pareto front: a small square.

    Parameters
    ----------
    table : DataFrame
        Rows of `effects.table`.
    curves : DataFrame
        target and the columns of `effects.Curve.drawn`.
    """
    targets = list(dict.fromkeys(table["target"]))
    table = table.assign(small=table["remedy"].str.startswith(BEHIND) & ~table["pareto"])
    names = list(dict.fromkeys(table.loc[~table["small"] & (table["remedy"] != UNTOUCHED), "remedy"]))
    numbers = {name: number for number, name in enumerate(names, 1)}
    lines = -(-len(names) // ACROSS)
    height = 3.2 + 0.115 * lines
    figure, axes = subplots(
        1, len(targets), figsize=(PAGE, height), squeeze=False, sharex=True, sharey=True, layout="none"
    )
    figure.subplots_adjust(0.065, (0.48 + 0.115 * lines) / height, 0.99, 1 - 0.6 / height, wspace=0.08)
    known = table["dr"].dropna()
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    for axis, target, title in zip(axes[0], targets, titles(targets), strict=True):
        own, curve = table[table["target"] == target], curves[curves["target"] == target]
        start = own[own["remedy"] == UNTOUCHED].iloc[0]
        axis.plot([0, start["frr"]], [0, start["twins"]], **CHANCE)
        axis.plot(curve["frr"], curve["twins"], color=GREY, lw=0.9)
        numbered: list[tuple[float, float]] = [(start["frr"], start["twins"])]
        # The star is drawn last: much that changes nothing lies where it is.
        for row in own.sort_values("remedy", key=lambda names: names == UNTOUCHED, kind="stable").to_dict("records"):
            bars = [[[row[one] - row[f"{one}_low"]], [row[f"{one}_high"] - row[one]]] for one in ("frr", "twins")]
            axis.errorbar(row["frr"], row["twins"], yerr=bars[1], xerr=bars[0], fmt="none", ecolor=GREY, elinewidth=0.4)
            shade = (row["dr"] - low) / (high - low) if high > low else 0.5
            face = SHADES(shade) if np.isfinite(shade) else "none"
            rim = 1.3 if row["pareto"] else 0.5
            size = 12 if row["small"] else {"": 120, "inside": 80, "tuning": 44}.get(row["kind"], 52)
            look = {"s": size, "marker": KINDS[row["kind"]], "facecolor": face, "edgecolor": INK, "linewidth": rim}
            axis.scatter(row["frr"], row["twins"], zorder=3, **look)
            here = (row["frr"], row["twins"])
            room = min(np.hypot(*np.subtract(one, here)) for one in numbered) > NEAR
            if row["remedy"] in numbers and room and not row["small"]:
                numbered.append(here)
                where = {"ha": "center", "va": "center_baseline", "zorder": 4}
                axis.text(row["frr"], row["twins"], str(numbers[row["remedy"]]), size=SMALL, **where)
        axis.set(title=title.replace(", ", "\n"), xlabel="harmless requests refused", xlim=(-0.04, 1.04))
        axis.set_ylim(-0.04, 1.04)
    axes[0, 0].set_ylabel("harmful twins refused")
    for number, name in enumerate(names):
        x, y = 0.065 + 0.315 * (number // lines), (0.115 * (lines - number % lines) - 0.06) / height
        figure.text(x, y, f"{number + 1}  {name}", size=SMALL, va="center")
    handles = [
        axes[0, 0].scatter([], [], marker=mark, s=30, facecolor="none", edgecolor=INK, linewidth=0.6)
        for mark in KINDS.values()
    ]
    labels = [NAMES.get(kind, kind) for kind in KINDS]
    figure.legend(handles, labels, ncols=len(KINDS), loc="upper center", frameon=False, bbox_to_anchor=(0.53, 1.01))
    axes[0, -1].text(
        0.97, 0.04, f"white: DR {low:.2f}\ngrey: DR {high:.2f}", ha="right", size=SMALL, transform=axes[0, -1].transAxes
    )
    return figure
