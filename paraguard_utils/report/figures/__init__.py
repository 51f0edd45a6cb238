"""The figures of notebooks 00 to 05; `publish_figure` writes one and shows it."""

from paraguard_utils.report.figures.cohorts import plot_paper_cohorts
from paraguard_utils.report.figures.corpus import plot_gate_distributions
from paraguard_utils.report.figures.guards import plot_both_corpora
from paraguard_utils.report.figures.scoring import (
    plot_ci_against_similarity,
    plot_shared_wording,
    plot_systems,
)
from paraguard_utils.report.figures.style import publish_figure, show_figure

__all__ = [
    "plot_both_corpora",
    "plot_ci_against_similarity",
    "plot_gate_distributions",
    "plot_paper_cohorts",
    "plot_shared_wording",
    "plot_systems",
    "publish_figure",
    "show_figure",
]
