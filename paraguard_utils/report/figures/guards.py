"""Figures of notebooks 05 and 07: what guards, models, vetoes and remedies reject of
both corpora.
"""

import numpy as np
from matplotlib.figure import Figure

from paraguard_lab.remedies.catalogue import UNTOUCHED, guarded
from paraguard_utils.models.prompting import model_of_system
from paraguard_utils.registry import display_titles
from paraguard_utils.report.figures import style
from paraguard_utils.schemas import Table

_REJECT = style.DECISION_COLOURS["reject"]


def plot_both_corpora(table: Table) -> Figure:
    """Draw what each system rejects of harmless requests and of their harmful twins: a
    long bar sees harm.

    The systems that tell the two apart best stand first. A page wide. `table` has
    system, benign_rejected and twins_rejected with intervals, one row per system.
    """
    rows = table.assign(gap=table["twins_rejected"] - table["benign_rejected"])
    rows = rows.sort_values("gap", ascending=False, kind="stable", ignore_index=True)
    figure, axis = style.subplots(height=0.6 + 0.18 * len(rows))
    y = np.arange(len(rows))
    axis.hlines(
        y,
        rows["benign_rejected"],
        rows["twins_rejected"],
        color=style.GREY,
        linewidth=0.8,
        zorder=0,
    )
    for name, face, text in (
        ("benign_rejected", "white", "harmless"),
        ("twins_rejected", _REJECT, "harmful twins"),
    ):
        style.draw_interval_bars(
            axis, rows, name, y, ms=4, color=_REJECT, mfc=face, elinewidth=0.8
        )
        place = (rows[name].iloc[0], 0)
        axis.annotate(
            text,
            place,
            (0, 5),
            textcoords="offset points",
            ha="center",
            size=style.MIN_FONT_SIZE,
        )
    style.name_rows(axis, display_titles(rows["system"]))
    axis.set(
        xlim=(-0.02, 1.02),
        ylim=(len(rows) - 0.5, -0.9),
        xlabel="share rejected, with 95 % intervals",
    )
    return figure


def plot_guard_sweep(table: Table, own: Table) -> Figure:
    """Draw what each guard rejects at every threshold: harmful twins against harmless
    requests.

    A guard that sees nothing lies on the dotted diagonal; the dot is its own threshold,
    of which `own` has system, benign_rejected and twins_rejected. A page wide. `table`
    is `guarded.sweep_guard_thresholds` with a column system.
    """
    labels = ("harmless requests rejected", "harmful twins rejected")
    figure, panels = style.make_system_grid(table, 4, 1.5, 0.0, *labels)
    for place, (axis, name, rows) in enumerate(panels):
        curve = rows.sort_values("threshold", ascending=False)
        x, ends = (
            curve["rejected_benign"],
            (
                curve["rejected_twins_low"],
                curve["rejected_twins_high"],
            ),
        )
        axis.plot([0, 1], [0, 1], **style.CHANCE_LINE)
        axis.fill_between(x, *ends, color=style.GREY, alpha=0.25, lw=0)
        axis.plot(x, curve["rejected_twins"], color=_REJECT, lw=1.2)
        at = own.set_index("system").loc[name]
        axis.plot(
            at["benign_rejected"],
            at["twins_rejected"],
            "o",
            ms=4,
            color=_REJECT,
            clip_on=False,
        )
        axis.set(
            xlim=(0, 1),
            ylim=(0, 1),
            xticks=(0, 0.5, 1),
            title=axis.get_title("left").replace(", ", ",\n"),
        )
        axis.xaxis.set_tick_params(labelbottom=place + 4 >= len(panels))
    return figure


def plot_veto_curves(table: Table, chosen: Table) -> Figure:
    """Draw how many harmful requests are still refused where a veto answers harmless
    ones after all.

    Each line is a veto at every threshold; above the dotted line, overturning at
    random, it tells arbitrary refusals from right ones. A page wide. `table` is
    `veto.veto_curve`, `chosen` `veto.veto_table`, both with system and score.
    """
    labels = ("harmless requests answered after all", "harmful requests still refused")
    figure, panels = style.make_system_grid(table, 3, 1.55, 0.3, *labels)
    scores = (
        ("isolation", "paraphrases answered (isolation)", style.INK, "-"),
        ("reworded", "machine rewordings answered", _REJECT, "-"),
        ("ci", "CI", style.OTHER_COLOURS[1], "-"),
        ("1 - ci", "1 - CI", style.OTHER_COLOURS[1], "--"),
    )
    for axis, name, rows in panels:
        refused = rows[
            "lost"
        ].max()  # a veto that overturns every refusal loses all that was refused
        for score, label, colour, line in scores:
            own = rows[rows["score"] == score].sort_values("threshold")
            axis.plot(
                own["gained"],
                refused - own["lost"],
                color=colour,
                ls=line,
                lw=1.2,
                label=label,
            )
            if score == "isolation":
                ends = (refused - own["lost_low"], refused - own["lost_high"])
                axis.fill_between(
                    own["gained"], *ends, color=style.GREY, alpha=0.25, lw=0
                )
                axis.plot(
                    own["gained"],
                    refused - own["lost_random"],
                    label="at random",
                    **style.CHANCE_LINE,
                )
        at = chosen[(chosen["system"] == name) & (chosen["score"] == "isolation")]
        axis.plot(at["gained"], refused - at["lost"], "o", ms=4, color=style.INK)
        axis.set_ylim(-0.04, 1.04)
    style.name_lines(figure, axis)
    return figure


# Those that the map shows, if they were tried; else others, to as many
NAMED_REMEDIES = {
    "demonstrations": "refused examples in front",
    "self-reminder": "self-reminder",
    "rewritten": "softer instruction",
    "threshold": "threshold on the first token",
    "veto-isolation": "ideal veto",
    "ablated": "ablation of a direction",
}


def plot_remedy_map(table: Table, curves: Table) -> Figure:
    """Draw how a remedy moves each system's refusals of harmless requests and of their
    harmful twins. A page wide.

    A panel a remedy; up and to the left is better. Hollow: untouched, on the clusters
    that the remedied one was asked; full, with 95 % intervals: remedied. Thin lines:
    thresholds on p(refuse). Numbers: DR before and after, where refusals are enough.
    `table` is from `effects.table`, `curves` from `effects.ThresholdCurve.drawn`, with
    system.
    """
    tried = table.loc[table["remedy"] != UNTOUCHED, "remedy"].drop_duplicates()
    others = sorted(
        tried[~tried.isin(NAMED_REMEDIES)],
        key=lambda name: name.startswith(guarded.GUARDED_PREFIX),
    )
    names = [*(name for name in NAMED_REMEDIES if name in set(tried)), *others][
        : len(NAMED_REMEDIES)
    ]
    lines = -(-len(names) // 3)
    figure, axes = style.subplots(
        lines, 3, height=0.4 + 1.8 * lines, squeeze=False, sharex=True, sharey=True
    )
    titles = [NAMED_REMEDIES.get(name, name) for name in names]
    style.name_panels(
        axes, titles, "harmless requests refused", "harmful twins refused"
    )
    systems = list(dict.fromkeys(table["system"]))
    looks = style.model_looks(map(model_of_system, systems))
    for axis, name in zip(axes.flat, names, strict=False):
        rows = table[table["remedy"] == name]
        for place, system in enumerate(systems):
            title, colour = looks[model_of_system(system)]
            curve = curves[curves["system"] == system]
            axis.plot(curve["frr"], curve["twins"], color=colour, lw=0.5)
            axis.plot([], [], "o", color=colour, label=title)
            for row in rows[rows["system"] == system].to_dict("records"):
                before = {
                    of: row[of] - row[f"{of}_change"] for of in ("frr", "twins", "dr")
                }
                path = [[before[of], row[of]] for of in ("frr", "twins")]
                axis.plot(*path, "o-", color=colour, ms=4, mfc="white", lw=1.4)
                bars = [
                    [[row[of] - row[f"{of}_low"]], [row[f"{of}_high"] - row[of]]]
                    for of in ("twins", "frr")
                ]
                axis.errorbar(
                    row["frr"],
                    row["twins"],
                    *bars,
                    "o",
                    ms=4,
                    color=colour,
                    elinewidth=0.7,
                )
                dr = (
                    "DR: too few to judge"
                    if row["too_few_for_change"]
                    else f"DR {before['dr']:.2f} to {row['dr']:.2f}"
                )
                y = 0.08 * (len(systems) - place) - 0.03
                axis.plot(0.6, y, "o", ms=3, color=colour, transform=axis.transAxes)
                style.write_remark(axis, 0.64, y, dr, of="xy", va="center")
        axis.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04))
    style.name_lines(figure, axes[0, 0])
    return figure
