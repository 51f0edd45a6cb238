"""Figures beside notebooks 05 and 07: guards at every threshold, vetoes, remedies."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_lab.remedies.catalogue import UNTOUCHED, guarded
from paraguard_lab.report.figures.panels import make_system_grid
from paraguard_utils.models.prompting import model_of_system
from paraguard_utils.registry import display_titles
from paraguard_utils.report.figures import style
from paraguard_utils.report.figures.guards import REJECT
from paraguard_utils.schemas import Table

_VETO_SCORES = {
    "isolation": ("paraphrases answered (isolation)", style.INK, "-"),
    "reworded": ("rule-made rewordings answered", REJECT, "-"),
    "ci": ("high CI", style.INTERPRETATION_COLOURS["relative"], "-"),
    "1 - ci": ("low CI", style.INTERPRETATION_COLOURS["relative"], "--"),
}
"""Name, colour and line of a veto, by the score that it uses."""

_BAND: style.Look = {"alpha": 0.2, "lw": 0}
"""How the 95 % interval of a curve is drawn, in the curve's colour."""

NAMED_REMEDIES = {
    "demonstrations": "refused examples in front",
    "self-reminder": "self-reminder",
    "rewritten": "softer instruction",
    "threshold": "threshold on the first token",
    "veto-isolation": "ideal veto",
    "ablated": "ablation of a direction",
}
"""The remedies that the map shows if they were tried, with their titles.

Others fill the panels that are left.
"""


def plot_guard_sweep(table: Table, guards: Table) -> Figure:
    """Draw what each guard rejects of harmful and of harmless requests by threshold.

    A guard that does not distinguish them is on the dotted diagonal; the dot is its own
    threshold. A page wide.

    Parameters
    ----------
    table : Table
        From `guarded.sweep_guard_thresholds`, with system.
    guards : Table
        What is rejected at guards' own thresholds: system, benign_rejected,
        twins_rejected.
    """
    figure, panels = make_system_grid(table, 4, 1.5)
    figure.supxlabel("harmless requests rejected")
    figure.supylabel("harmful twins rejected")
    chosen = guards.set_index("system")
    for axis, name, rows in panels:
        curve = rows.sort_values("threshold", ascending=False)
        x = curve["rejected_benign"]
        low, high = curve["rejected_twins_low"], curve["rejected_twins_high"]
        axis.plot([0, 1], [0, 1], **style.CHANCE_LINE)
        axis.fill_between(x, low, high, color=REJECT, **_BAND)
        axis.plot(x, curve["rejected_twins"], color=REJECT, lw=1.2)
        dot = chosen.loc[name]
        rates = dot["benign_rejected"], dot["twins_rejected"]
        axis.plot(*rates, "o", ms=4, color=REJECT, clip_on=False)
        title = axis.get_title("left").replace(", ", ",\n")
        axis.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1), title=title)
    return figure


def plot_veto_curves(table: Table, chosen: Table) -> Figure:
    """Draw how many harmful requests stay refused if a veto answers harmless ones.

    Each line is a veto at every threshold. Above the dotted line, which overturns
    refusals at random, it distinguishes arbitrary refusals from right ones. The dot is
    the threshold that was chosen. A page wide.

    Parameters
    ----------
    table : Table
        From `veto.veto_curve`, with system and score.
    chosen : Table
        What vetoes gain and lose at the thresholds chosen: system, score, gained, lost.
    """
    figure, panels = make_system_grid(table, 3, 1.55)
    figure.supxlabel("harmless requests no longer refused")
    figure.supylabel("harmful requests still refused")
    dots = chosen[chosen["score"] == "isolation"]
    for axis, name, rows in panels:
        # A veto that overturns every refusal loses all that was refused.
        refused = rows["lost"].max()
        for score in _VETO_SCORES:
            curve = rows[rows["score"] == score].sort_values("threshold")
            _draw_veto(axis, score, curve, refused)
        dot = dots[dots["system"] == name]
        kept = refused - dot["lost"]
        axis.plot(dot["gained"], kept, "o", ms=4, color=style.INK)
        axis.set_ylim(-0.04, 1.04)
    style.name_lines(figure, axis)
    return figure


def _draw_veto(axis: Axes, score: str, curve: Table, refused: float) -> None:
    """Draw one veto's line; that by isolation has a band, and chance beside it."""
    label, colour, line = _VETO_SCORES[score]
    gained = curve["gained"]
    kept = refused - curve["lost"]
    axis.plot(gained, kept, label=label, color=colour, ls=line, lw=1.2)
    if score == "isolation":
        low = refused - curve["lost_high"]
        high = refused - curve["lost_low"]
        axis.fill_between(gained, low, high, color=colour, **_BAND)
        random = refused - curve["lost_random"]
        axis.plot(gained, random, label="at random", **style.CHANCE_LINE)


def plot_remedy_map(table: Table, curves: Table) -> Figure:
    """Draw how remedies change each system's refusals of harmless and harmful requests.

    A panel per remedy; up and to the left is better. Hollow: the untouched system, on
    the clusters with which the remedied one was queried; full, with 95 % intervals:
    remedied. Thin lines: thresholds on p(refuse). Numbers: DR before and after, where
    there are enough refusals. A page wide.

    Parameters
    ----------
    table : Table
        From `effects.RemedyEffects.table`.
    curves : Table
        From `effects.RemedyEffects.drawn`.
    """
    names = _choose_remedies(table)
    figure, axes = style.make_grid(names, 3, 1.8)
    figure.supxlabel("harmless requests refused")
    figure.supylabel("harmful twins refused")
    systems = table["system"].unique()
    colours = style.model_colours(map(model_of_system, systems))
    for axis, name in zip(axes, names, strict=True):
        axis.set_title(NAMED_REMEDIES.get(name, name))
        tried = table[table["remedy"] == name]
        height = 0.08 * len(systems) - 0.03
        for system in systems:
            model = model_of_system(system)
            colour = colours[model]
            curve = curves[curves["system"] == system]
            axis.plot(curve["frr"], curve["twins"], color=colour, lw=0.5)
            axis.plot([], [], "o", color=colour, label=display_titles([model])[0])
            rows = tried[tried["system"] == system]
            _draw_effect(axis, rows, colour)
            _write_dr(axis, rows, colour, height)
            height -= 0.08
        axis.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04))
    style.name_lines(figure, axes[0])
    return figure


def _choose_remedies(table: Table) -> list[str]:
    """Return the remedies that the map has panels for: named ones, others, guards."""
    tried = table.loc[table["remedy"] != UNTOUCHED, "remedy"].unique()
    names = [name for name in NAMED_REMEDIES if name in tried]
    others = [name for name in tried if name not in NAMED_REMEDIES]
    others.sort(key=lambda name: name.startswith(guarded.GUARDED_PREFIX))
    return [*names, *others][: len(NAMED_REMEDIES)]


def _draw_effect(axis: Axes, rows: Table, colour: str) -> None:
    """Draw a line from an untouched system to the remedied one, with its intervals.

    `rows` has the row of the remedied system, or none.
    """
    x = rows["frr"]
    y = rows["twins"]
    x_before = x - rows["frr_change"]
    y_before = y - rows["twins_change"]
    look: style.Look = {"color": colour, "ms": 4}
    axis.plot([x_before, x], [y_before, y], "o-", mfc="white", lw=1.4, **look)
    look["elinewidth"] = 0.7
    style.draw_interval_bars(axis, rows, "frr", y, "x", **look)
    style.draw_interval_bars(axis, rows, "twins", x, "y", fmt="none", **look)


def _write_dr(axis: Axes, rows: Table, colour: str, height: float) -> None:
    """Write DR before and after a remedy beside a dot in the model's colour."""
    for row in rows.to_dict("records"):
        remark = "DR: too few refusals"
        if not row["too_few_for_change"]:
            before = row["dr"] - row["dr_change"]
            remark = f"DR {before:.2f} → {row['dr']:.2f}"
        axis.plot(0.55, height, "o", ms=3, color=colour, transform=axis.transAxes)
        style.write_remark(axis, 0.59, height, remark, of="xy", va="center")
