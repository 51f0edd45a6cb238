"""Figures of the notebooks beyond the paper: what they show is their panels."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import test_figures
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from pictures import (
    check_sizes,
    check_widths,
    estimates,
    made,
    made_cohorts,
    mapped_widths,
    numbers,
    panels,
    same,
    texts_in,
)

from paraguard_lab.analysis import (
    chance,
    covariates,
    groups,
    proxies,
    variance,
    weight_search,
)
from paraguard_lab.analysis.predictions import MEASURE_TITLES
from paraguard_lab.remedies.catalogue import UNTOUCHED
from paraguard_lab.report import figures
from paraguard_lab.report.figures.panels import PALE, PART_COLOURS, SHADES
from paraguard_utils.analysis import confusion
from paraguard_utils.analysis.cohorts import BIN_NAMES
from paraguard_utils.core.signals import PPL_INTERPRETATIONS
from paraguard_utils.report.paper import paper_value
from paraguard_utils.settings import Gates

VETO_SCORES = ("isolation", "reworded", "ci", "1 - ci")


def made_settings(rng, dimension, settings):
    """Made-up rows of a sensitivity table."""
    rows = pd.DataFrame({"dimension": dimension, "setting": settings})
    measures = made(rng, len(rows), "ci", "cr60", "cd", "excess")
    return rows.assign(system="mine--safety", n=90, **measures)


def test_black_text_can_be_read_on_every_shade_and_part():
    grounds = [*SHADES(np.linspace(0, 1, 64)), *PART_COLOURS.values()]
    luminance = test_figures.luminance(grounds)
    assert (luminance + 0.05).min() / 0.05 >= 4.5  # WCAG 2, level AA


def test_the_colours_beyond_the_paper_have_one_meaning_too():
    known = [colour for group in test_figures.REQUESTS.values() for colour in group]
    colours = list(map(to_hex, [*known, *PART_COLOURS.values(), PALE]))
    assert len(set(colours)) == len(colours)


@pytest.mark.parametrize("sight", test_figures.BLIND)
def test_parts_are_told_apart_with_every_kind_of_colour_vision(sight):
    seen = test_figures.lab(list(PART_COLOURS.values()), test_figures.BLIND[sight])
    for one, other in combinations(seen, 2):
        assert np.linalg.norm(one - other) > 15


def drawn():
    """Every figure with its panel, on made-up tables: name -> (figure, panel)."""
    rng = np.random.default_rng(7)
    mine = test_figures.scored_system()
    cohorts = made_cohorts(rng)
    rows = [confusion.system_row(mine, one) for one in PPL_INTERPRETATIONS]
    floors = pd.DataFrame(rows)
    floors = floors.assign(
        n_mixed=20,
        **made(rng, len(floors), "floor_matched", "excess_matched", "excess"),
    )
    group = {
        "group": "mine",
        "texts": 4,
        "low": [0.3, 0.5],
        "n": [1, 3],
        "median": 0.5,
        "within": 1.0,
    }
    groups_of_risk = pd.concat(
        [pd.DataFrame(group), pd.DataFrame(group | {"group": "theirs"})]
    )
    weights = made_settings(rng, "weights", list(weight_search.weight_grid()))
    by_k = made_settings(rng, "k", [str(k) for k in range(1, 21)])
    scaling = made_settings(rng, "scaling", ["relative", "clipped", "minmax"])
    taus = pd.DataFrame(
        {
            "system": "mine",
            "interpretation": "relative",
            "tau": chance.CURVE_TAUS,
            "cr": 1 - chance.CURVE_TAUS,
        }
    )
    taus = taus.assign(
        null=taus["cr"] / 2, null_low=taus["cr"] / 3, null_high=taus["cr"]
    )
    names = [*covariates.COVARIATE_TITLES, *covariates.SIGNAL_TITLES]
    correlates = pd.MultiIndex.from_product([PPL_INTERPRETATIONS, names])
    correlates = correlates.set_names(["interpretation", "covariate"])
    correlates = correlates.to_frame(index=False).assign(
        system="mine", n=48, too_few=False, **made(rng, 2 * len(names), "r")
    )
    fitted = pd.DataFrame({"system": "mine", "term": ["lexical", "risk", "length"]})
    fitted = fitted.assign(
        n=90, n_reject=40, note="", p_holm=[0.01, 0.5, np.nan], odds_ratio=[2.0, 0.8, 1]
    )
    fitted = fitted.assign(
        odds_ratio_low=fitted["odds_ratio"] / 2,
        odds_ratio_high=fitted["odds_ratio"] * 2,
    )
    whole = variance.split_variance(mine, variance.style_features(mine))
    split = pd.DataFrame(
        [whole, whole | {"decoding": "drawn", "chance": 0.2, "too_few": False}]
    )
    cells = pd.MultiIndex.from_product(
        [MEASURE_TITLES, ("chance", "perplexity"), (0.2, 0.5), (0.0, 0.8)]
    )
    truth = cells.set_names(["measure", "wording", "frr", "correlation"]).to_frame(
        index=False
    )
    truth = truth.assign(mean=rng.uniform(0.3, 0.7, len(truth)))
    truth = truth.assign(
        low=truth["mean"] - rng.uniform(0, 0.2, len(truth)), high=truth["mean"] + 0.1
    )
    turned = pd.DataFrame(
        {"system": ["mine", "mine", "theirs", "theirs"], "noise": [0.0, 0.2] * 2}
    )
    turned = turned.assign(**made(rng, len(turned), *MEASURE_TITLES))
    guards = pd.DataFrame({"system": ["mine", "theirs"]})
    guards = guards.assign(**made(rng, 2, "benign_rejected", "twins_rejected"))
    swept = pd.DataFrame(
        {"system": ["mine"] * 4 + ["theirs"] * 4, "threshold": [0.1, 0.2, 0.3, 0.4] * 2}
    )
    swept = swept.assign(**made(rng, 8, "rejected_benign", "rejected_twins", "dr"))
    told = pd.DataFrame({"prompts": ["all"] * 4 + ["drawn"] * 5})
    told["setting"] = [
        name for name in proxies.DISCLOSURE_SETTINGS if name != "text, drawn"
    ] + list(proxies.DISCLOSURE_SETTINGS)
    told = told.assign(
        system="mine--safety", too_few=False, **made(rng, 9, "rho", "ci_change")
    )
    vetoed = pd.DataFrame(
        [("mine", score, at) for score in VETO_SCORES for at in (0.2, 0.5, 0.8)]
    )
    vetoed = vetoed.set_axis(["system", "score", "threshold"], axis="columns")
    vetoed = vetoed.assign(**made(rng, len(vetoed), "gained", "lost", "lost_random"))
    by_source = pd.DataFrame(
        [
            (name, source)
            for name in ("mine", "theirs")
            for source in ("one", "two", "all")
        ]
    )
    by_source = by_source.set_axis(["system", "source"], axis="columns").assign(
        **made(rng, 6, "frr", "dr")
    )
    by_source["too_few_for_dr"] = by_source["too_few"] = False
    tried = ["a", "behind-b", "behind-c", "threshold", "d", "e", "rewritten"]
    remedied = pd.DataFrame(
        {
            "system": "mine--safety",
            "remedy": [UNTOUCHED, *tried],
            "too_few_for_change": False,
        }
    )
    remedied = remedied.assign(
        **made(rng, 8, "frr", "twins", "dr", "frr_change", "twins_change", "dr_change")
    )
    remedied.loc[remedied["remedy"] == "d", ["dr", "too_few_for_change"]] = (
        np.nan,
        True,
    )  # all decided alike
    swept_by_token = pd.DataFrame(
        {
            "system": "mine--safety",
            "threshold": [0.9, 0.5],
            "frr": [0.1, 0.8],
            "twins": [0.3, 0.9],
        }
    )
    words = pd.DataFrame(
        {"system": "mine--safety", "kind": "family", "term": ["hate", "sexual"]}
    )
    words = words.assign(
        p_holm=[0.2, 0.01],
        odds_ratio=[0.5, np.inf],
        odds_ratio_low=[0.0, 2.0],
        odds_ratio_high=[3.0, np.inf],
    )
    again = pd.DataFrame(
        {
            "system": ["mine--safety", "theirs"],
            "too_few": [False, True],
            "too_few_twins": [True, False],
        }
    )
    again = again.assign(**made(rng, 2, "rephrased3", "rephrased3_twins"))
    by_group = groups.group_table(mine)
    by_kind = pd.DataFrame({"pairs": ["near", "free", "all"], "too_few": False})
    by_kind = by_kind.assign(system="mine--safety", wording=0.2, chance=0.5)
    by_kind = by_kind.assign(meaning=0.3, meaning_low=0.2, meaning_high=0.4)
    others = pd.DataFrame({"source": ["triples", "stability", "ours"]})
    others = others.assign(system=["x/y", "z", "mine--safety"], temperature=0.7)
    others = others.assign(**made(rng, 3, "rate", "chance"))
    limits = Gates()
    return {
        "rephrasing_odds": (figures.plot_rephrasing_odds(again), again),
        "strategy_flips": (figures.plot_strategy_flips(by_group), by_group),
        "guard_sweep": (figures.plot_guard_sweep(swept, guards), swept),
        "proxies": (figures.plot_surrogate_levels(told), told),
        "veto_curves": (figures.plot_veto_curves(vetoed, vetoed), vetoed),
        "remedy_map": (figures.plot_remedy_map(remedied, swept_by_token), remedied),
        "known_truth": (figures.plot_known_truth(truth), truth),
        "sentiment_noise": (figures.plot_noise_response(turned), turned),
        "against_floors": (figures.plot_against_floors(floors), floors),
        "variance_parts": (figures.plot_variance_parts(split), split),
        "chance_by_kind": (figures.plot_chance_by_kind(by_kind), by_kind),
        "record_chance": (figures.plot_record_chance(others), others),
        "sensitivity_weights": (figures.plot_weight_simplex(weights), weights),
        "sensitivity_k": (figures.plot_against_k(by_k), by_k),
        "sensitivity_settings": (figures.plot_settings(scaling), scaling),
        "cr_curve": (figures.plot_cr_curve(taus), taus),
        "ci_correlates": (figures.plot_ci_correlates(correlates), correlates),
        "cohort_regression": (figures.plot_cohort_regression(fitted), fitted),
        "triggers": (figures.plot_triggers(words), words),
        "cohort_cells": (figures.plot_cohort_cells(cohorts), cohorts),
        "public_cohorts": (figures.plot_cohort_cells(cohorts), cohorts),
        "public_sources": (figures.plot_by_source(by_source), by_source),
        "instruction_wordings": (figures.plot_by_source(by_source), by_source),
        "risk_distributions": (
            figures.plot_risk_distributions(groups_of_risk, limits),
            groups_of_risk,
        ),
    }


@pytest.fixture(scope="module")
def pictures():
    return drawn()


def test_bars_are_as_long_as_their_parts():
    parts = {
        "meaning": 0.4,
        "style": 0.1,
        "wording": 0.3,
        "chance": 0.2,
        "meaning_low": 0.3,
        "meaning_high": 0.5,
    }
    rows = pd.DataFrame(
        [{"system": "t", "decoding": "drawn", "n": 99, "too_few": True, **parts}]
    )
    figure = figures.plot_variance_parts(rows)
    bars = {
        bar.get_label(): (bar[0].get_x(), bar[0].get_width())
        for bar in figure.axes[0].containers[:4]
    }
    assert [round(end, 6) for bar in bars.values() for end in bar] == [
        0,
        0.4,
        0.4,
        0.1,
        0.5,
        0.3,
        0.8,
        0.2,
    ]
    assert "hatched: fewer than 100 refusals or answers" in "".join(texts_in(figure))
    assert "t, drawn at 0.7" in texts_in(figure)
    assert {
        bar.get_hatch() for bars in figure.axes[0].containers[:4] for bar in bars
    } == {"////"}


@pytest.mark.slow
def test_flips_are_the_panels(pictures):
    figure, table = pictures["strategy_flips"]
    rows = table[(table["kind"] == "strategy") & (table["n_flip"] > 0)]
    known = np.vstack([numbers(rows, "to_reject"), numbers(rows, "to_accept")])
    same(estimates(panels(figure)[0]), known)


FUNCTIONS = {
    "public_sources": "plot_by_source",
    "instruction_wordings": "plot_by_source",
    "public_cohorts": "plot_cohort_cells",
    "sentiment_noise": "plot_noise_response",
    "sensitivity_weights": "plot_weight_simplex",
    "sensitivity_k": "plot_against_k",
    "sensitivity_settings": "plot_settings",
    "proxies": "plot_surrogate_levels",
}

DRAWN_BY_THIN = {
    *("both_corpora", "shared_wording", "system_overview", "fig3_ci_similarity"),
    *("fig5_cohorts", "corpus_gates", "public_gates", "fig3_all_systems"),
}
"""Figures of the map that functions of `paraguard_utils` draw."""


@pytest.mark.slow
def test_widths_are_as_the_figure_map_and_the_docstrings_say(pictures):
    assert set(mapped_widths()) == set(pictures) | DRAWN_BY_THIN
    check_widths(pictures, figures, FUNCTIONS)


@pytest.mark.slow
def test_every_text_has_6_to_7_points(pictures):
    check_sizes(pictures)


@pytest.mark.slow
def test_intervals_beside_floors_are_the_panels(pictures):
    figure, table = pictures["against_floors"]
    by = [
        table[table["interpretation"] == interpretation]
        for interpretation in PPL_INTERPRETATIONS
    ]
    ci = np.vstack(
        [numbers(rows, measure) for rows in by for measure in ("ci", "floor_matched")]
    )
    for axis, known in zip(panels(figure), (ci, None, None), strict=True):
        if known is not None:
            same(estimates(axis), known)
    for axis, measure in zip(
        panels(figure)[1:], ("excess", "excess_matched"), strict=True
    ):
        same(estimates(axis), np.vstack([numbers(rows, measure) for rows in by]))


@pytest.mark.slow
def test_remedies_lead_from_the_untouched_system_to_where_their_rates_are(pictures):
    figure, table = pictures["remedy_map"]
    named = [
        "softer instruction",
        "threshold on the first token",
        "a",
        "d",
        "e",
        "behind-b",
    ]
    assert [axis.get_title("left") for axis in panels(figure)] == named, (
        "those that matter, then others, guards last"
    )
    for axis, remedy in zip(
        panels(figure),
        ["rewritten", "threshold", "a", "d", "e", "behind-b"],
        strict=True,
    ):
        (row,) = table[table["remedy"] == remedy].to_dict("records")
        for direction, measure in ((0, "frr"), (1, "twins")):
            bars = [
                bar
                for part in axis.containers
                if isinstance(part, ErrorbarContainer)
                for bar in part.lines[2]
            ]
            ends = [
                line[:, direction]
                for bar in bars
                for line in bar.get_segments()
                if np.ptp(line[:, direction])
            ]
            assert ends == [
                pytest.approx([row[f"{measure}_low"], row[f"{measure}_high"]])
            ]
        before = [
            row[measure] - row[f"{measure}_change"] for measure in ("frr", "twins")
        ]
        lines = [
            line.get_xydata().tolist()
            for line in axis.lines
            if len(line.get_xydata()) == 2
        ]
        assert lines == [
            [[0.1, 0.3], [0.8, 0.9]],
            [pytest.approx(before), pytest.approx([row["frr"], row["twins"]])],
        ]
        dr = f"DR {row['dr'] - row['dr_change']:.2f} → {row['dr']:.2f}"
        assert [text.get_text() for text in axis.texts] == [
            "DR: too few refusals" if remedy == "d" else dr
        ]


@pytest.mark.slow
def test_a_veto_that_keeps_more_refused_lies_higher(pictures):
    figure, table = pictures["veto_curves"]
    (axis,) = panels(figure)
    for line, score in zip([axis.lines[0], *axis.lines[2:5]], VETO_SCORES, strict=True):
        own = table[table["score"] == score].sort_values("threshold")
        known = np.column_stack([own["gained"], table["lost"].max() - own["lost"]])
        assert line.get_xydata() == pytest.approx(known)


def test_the_break_condition_is_the_papers():
    assert paper_value("r.break.low") == covariates.CORRELATION_LIMIT


def test_correlations_are_the_panel_and_the_papers_stands_beside(pictures):
    figure, table = pictures["ci_correlates"]
    rows = [*covariates.COVARIATE_TITLES, *covariates.SIGNAL_TITLES]
    by = [
        table[table["interpretation"] == interpretation]
        .set_index("covariate")
        .loc[rows]
        for interpretation in PPL_INTERPRETATIONS
    ]
    same(estimates(panels(figure)[0]), np.vstack([numbers(part, "r") for part in by]))
    marks = [
        line.get_xdata() for line in panels(figure)[0].lines if line.get_marker() == "D"
    ]
    assert (
        [list(mark) for mark in marks] == [[paper_value("r.similarity")]] == [[-0.03]]
    )


def test_shades_are_ci_and_the_papers_cohorts_are_outlined(pictures):
    figure, table = pictures["cohort_cells"]
    relative = table[
        (table["interpretation"] == "relative")
        & table["risk"].isin(BIN_NAMES)
        & table["similarity"].isin(BIN_NAMES)
    ]
    maps = [
        axis
        for axis in panels(figure)
        if axis.get_title(loc="left") in ("mine", "theirs")
    ]
    ends = set()
    for axis in maps:
        own = relative[relative["system"] == axis.get_title(loc="left")].set_index(
            ["risk", "similarity"]
        )["ci"]
        mesh = axis.collections[0]
        shown = np.ma.filled(mesh.get_array().astype(float), np.nan).ravel()
        assert shown == pytest.approx(
            [own[risk, near] for risk in BIN_NAMES for near in BIN_NAMES], nan_ok=True
        )
        ends.add(mesh.get_clim())
        outlined = [(box.get_xy(), box.get_width()) for box in axis.patches]
        assert outlined == [
            ((BIN_NAMES.index("high"), BIN_NAMES.index("low")), 1),
            ((0, BIN_NAMES.index("high")), 3),
        ]
    assert len(maps) == 2 and ends == {(relative["ci"].min(), relative["ci"].max())}


def test_odds_are_the_panels(pictures):
    figure, table = pictures["cohort_regression"]
    dots = [
        line.get_xdata()[0]
        for line in panels(figure)[0].lines
        if line.get_marker() == "o"
    ]
    own = table[table["system"] == table["system"].iloc[0]]
    assert dots == pytest.approx(own["odds_ratio"].tolist(), nan_ok=True)


def test_settings_are_drawn_as_differences_from_the_default():
    rows = [
        ("scaling", "relative", "t", 30, 0.4, 0.3, 0.5, 0.10, 0.05, 0.15),
        ("scaling", "clipped", "t", 30, 0.7, 0.6, 0.9, 0.04, 0.01, 0.09),
        ("scaling", "clipped", "too_few", 29, 0.7, 0.6, 0.9, 0.04, 0.01, 0.09),
        ("theta", "none", "t", 30, 0.4, 0.3, 0.5, np.nan, np.nan, np.nan),
        ("theta", "0.90", "t", 30, 0.1, 0.0, 0.2, np.nan, np.nan, np.nan),
    ]
    names = ["n", "ci", "ci_low", "ci_high", "excess", "excess_low", "excess_high"]
    table = pd.DataFrame(rows, columns=["dimension", "setting", "system", *names])
    figure = figures.plot_settings(table)
    ci, excess = figure.axes
    same(estimates(ci), np.array([[0.3, 0.2, 0.5], [-0.3, -0.4, -0.2]]))
    same(estimates(excess), np.array([[-0.06, -0.09, -0.01]]))
    assert [label.get_text() for label in ci.get_yticklabels()] == [
        "scaling: clipped",
        "theta: 0.90",
    ]
    assert "theta cannot change it" in texts_in(figure)


def test_levels_are_the_panel_and_few_rejections_are_left_out(pictures):
    figure, table = pictures["proxies"]
    both = table["prompts"].eq("all") | table["setting"].isin(["text", "text, drawn"])
    for axis, measure in zip(panels(figure), ("rho", "ci_change"), strict=True):
        same(estimates(axis), numbers(table[both], measure))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "full\nDrift borrowed",
        "answer tokens, 20\nDrift and PPL borrowed",
        "answer tokens, 5\nDrift and PPL borrowed",
        "text\nall three borrowed",
        "text, drawn\nprompts with drawn answers",
        "text\nprompts with drawn answers",
    ]
    assert (
        len(
            estimates(figures.plot_surrogate_levels(table.assign(too_few=True)).axes[0])
        )
        == 0
    )


def test_curves_are_the_panels(pictures):
    figure, table = pictures["cr_curve"]
    assert panels(figure)[0].lines[2].get_ydata() == pytest.approx(table["cr"])
    figure, table = pictures["sensitivity_k"]
    for axis, measure in zip(panels(figure), ("cr60", "cd", "ci"), strict=True):
        assert axis.lines[0].get_ydata() == pytest.approx(table[measure])
    figure, table = pictures["known_truth"]
    for axis, measure in zip(panels(figure), MEASURE_TITLES, strict=True):
        own = table[table["measure"] == measure].sort_values("correlation")
        drawn_ones = [("chance", 0.2), ("chance", 0.5), ("perplexity", 0.2)]
        parts = [
            own[(own["wording"] == wording) & (own["frr"] == rate)]
            for wording, rate in drawn_ones
        ]
        same(estimates(axis, 1), pd.concat(parts)[["mean", "low", "high"]].to_numpy())
    figure, table = pictures["sentiment_noise"]
    for axis, measure in zip(
        panels(figure), ("dr", "ci", "cr60", "cd", "excess"), strict=True
    ):
        same(estimates(axis, 1), numbers(table, measure))


def test_weights_are_shaded_by_their_excess(pictures):
    figure, table = pictures["sensitivity_weights"]
    points, _ = panels(figure)[0].collections
    assert points.get_array().tolist() == table["excess"].tolist()
    sizes = np.where(table["excess_low"] > 0, 36, 10)
    assert points.get_sizes().tolist() == sizes.tolist()


def test_histograms_of_risk_are_the_panels(pictures):
    figure, table = pictures["risk_distributions"]
    for axis, (_, rows) in zip(panels(figure), table.groupby("group"), strict=True):
        assert [bar.get_height() for bar in axis.containers[0]] == pytest.approx(
            (rows["n"] / rows["texts"]).tolist()
        )
        assert f" median {rows['median'].iloc[0]:.2f}" in texts_in(axis)
