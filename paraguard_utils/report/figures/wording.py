"""DR by shared wording (03 and 05)."""

import numpy as np
from matplotlib.figure import Figure

from paraguard_utils.analysis import wording
from paraguard_utils.registry import titles
from paraguard_utils.report.figures.style import (
    CHANCE,
    GREY,
    INK,
    PAGE,
    SMALL,
    end_labels,
    interval_bars,
    subplots,
    target_looks,
)
from paraguard_utils.schemas import Table


def shared_wording(table: Table, curves: Table) -> Figure:
    """Draw DR of near-copies and of free rewordings for each target, and DR by how many words two phrasings share.

    Open: near-copies; filled: free rewordings; grey, below and without a curve: fewer than 100 refusals or acceptances.
    Bars are 95 % intervals. A page wide. Both frames are from `wording.tables`.
    """
    rows = table[table["dr_free"].notna()].sort_values("few", kind="stable", ignore_index=True)
    rows["title"] = titles(rows["target"])
    few = rows["few"].to_numpy(bool)
    figure, (left, right) = subplots(1, 2, figsize=(PAGE, max(0.8 + 0.19 * len(rows), 2.4)), width_ratios=[1.3, 1])
    y = np.arange(len(rows), dtype=float)
    for chosen, colour in ((~few, INK), (few, GREY)):
        for measure, face, shift in (("dr_near", "white", -0.13), ("dr_free", colour, 0.13)):
            interval_bars(left, rows[chosen], measure, y[chosen] + shift, ms=3.5, color=colour, markerfacecolor=face)
    left.set_yticks(y, rows["title"])
    left.tick_params(axis="y", length=0)
    left.set(xlim=(0, 1.3), ylim=(len(rows) - 0.5, -1.2), xlabel="DR (0: meaning decides; 1, dotted: it does not)")
    for measure, text in (("dr_near", "near-copies"), ("dr_free", "free rewordings")):
        left.text(rows.loc[~few, measure].median() if not few.all() else 0.5, -0.65, text, ha="center", size=SMALL)
    right.set(xlim=(0, 1), ylim=(0, 1.3), xlabel="words in common (Jaccard)", ylabel="DR")
    looks, ends = target_looks(rows["target"]), []
    for target, title in rows.loc[~few, ["target", "title"]].itertuples(index=False):
        own = curves[(curves["target"] == target) & ~curves["few"].astype(bool)]
        look = dict(zip(("color", "linestyle"), looks[target][:2], strict=True))
        at = own["overlap"] + wording.STEP / 2
        interval_bars(right, own, "dr", at, "y", fmt="", marker="o", ms=2, elinewidth=0.4, **look)
        if len(own):
            ends.append((float(own["dr"].iloc[-1]), title.replace(" wrapper", ""), look))
    left.axvline(1, zorder=0, **CHANCE)
    right.axhline(1, zorder=0, **CHANCE)
    end_labels(figure, right, ends)
    return figure
