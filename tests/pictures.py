"""What tests of figures share: made-up panels, and what a drawn figure shows."""

import csv
import inspect
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.text import Text

from paraguard_utils import paths
from paraguard_utils.analysis.cohorts import BIN_NAMES
from paraguard_utils.core.signals import PPL_INTERPRETATIONS
from paraguard_utils.report.figures import style


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


def made_cohorts(rng):
    """Made-up cohorts of two systems, of which one has no rejection."""
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
    return cohorts


def texts_in(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


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


def mapped_widths():
    """Width of each figure by its name, as FIGURE_MAP.csv says."""
    with (paths.FIGURES / "FIGURE_MAP.csv").open(encoding="utf-8") as file:
        return {Path(row["figure"]).stem: row["width"] for row in csv.DictReader(file)}


def check_widths(pictures, package, functions):
    """Check widths against the figure map and the docstrings.

    `functions` has the function of a figure that is not called as the figure is.
    """
    inches = {"column": style.COLUMN_WIDTH, "page": style.PAGE_WIDTH}
    widths = mapped_widths()
    for name, (figure, _) in pictures.items():
        assert figure.get_figwidth() == inches[widths[name]], name
        function = getattr(package, functions.get(name, f"plot_{name}"))
        about = " ".join(inspect.getdoc(function).split())
        assert f"{widths[name]} wide" in about, name


def check_sizes(pictures):
    """Check that every text has 6 to 7 points."""
    for name, (figure, _) in pictures.items():
        figure.draw_without_rendering()
        sizes = {
            text.get_fontsize()
            for text in figure.findobj(Text)
            if text.get_text().strip()
        }
        assert sizes and min(sizes) >= style.MIN_FONT_SIZE and max(sizes) <= 7, name
