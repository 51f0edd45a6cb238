"""Figures of 00 to 05: the same bytes each time, and texts drawn as they are."""

import hashlib
import os
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from pictures import (
    check_sizes,
    check_widths,
    estimates,
    made,
    made_cohorts,
    numbers,
    panels,
    same,
)
from processors import elsewhere
from worlds import system, world

from paraguard_utils import paths, stores
from paraguard_utils.analysis import confusion, pipeline, signals, similarity
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.signals import PPL_INTERPRETATIONS
from paraguard_utils.corpus import gates
from paraguard_utils.report import figures
from paraguard_utils.report.figures import cohorts as cohort_figures
from paraguard_utils.report.figures import style
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


def scored_system():
    """A system with pairs and scores on a small synthetic world."""
    clusters = [f"c{i // 4}" for i in range(len(LABELS))]
    corpus, vectors, traces, labels, tokens = world(LABELS, clusters)
    strategies = ["seed", "lexical", "register", "rewrite"]
    corpus["strategy"] = strategies * (len(corpus) // 4)
    corpus["variant"] = [i % 4 for i in range(len(corpus))]
    groups = ClusterBootstrap(corpus["cluster_id"], 50)
    mine = system(corpus, labels, groups, traces=traces, tokens=tokens)
    mine = replace(mine, pairs=signals.compute_pairs(mine, vectors))
    return replace(mine, scores=confusion.score_prompts(mine))


def drawn():
    """Every figure with its panel, on made-up tables: name -> (figure, panel)."""
    rng = np.random.default_rng(7)
    mine = scored_system()
    rows = [confusion.system_row(mine, one) for one in PPL_INTERPRETATIONS]
    table = pd.DataFrame(rows).assign(too_few_for_dr=False)
    rejections = pipeline.stack_rejections([mine])
    correlations = pd.DataFrame(
        {"system": "mine", "interpretation": list(PPL_INTERPRETATIONS), "r": -0.1}
    )
    correlations = correlations.assign(r_low=-0.3, r_high=0.1)
    cells = made_cohorts(rng)
    counts = pd.DataFrame(
        {
            "measure": list(gates.GATE_MEASURES),
            "low": 0.5,
            "passes": [3, 4, 5],
            "stopped": [1, 0, 2],
        }
    )
    guards = pd.DataFrame({"system": ["mine", "theirs"], "axis": ["harm", "model"]})
    guards = guards.assign(**made(rng, 2, "benign_rejected", "twins_rejected"))
    shared = pd.DataFrame(
        {"system": ["mine--safety", "theirs"], "too_few": [False, True]}
    )
    shared = shared.assign(**made(rng, 2, "dr_near", "dr_free"))
    curves = pd.DataFrame(
        {"system": ["mine--safety"] * 3, "overlap": [0.0, 0.2, 0.8], "too_few": False}
    )
    curves = curves.assign(**made(rng, 3, "dr"))
    fig3 = figures.plot_ci_against_similarity(rejections, correlations)
    return {
        "both_corpora": (figures.plot_both_corpora(guards), guards),
        "shared_wording": (figures.plot_shared_wording(shared, curves), shared),
        "system_overview": (figures.plot_systems(table), table),
        "fig3_ci_similarity": (fig3, rejections),
        "fig5_cohorts": (figures.plot_paper_cohorts(cells), cells),
        "corpus_gates": (figures.plot_gate_distributions(counts, Gates()), counts),
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
        patch.delenv(style.NO_PDF, raising=False)
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


@pytest.mark.slow
def test_a_pdf_is_written_unless_none_is_wanted(results, monkeypatch):
    monkeypatch.setattr(style, "display", lambda *_, **__: None)
    panel = pd.DataFrame({"x": [1.0]})
    for no_pdf, suffixes in (
        ("1", {".csv", ".json", ".png"}),
        ("", {".csv", ".json", ".pdf", ".png"}),
    ):
        monkeypatch.setenv(style.NO_PDF, no_pdf)
        figure, _ = style.subplots()
        figures.publish_figure(stores.Store("live"), f"f{no_pdf}", figure, panel, {})
        written = (results / "live" / "figures").glob(f"f{no_pdf}.*")
        assert {path.suffix for path in written} == suffixes
    pdf = (results / "live" / "figures" / "f.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and b"CreationDate" not in pdf


def luminance(colours):
    """Relative luminance (WCAG 2)."""
    rgb = mpl.colors.to_rgba_array(colours)[:, :3]
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [
        0.2126,
        0.7152,
        0.0722,
    ]


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
    "other": style.OTHER_COLOURS,
    "none": (style.INK, style.GREY),
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
    for group in ("decision", "interpretation", "model"):
        for one, other in combinations(lab(REQUESTS[group], BLIND[sight]), 2):
            assert np.linalg.norm(one - other) > 15, (
                group
            )  # six times what the eye just notices


FUNCTIONS = {
    "corpus_gates": "plot_gate_distributions",
    "fig3_ci_similarity": "plot_ci_against_similarity",
    "fig5_cohorts": "plot_paper_cohorts",
    "system_overview": "plot_systems",
}


@pytest.mark.slow
def test_widths_are_as_the_figure_map_and_the_docstrings_say(pictures):
    check_widths(pictures, figures, FUNCTIONS)


@pytest.mark.slow
def test_every_text_has_6_to_7_points(pictures):
    check_sizes(pictures)


@pytest.mark.slow
def test_intervals_of_systems_are_the_panels(pictures):
    figure, table = pictures["system_overview"]
    relative = table[table["interpretation"] == "relative"]
    for axis, measure in zip(
        panels(figure), ("frr", "dr", "ci", "cr60", "cd"), strict=True
    ):
        same(estimates(axis), numbers(relative, measure))


@pytest.mark.slow
def test_dr_that_rests_on_too_few_decisions_is_not_drawn(pictures):
    _, table = pictures["system_overview"]
    figure = figures.plot_systems(table.assign(too_few_for_dr=True))
    assert not np.isfinite(estimates(panels(figure)[1])).any()


def test_a_system_without_an_interval_is_not_drawn_as_one():
    rng = np.random.default_rng(7)
    shared = pd.DataFrame({"system": ["mine", "theirs"], "too_few": True})
    shared = shared.assign(**made(rng, 2, "dr_near", "dr_free"))
    shared.loc[1, "dr_near_high"] = np.nan
    curves = pd.DataFrame({"system": [], "overlap": [], "too_few": []})
    figure = figures.plot_shared_wording(shared, curves)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["mine"]


def test_guards_and_models_have_a_colour_each(pictures):
    figure, _ = pictures["both_corpora"]
    (axis,) = panels(figure)
    colours = [part.lines[0].get_color() for part in axis.containers]
    assert colours == [style.DECISION_COLOURS["reject"]] * 2 + [style.INK] * 2


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
    assert similarity.average_ci_by_similarity(own.head(29), "ci").empty  # too few


def test_fig_5_is_the_cr_of_the_papers_cohorts(pictures):
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


def test_histograms_are_the_panels(pictures):
    figure, table = pictures["corpus_gates"]
    for axis, measure in zip(panels(figure), gates.GATE_MEASURES, strict=True):
        row = table[table["measure"] == measure].iloc[0]
        heights = [
            bar.get_height() for container in axis.containers for bar in container
        ]
        assert heights == [row["passes"], *([row["stopped"]] if row["stopped"] else [])]


def test_a_model_keeps_its_colour_whatever_stands_beside_it():
    known = [
        "smollm2-135m-instruct-q4_1",
        "qwen2.5-coder-0.5b-instruct-q4_k_m",
        "qwen2.5-coder-1.5b-instruct-q4_k_m",
    ]
    colours = style.model_colours(["textblob", *reversed(known)])
    assert [colours[name] for name in known] == list(style.MODEL_COLOURS)
    assert colours["textblob"] == style.OTHER_COLOURS[0]


def test_a_run_shows_its_own_figure_or_none(results, monkeypatch):
    shown = []
    monkeypatch.setattr(style, "display", lambda picture: shown.append(picture.data))
    live = stores.Store("live")
    figures.show_figure(live, "shared_wording")
    assert shown == [], "no picture of the record among another run's results"
    png = live.output_path("figures", "shared_wording.png")
    png.write_bytes((paths.FIGURES / "fig5_cohorts.png").read_bytes())
    figures.show_figure(live, "shared_wording")
    figures.show_figure(stores.Store("recorded"), "fig5_cohorts")
    assert shown[0] == shown[1] == png.read_bytes()
