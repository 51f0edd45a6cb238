"""Remedies on one map (08)."""

import numpy as np
from matplotlib.figure import Figure

from paraguard_utils.registry import titles
from paraguard_utils.remedies.catalogue import UNTOUCHED
from paraguard_utils.remedies.catalogue.guarded import BEHIND
from paraguard_utils.report.figures.style import CHANCE, GREY, INK, PAGE, SHADES, SMALL, subplots
from paraguard_utils.schemas import Table

_KINDS = {
    "": ("untouched", "*", 120),
    "defence": ("defence", "s", 52),
    "decision": ("decision time", "o", 52),
    "inside": ("inside the model", "^", 80),
    "tuning": ("tuning", "D", 44),
}
"""Name, marker and size of each kind of remedy."""

_NAME_COLUMNS = 3
"""Columns in which the remedies are named below the panels."""

_MIN_DISTANCE = 0.04
"""Distance of a marker from every numbered one above which it has a number too: closer ones would overlap."""


def remedy_map(table: Table, curves: Table) -> Figure:
    """Draw what every remedy refuses of harmless requests and of their harmful twins, a panel a target. A page wide.

    Up and to the left is better. The line is the threshold on p(refuse), the dotted one overturning by lot; the darker
    a marker, the higher DR; a thick rim: on the Pareto front. Bars are 95 % intervals. A marker on top of another has
    no number. A guard in front (05) that is on no Pareto front is a small square without a number.

    `table` has rows of `effects.table`, `curves` target and the columns of `effects.Curve.drawn`.
    """
    targets = list(dict.fromkeys(table["target"]))
    table = table.assign(small=table["remedy"].str.startswith(BEHIND) & ~table["pareto"])
    names = list(dict.fromkeys(table.loc[~table["small"] & (table["remedy"] != UNTOUCHED), "remedy"]))
    lines = -(-len(names) // _NAME_COLUMNS)
    height = 3.2 + 0.115 * lines
    shared = {"squeeze": False, "sharex": True, "sharey": True}
    figure, axes = subplots(1, len(targets), figsize=(PAGE, height), layout="none", **shared)
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
            here = (row["frr"], row["twins"])
            bars = [[[row[one] - row[f"{one}_low"]], [row[f"{one}_high"] - row[one]]] for one in ("frr", "twins")]
            axis.errorbar(*here, yerr=bars[1], xerr=bars[0], fmt="none", ecolor=GREY, elinewidth=0.4)
            shade = (row["dr"] - low) / (high - low) if high > low else 0.5
            look = {"facecolor": SHADES(shade) if np.isfinite(shade) else "none", "edgecolor": INK, "zorder": 3}
            _, mark, size = _KINDS[row["kind"]]
            axis.scatter(
                *here, 12 if row["small"] else size, marker=mark, linewidth=1.3 if row["pareto"] else 0.5, **look
            )
            room = min(np.hypot(*np.subtract(one, here)) for one in numbered) > _MIN_DISTANCE
            if row["remedy"] in names and room and not row["small"]:
                numbered.append(here)
                where = {"ha": "center", "va": "center_baseline", "zorder": 4}
                axis.text(*here, str(names.index(row["remedy"]) + 1), size=SMALL, **where)
        axis.set(title=title.replace(", ", "\n"), xlabel="harmless requests refused", xlim=(-0.04, 1.04))
        axis.set_ylim(-0.04, 1.04)
    axes[0, 0].set_ylabel("harmful twins refused")
    for number, name in enumerate(names):
        x, y = 0.065 + 0.315 * (number // lines), (0.115 * (lines - number % lines) - 0.06) / height
        figure.text(x, y, f"{number + 1}  {name}", size=SMALL, va="center")
    look = {"s": 30, "facecolor": "none", "edgecolor": INK, "linewidth": 0.6}
    handles = {name: axes[0, 0].scatter([], [], marker=mark, **look) for name, mark, _ in _KINDS.values()}
    where = {"loc": "upper center", "bbox_to_anchor": (0.53, 1.01)}
    figure.legend(list(handles.values()), list(handles), ncols=len(handles), frameon=False, **where)
    scale = f"white: DR {low:.2f}\ngrey: DR {high:.2f}"
    axes[0, -1].text(0.97, 0.04, scale, ha="right", size=SMALL, transform=axes[0, -1].transAxes)
    return figure
