"""The figures of the notebooks beyond the paper.

`paraguard_utils.report.figures` has those of notebooks 00 to 05, and `publish_figure`.
"""

from paraguard_lab.report.figures.cohorts import (
    plot_cohort_cells,
    plot_cohort_regression,
    plot_triggers,
)
from paraguard_lab.report.figures.corpus import plot_risk_distributions
from paraguard_lab.report.figures.guards import (
    plot_guard_sweep,
    plot_remedy_map,
    plot_veto_curves,
)
from paraguard_lab.report.figures.rewordings import (
    plot_rephrasing_odds,
    plot_strategy_flips,
)
from paraguard_lab.report.figures.scoring import (
    plot_against_floors,
    plot_by_source,
    plot_chance_by_kind,
    plot_ci_correlates,
    plot_cr_curve,
    plot_record_chance,
    plot_variance_parts,
)
from paraguard_lab.report.figures.validity import (
    plot_against_k,
    plot_known_truth,
    plot_noise_response,
    plot_settings,
    plot_surrogate_levels,
    plot_weight_simplex,
)

__all__ = [
    "plot_against_floors",
    "plot_against_k",
    "plot_by_source",
    "plot_chance_by_kind",
    "plot_ci_correlates",
    "plot_cohort_cells",
    "plot_cohort_regression",
    "plot_cr_curve",
    "plot_guard_sweep",
    "plot_known_truth",
    "plot_noise_response",
    "plot_record_chance",
    "plot_remedy_map",
    "plot_rephrasing_odds",
    "plot_risk_distributions",
    "plot_settings",
    "plot_strategy_flips",
    "plot_surrogate_levels",
    "plot_triggers",
    "plot_variance_parts",
    "plot_veto_curves",
    "plot_weight_simplex",
]
