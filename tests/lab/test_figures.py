"""Figures: the same bytes each time, and texts drawn as they are."""

import csv
import hashlib
import inspect
import os
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import LineCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.text import Text
from processors import elsewhere
from worlds import system as world_system
from worlds import world

from paraguard_lab.analysis import chance, sensitivity, surrogate, validity, variance
from paraguard_lab.analysis.predictions import MEASURE_TITLES
from paraguard_lab.remedies.catalogue import UNTOUCHED
from paraguard_utils import paths, stores
from paraguard_utils.analysis import cohorts as cohort_tables
from paraguard_utils.analysis import confusion, pipeline, signals
from paraguard_utils.analysis.cohorts import BIN_NAMES
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.signals import PPL_INTERPRETATIONS
from paraguard_utils.corpus import gates
from paraguard_utils.report import figures
from paraguard_utils.report.figures import cohorts as cohort_figures
from paraguard_utils.report.figures import scoring as scoring_figures
from paraguard_utils.report.figures import style
from paraguard_utils.report.paper import paper_value
from paraguard_utils.settings import Gates

LABELS = [
    "reject",
    "accept",
    "accept",
    "reject",
    "accept",
    "blocked",
    "reject",
    "accept",
] * 6
VETO_SCORES = ("isolation", "reworded", "ci", "1 - ci")


def made(rng, n, *measures):
    """Columns of made-up estimates: a value in [0.3, 0.7], and ends around it."""
    found = {}
    for name in measures:
        found[name] = rng.uniform(0.3, 0.7, n)
        found[f"{name}_low"], found[f"{name}_high"] = (
            found[name] - rng.uniform(0, 0.2, n),
            found[name] + 0.1,
        )
    return found


def drawn():
    """Every published figure on a small synthetic world, with its panel: name ->
    (figure, panel).
    """
    rng = np.random.default_rng(7)
    corpus, vectors, traces, labels, tokens = world(
        LABELS, [f"c{i // 4}" for i in range(len(LABELS))]
    )
    pairs = signals.compute_pairs(corpus, vectors, traces, labels, tokens)
    scores = confusion.score_prompts(corpus, labels, pairs)
    groups = ClusterBootstrap(corpus["cluster_id"], 50)
    table = pd.DataFrame(
        [
            confusion.system_row(
                "mine", corpus, labels, pairs, scores, groups, interpretation
            )
            for interpretation in PPL_INTERPRETATIONS
        ]
    )
    rejections = pipeline.stack_rejections({"mine": scores})
    correlations = pd.DataFrame(
        {"system": "mine", "interpretation": list(PPL_INTERPRETATIONS), "r": -0.1}
    )
    correlations = correlations.assign(r_low=-0.3, r_high=0.1)
    cells = pd.MultiIndex.from_product(
        [
            ("mine", "theirs"),
            PPL_INTERPRETATIONS,
            [*BIN_NAMES, "all"],
            [*BIN_NAMES, "all"],
        ],
        names=["system", "interpretation", "risk", "similarity"],
    ).to_frame(index=False)
    cohorts = cells.assign(
        n=rng.integers(20, 90, len(cells)),
        too_few=False,
        **made(rng, len(cells), "ci", "cr60"),
    )
    cohorts.loc[0, ["n", "ci", "ci_low", "ci_high"]] = 0, np.nan, np.nan, np.nan
    counts = pd.DataFrame(
        {
            "measure": list(gates.GATE_MEASURES),
            "low": 0.5,
            "passes": [3, 4, 5],
            "stopped": [1, 0, 2],
        }
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
    limits = Gates()
    frame = sensitivity.prepare_pairs(pairs, corpus, signals.trace_perplexity(traces))
    frame = frame.assign(drift_centred=frame["drift"], drift_encoder=frame["drift"] / 2)
    settings = sensitivity.sensitivity_table(
        sensitivity.vary_settings(groups, {"mine--safety": frame})
    )
    chosen = {
        name: settings[settings["dimension"] == name]
        for name in ("weights", "k", "scaling")
    }
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
    about = {"mine": validity.ci_covariates(corpus, traces, labels, pairs, scores)}
    correlates = validity.correlate_ci(about, groups)
    strategies = corpus.assign(
        strategy=(["seed", "lexical", "register", "rewrite"] * len(corpus))[
            : len(corpus)
        ]
    )
    strategies["variant"] = [i % 4 for i in range(len(corpus))]
    by_group = cohort_tables.group_table("mine", strategies, scores, groups)
    fitted = cohort_tables.refusal_odds_ratios(strategies, {"mine": scores})
    floors = table.assign(
        **made(rng, len(table), "floor_matched", "excess_matched", "excess")
    )
    system = world_system(corpus, labels, groups, traces=traces)
    whole = variance.split_variance(system, variance.style_features(system))
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
    guards = pd.DataFrame({"system": ["mine", "theirs"]}).assign(
        **made(rng, 2, "benign_rejected", "twins_rejected")
    )
    swept = pd.DataFrame(
        {"system": ["mine"] * 4 + ["theirs"] * 4, "threshold": [0.1, 0.2, 0.3, 0.4] * 2}
    )
    swept = swept.assign(**made(rng, 8, "rejected_benign", "rejected_twins", "dr"))
    told = pd.DataFrame({"prompts": ["all"] * 4 + ["drawn"] * 5})
    told["setting"] = [
        name for name in surrogate.DISCLOSURE_SETTINGS if name != "text, drawn"
    ] + list(surrogate.DISCLOSURE_SETTINGS)
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
    shared = pd.DataFrame(
        {"system": ["mine--safety", "theirs"], "too_few": [False, True]}
    )
    shared = shared.assign(**made(rng, 2, "dr_near", "dr_free"))
    curves = pd.DataFrame(
        {"system": ["mine--safety"] * 3, "overlap": [0.0, 0.2, 0.8], "too_few": False}
    )
    curves = curves.assign(**made(rng, 3, "dr"))
    words = pd.DataFrame(
        {"system": "mine--safety", "kind": "family", "term": ["hate", "sexual"]}
    )
    words = words.assign(
        p_holm=[0.2, 0.01],
        odds_ratio=[0.5, np.inf],
        odds_ratio_low=[0.0, 2.0],
        odds_ratio_high=[3.0, np.inf],
    )
    again = shared.assign(
        too_few_twins=[True, False], **made(rng, 2, "rephrased3", "rephrased3_twins")
    )
    return {
        "both_corpora": (figures.plot_both_corpora(guards), guards),
        "guard_sweep": (figures.plot_guard_sweep(swept, guards), swept),
        "proxies": (figures.plot_surrogate_levels(told), told),
        "veto_curves": (figures.plot_veto_curves(vetoed, vetoed), vetoed),
        "remedy_map": (figures.plot_remedy_map(remedied, swept_by_token), remedied),
        "known_truth": (figures.plot_known_truth(truth), truth),
        "sentiment_noise": (figures.plot_noise_response(turned), turned),
        "against_floors": (figures.plot_against_floors(floors), floors),
        "variance_parts": (figures.plot_variance_parts(split), split),
        "shared_wording": (figures.plot_shared_wording(shared, curves), shared),
        "sensitivity_weights": (
            figures.plot_weight_simplex(chosen["weights"]),
            chosen["weights"],
        ),
        "sensitivity_k": (figures.plot_against_k(chosen["k"]), chosen["k"]),
        "sensitivity_settings": (
            figures.plot_settings(chosen["scaling"]),
            chosen["scaling"],
        ),
        "cr_curve": (figures.plot_cr_curve(taus), taus),
        "ci_correlates": (
            figures.plot_ci_correlates(correlates),
            correlates,
        ),
        "strategy_flips": (figures.plot_strategy_flips(by_group), by_group),
        "cohort_regression": (figures.plot_cohort_regression(fitted), fitted),
        "triggers": (figures.plot_triggers(words), words),
        "system_overview": (figures.plot_systems(table), table),
        "rephrasing_odds": (figures.plot_rephrasing_odds(again), again),
        "fig3_ci_similarity": (
            figures.plot_ci_against_similarity(rejections, correlations),
            rejections,
        ),
        "fig3_all_systems": (
            figures.plot_ci_against_similarity(rejections, correlations),
            rejections,
        ),
        "fig5_cohorts": (figures.plot_paper_cohorts(cohorts), cohorts),
        "cohort_cells": (figures.plot_cohort_cells(cohorts), cohorts),
        "corpus_gates": (figures.plot_gate_distributions(counts, limits), counts),
        "public_gates": (figures.plot_gate_distributions(counts, limits), counts),
        "public_sources": (figures.plot_by_source(by_source), by_source),
        "instruction_wordings": (figures.plot_by_source(by_source), by_source),
        "public_cohorts": (figures.plot_cohort_cells(cohorts), cohorts),
        "risk_distributions": (
            figures.plot_risk_distributions(groups_of_risk, limits),
            groups_of_risk,
        ),
    }


@pytest.fixture(scope="module")
def pictures():
    return drawn()


SAMPLED_FIGURES = ("fig3_ci_similarity", "fig5_cohorts")
"""Figures that two processes draw each time; they draw all where PARAGUARD_WEEKLY is
set.
"""


def digests(folder):
    """Publish figures under a folder; the hashes of what is there then, by file name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "display", lambda *_, **__: None)
        patch.setattr(paths, "RESULTS", Path(folder))
        for name, (figure, panel) in drawn().items():
            if name in SAMPLED_FIGURES or os.environ.get("PARAGUARD_WEEKLY"):
                figures.publish_figure(stores.Store("live"), name, figure, panel, {})
        files = sorted((paths.RESULTS / "live/figures").iterdir())
        return {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files
        }


@pytest.mark.slow
@pytest.mark.weekly
def test_two_processes_draw_the_same_bytes_whatever_the_processor(tmp_path):
    own = digests(tmp_path / "own")
    assert {
        "fig3_ci_similarity.pdf",
        "fig3_ci_similarity.png",
        "fig5_cohorts.csv",
    } <= set(own)
    assert elsewhere("test_figures", "digests", tmp_path / "other") == str(own)


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


def texts_in(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def luminance(colours):
    """Relative luminance (WCAG 2)."""
    rgb = mpl.colors.to_rgba_array(colours)[:, :3]
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [
        0.2126,
        0.7152,
        0.0722,
    ]


def test_black_text_can_be_read_on_every_shade_and_part():
    grounds = [*style.SHADES(np.linspace(0, 1, 64)), *style.PART_COLOURS.values()]
    assert (luminance(grounds) + 0.05).min() / 0.05 >= 4.5  # WCAG 2, level AA


def test_coloured_words_can_be_read_on_white():
    words = [
        *style.DECISION_COLOURS.values(),
        *style.INTERPRETATION_COLOURS.values(),
        style.GREY,
    ]
    assert 1.05 / (luminance(words).max() + 0.05) >= 3.5


REQUESTS = {
    "decision": tuple(style.DECISION_COLOURS.values()),
    "interpretation": tuple(style.INTERPRETATION_COLOURS.values()),
    "model": style.MODEL_COLOURS,
    "part": tuple(style.PART_COLOURS.values()),
    "other": style.OTHER_COLOURS,
    "none": (style.INK, style.GREY, style.PALE),
}
"""All colours by what they say."""


def test_a_colour_has_one_meaning():
    colours = [
        mpl.colors.to_hex(colour) for group in REQUESTS.values() for colour in group
    ]
    assert len(set(colours)) == len(colours)


# Machado, Oliveira and Fernandes 2009: how linear RGB looks without one kind of cone.
BLIND = {
    "none": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}


def lab(colours, seen):
    """CIE L*a*b* of colours as one sees them."""
    rgb = mpl.colors.to_rgba_array(colours)[:, :3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = (linear @ np.transpose(seen)).clip(0, 1)
    to_xyz = [
        [0.4124, 0.3576, 0.1805],
        [0.2126, 0.7152, 0.0722],
        [0.0193, 0.1192, 0.9505],
    ]
    x, y, z = np.cbrt(
        (linear @ np.transpose(to_xyz) / [0.9505, 1, 1.089]).clip(min=0.008856)
    ).T
    return np.column_stack([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", BLIND)
def test_colours_of_one_meaning_are_told_apart_with_every_kind_of_colour_vision(sight):
    for group in ("decision", "interpretation", "model", "part"):
        for one, other in combinations(lab(REQUESTS[group], BLIND[sight]), 2):
            assert np.linalg.norm(one - other) > 15, (
                group
            )  # six times what the eye just notices


FUNCTIONS = {
    "corpus_gates": "plot_gate_distributions",
    "public_gates": "plot_gate_distributions",
    "public_sources": "plot_by_source",
    "instruction_wordings": "plot_by_source",
    "public_cohorts": "plot_cohort_cells",
    "fig3_ci_similarity": "plot_ci_against_similarity",
    "fig3_all_systems": "plot_ci_against_similarity",
    "fig5_cohorts": "plot_paper_cohorts",
    "sentiment_noise": "plot_noise_response",
    "sensitivity_weights": "plot_weight_simplex",
    "sensitivity_k": "plot_against_k",
    "sensitivity_settings": "plot_settings",
    "proxies": "plot_surrogate_levels",
    "system_overview": "plot_systems",
}


@pytest.mark.slow
def test_widths_are_as_the_figure_map_and_the_docstrings_say(pictures):
    with (paths.FIGURES / "FIGURE_MAP.csv").open(encoding="utf-8") as file:
        said = {Path(row["figure"]).stem: row["width"] for row in csv.DictReader(file)}
    assert set(said) == set(pictures)
    for name, width in said.items():
        assert (
            pictures[name][0].get_figwidth()
            == {"column": style.COLUMN_WIDTH, "page": style.PAGE_WIDTH}[width]
        ), name
        about = inspect.getdoc(getattr(figures, FUNCTIONS.get(name, f"plot_{name}")))
        assert f"A {width} wide." in " ".join(about.split()), name


@pytest.mark.slow
def test_every_text_has_6_to_7_points(pictures):
    for name, (figure, _) in pictures.items():
        figure.draw_without_rendering()
        sizes = {
            text.get_fontsize()
            for text in figure.findobj(Text)
            if text.get_text().strip()
        }
        assert sizes and min(sizes) >= style.MIN_FONT_SIZE and max(sizes) <= 7, name


def estimates(axis, direction=0):
    """What the error bars of a panel show, one list after another: value, low, high;
    along x (0) or y (1).
    """
    rows = []
    for container in axis.containers:
        if isinstance(container, ErrorbarContainer):
            data, _, (bars,) = container.lines
            lines = [
                np.array(line) for line in bars.get_segments()
            ]  # an undefined one is empty
            ends = [line[:, direction] if line.size else [np.nan] * 2 for line in lines]
            rows += [
                (v, *end)
                for v, end in zip(data.get_data()[direction], ends, strict=True)
            ]
    return np.array(rows, float)


def numbers(rows, measure):
    return rows[[measure, f"{measure}_low", f"{measure}_high"]].to_numpy(float)


def same(shown, known):
    known = known[np.isfinite(known).all(axis=1)]
    shown = shown[np.isfinite(shown).all(axis=1)]
    assert len(known) and shown == pytest.approx(known)


def panels(figure):
    return [axis for axis in figure.axes if axis.get_visible()]


@pytest.mark.slow
def test_intervals_of_systems_are_the_panels(pictures):
    figure, table = pictures["system_overview"]
    relative = table[table["interpretation"] == "relative"]
    for axis, measure in zip(
        panels(figure), ("frr", "dr", "ci", "cr60", "cd"), strict=True
    ):
        same(estimates(axis), numbers(relative, measure))
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
        dr = f"DR {row['dr'] - row['dr_change']:.2f} to {row['dr']:.2f}"
        assert [text.get_text() for text in axis.texts] == [
            "DR: too few to judge" if remedy == "d" else dr
        ]


def test_a_veto_that_keeps_more_refused_lies_higher(pictures):
    figure, table = pictures["veto_curves"]
    (axis,) = panels(figure)
    for line, score in zip([axis.lines[0], *axis.lines[2:5]], VETO_SCORES, strict=True):
        own = table[table["score"] == score].sort_values("threshold")
        known = np.column_stack([own["gained"], table["lost"].max() - own["lost"]])
        assert line.get_xydata() == pytest.approx(known)


def test_correlations_are_the_panel_and_the_papers_stands_beside(pictures):
    figure, table = pictures["ci_correlates"]
    rows = [*validity.COVARIATE_TITLES, *validity.SIGNAL_TITLES]
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


def test_fig_3_counts_every_rejection_and_averages_those_of_a_bin():
    rng = np.random.default_rng(3)
    own = pd.DataFrame({"system": "t", "mean_similarity": rng.uniform(0.1, 0.9, 240)})
    own["cluster_id"] = [f"c{i // 4}" for i in range(240)]
    own["ci"] = 0.6 - 0.3 * own["mean_similarity"] + rng.normal(0, 0.02, 240)
    own["ci_clipped"] = own["ci"] + 0.2
    r = pd.DataFrame(
        {
            "system": "t",
            "interpretation": list(PPL_INTERPRETATIONS),
            "r": -0.9,
            "r_low": -0.95,
            "r_high": -0.85,
        }
    )
    (axis,) = panels(figures.plot_ci_against_similarity(own, r))
    hexagons = [
        part for part in axis.collections if not isinstance(part, LineCollection)
    ]
    assert [part.get_array().sum() for part in hexagons] == [240, 240]
    shown = estimates(axis, 1)
    bins = own.sort_values("mean_similarity").groupby(np.arange(240) // 30)
    known = np.concatenate([bins["ci"].mean(), bins["ci_clipped"].mean()])
    assert shown[:, 0] == pytest.approx(known)
    assert (
        (shown[:, 1] < known).all()
        and (known < shown[:, 2]).all()
        and np.ptp(shown[:, 1:], axis=1).max() < 0.05
    )
    dashed = [line.get_xydata() for line in axis.lines if line.get_linestyle() == "--"]
    slope = np.diff(dashed[0], axis=0)[0]
    assert slope[1] / slope[0] == pytest.approx(
        -0.03 * own["ci"].std() / own["mean_similarity"].std()
    )
    assert scoring_figures.average_ci_by_similarity(own.head(29), "ci").empty  # too few


def test_fig_5_is_the_cr_of_the_papers_cohorts_and_shades_are_ci(pictures):
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
    figure, table = pictures["fig5_cohorts"]
    strips = panels(figure)
    assert len(strips) == len(cohort_figures.PAPER_COHORTS) == 2
    for axis, where, paper in zip(
        strips, (("low", "high"), ("high", "all")), (0.6, 0.278), strict=True
    ):
        rows = table[(table["risk"] == where[0]) & (table["similarity"] == where[1])]
        same(
            estimates(axis),
            np.vstack(
                [
                    numbers(rows[rows["interpretation"] == one], "cr60")
                    for one in PPL_INTERPRETATIONS
                ]
            ),
        )
        assert [
            list(line.get_xdata())
            for line in axis.lines
            if line.get_linestyle() == "--"
        ] == [[paper, paper]]


def test_flips_and_odds_are_the_panels(pictures):
    figure, table = pictures["strategy_flips"]
    rows = table[(table["kind"] == "strategy") & (table["n_flip"] > 0)]
    bars = [bar.get_width() for bar in panels(figure)[0].patches]
    assert bars == pytest.approx([*rows["to_reject"], *-rows["to_accept"]])
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
    ci, excess, _ = figure.axes
    same(estimates(ci), np.array([[0.3, 0.2, 0.5], [-0.3, -0.4, -0.2]]))
    same(estimates(excess), np.array([[-0.06, -0.09, -0.01]]))
    assert [label.get_text() for label in ci.get_yticklabels()] == [
        "scaling: clipped",
        "theta: 0.90",
    ]
    assert "theta cannot move it" in texts_in(figure)


def test_levels_are_the_panel_and_few_rejections_are_left_out(pictures):
    figure, table = pictures["proxies"]
    both = table["prompts"].eq("all") | table["setting"].isin(["text", "text, drawn"])
    for axis, measure in zip(panels(figure), ("rho", "ci_change"), strict=False):
        same(estimates(axis), numbers(table[both], measure))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "full\nDrift lent", "answer tokens, 20\nDrift and PPL lent", "answer tokens, 5\nDrift and PPL lent",
        "text\nall three lent", "text, drawn\non what was asked again", "text\non what was asked again",
    ]  # fmt: skip
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
    above, not_above, _ = panels(figure)[0].collections
    sure = table["excess_low"] > 0
    assert above.get_array().tolist() == table.loc[sure, "excess"].tolist()
    assert not_above.get_array().tolist() == table.loc[~sure, "excess"].tolist()


def test_histograms_are_the_panels(pictures):
    figure, table = pictures["corpus_gates"]
    for axis, measure in zip(panels(figure), gates.GATE_MEASURES, strict=True):
        row = table[table["measure"] == measure].iloc[0]
        heights = [
            bar.get_height() for container in axis.containers for bar in container
        ]
        assert heights == [row["passes"], *([row["stopped"]] if row["stopped"] else [])]
    figure, table = pictures["risk_distributions"]
    for axis, (_, rows) in zip(panels(figure), table.groupby("group"), strict=True):
        assert [bar.get_height() for bar in axis.containers[0]] == pytest.approx(
            (rows["n"] / rows["texts"]).tolist()
        )
        assert f" median {rows['median'].iloc[0]:.2f}" in texts_in(axis)


def test_a_model_keeps_its_colour_whatever_stands_beside_it():
    known = [
        "smollm2-135m-instruct-q4_1",
        "qwen2.5-coder-0.5b-instruct-q4_k_m",
        "qwen2.5-coder-1.5b-instruct-q4_k_m",
    ]
    looks = style.model_looks(["textblob", *reversed(known)])
    assert [looks[name][1] for name in known] == list(style.MODEL_COLOURS)
    assert looks[known[0]][0] == "SmolLM2-135M" and looks["textblob"] == (
        "textblob",
        style.OTHER_COLOURS[0],
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.2))
def test_labels_are_spread_downwards_and_keep_their_order(values, gap):
    places = style.spread_labels(values, gap, 1.0)
    assert (places <= np.array(values) + 1e-12).all() and max(places) <= 1
    order = np.argsort(-np.array(values), kind="stable")
    assert (-np.diff(places[order]) >= gap - 1e-9).all()
