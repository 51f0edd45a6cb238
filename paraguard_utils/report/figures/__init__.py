# ruff: noqa: F401
"""The figures, a module per notebook or kind; `publish` writes one and shows it."""

from paraguard_utils.report.figures.cohorts import cohort_heat_map, cohort_regression, strategy_flips
from paraguard_utils.report.figures.corpus import gate_distributions, risk_distributions
from paraguard_utils.report.figures.guards import before_after, both_corpora, guard_sweep, remedy_map, veto_curves
from paraguard_utils.report.figures.scoring import (
    against_floors,
    by_source,
    ci_against_similarity,
    ci_correlates,
    cr_curve,
    shared_wording,
    target_overview,
    variance_parts,
    variogram,
)
from paraguard_utils.report.figures.sensitivity import against_k, levels_overview, settings_overview, weight_simplex
from paraguard_utils.report.figures.style import publish
from paraguard_utils.report.figures.validity import known_truth, noise
