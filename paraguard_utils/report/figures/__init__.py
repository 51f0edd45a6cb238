# ruff: noqa: F401
"""The figures, a module per notebook or kind; `publish` writes one and shows it."""

from paraguard_utils.report.figures.cohorts import plot_cohort_heat_map, plot_cohort_regression, plot_strategy_flips
from paraguard_utils.report.figures.corpus import plot_gate_distributions, plot_risk_distributions
from paraguard_utils.report.figures.guards import (
    plot_before_after,
    plot_both_corpora,
    plot_guard_sweep,
    plot_remedy_map,
    plot_veto_curves,
)
from paraguard_utils.report.figures.scoring import (
    plot_against_floors,
    plot_by_source,
    plot_ci_against_similarity,
    plot_ci_correlates,
    plot_cr_curve,
    plot_shared_wording,
    plot_targets,
    plot_variance_parts,
    plot_variogram,
)
from paraguard_utils.report.figures.sensitivity import (
    plot_against_k,
    plot_settings,
    plot_surrogate_levels,
    plot_weight_simplex,
)
from paraguard_utils.report.figures.style import publish_figure
from paraguard_utils.report.figures.validity import plot_known_truth, plot_noise_response
