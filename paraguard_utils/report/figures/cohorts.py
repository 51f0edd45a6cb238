"""Figures of notebook 04: cohorts, strategies, regression."""

from textwrap import fill

import numpy as np
import seaborn as sns
from matplotlib.figure import Figure

from paraguard_utils.registry import titles
from paraguard_utils.report import tables
from paraguard_utils.report.figures.style import BLUE, GREY, ORANGE, PAGE, READING_COLOURS, subplots, target_panels
from paraguard_utils.schemas import Table
from paraguard_utils.scoring.cohorts import LEVELS


def cohort_heat_map(table: Table) -> Figure:
    """Draw CR@0.60 and CI by surface risk and neighbour similarity for one target, a column per reading (Fig. 5)."""
    figure, axes = subplots(2, 2, figsize=(PAGE, 4.6), sharex=True, sharey=True)
    for number, (line, (measure, label)) in enumerate(zip(axes, (("cr60", "CR@0.60"), ("ci", "CI")), strict=True)):
        for axis, reading in zip(line, READING_COLOURS, strict=True):
            rows = table[(table["reading"] == reading) & table["risk"].isin(LEVELS) & table["similarity"].isin(LEVELS)]
            texts = rows.assign(text=[_cell(row, measure) for row in rows.to_dict("records")])
            values, texts = (
                frame.pivot(index="risk", columns="similarity", values=column).reindex(
                    index=LEVELS[::-1], columns=LEVELS
                )
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


def _cell(row: dict, measure: str) -> str:
    if not row["n"]:
        return "n = 0"
    return f"{tables.estimate(row, measure, 2)}\nn = {row['n']}".replace(" [", "\n[")


def strategy_flips(table: Table) -> Figure:
    """Draw how often each strategy flips its seed's decision: to refusal rightwards, to acceptance leftwards.

    Parameters
    ----------
    table : DataFrame
        From `cohorts.groups`; a panel per target.
    """
    names = list(dict.fromkeys(table["target"]))
    table = table[(table["kind"] == "strategy") & (table["n_flip"] > 0)]
    strategies = list(dict.fromkeys(table["group"])) or ["no variant"]
    figure, axes = target_panels(names, strategies, across=3)
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


def cohort_regression(table: Table, adjustment: str) -> Figure:
    """Draw odds ratios of refusal with 95 % intervals, a panel per target; filled where sure after Holm's correction.

    Parameters
    ----------
    table : DataFrame
        From `regression.odds_ratios`.
    adjustment : str
        The term that is adjusted for and not tested, drawn in grey.
    """
    names, terms = (list(dict.fromkeys(table[column])) for column in ("target", "term"))
    figure, axes = target_panels(names, terms, across=4)
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
            for y in np.flatnonzero(rows["odds_ratio"].isna()).tolist():
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
