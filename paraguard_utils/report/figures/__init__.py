"""The figures, a module per notebook or kind; `publish` writes one and shows it."""

from paraguard_utils.report.figures.cohorts import cohort_heat_map, cohort_regression, strategy_flips
from paraguard_utils.report.figures.corpus import gate_distributions, risk_distributions
from paraguard_utils.report.figures.guards import before_after, both_corpora, guard_sweep, veto_curves
from paraguard_utils.report.figures.remedies import remedy_map
from paraguard_utils.report.figures.scoring import (
    against_floors,
    by_source,
    ci_against_similarity,
    ci_correlates,
    cr_curve,
    target_overview,
    variance_parts,
    variogram,
)
from paraguard_utils.report.figures.sensitivity import against_k, levels_overview, settings_overview, weight_simplex
from paraguard_utils.report.figures.style import publish
from paraguard_utils.report.figures.validity import known_truth, noise
from paraguard_utils.report.figures.wording import shared_wording

__all__ = [
    "against_floors",
    "against_k",
    "before_after",
    "both_corpora",
    "by_source",
    "ci_against_similarity",
    "ci_correlates",
    "cohort_heat_map",
    "cohort_regression",
    "cr_curve",
    "gate_distributions",
    "guard_sweep",
    "known_truth",
    "levels_overview",
    "noise",
    "publish",
    "remedy_map",
    "risk_distributions",
    "settings_overview",
    "shared_wording",
    "strategy_flips",
    "target_overview",
    "variance_parts",
    "variogram",
    "veto_curves",
    "weight_simplex",
]
