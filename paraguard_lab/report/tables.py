"""Tables that only notebooks beyond the paper show."""

from collections.abc import Sequence

import pandas as pd

from paraguard_utils.core.estimates import MIN_MIXED
from paraguard_utils.report.tables import COLUMN_HEADINGS, format_estimates
from paraguard_utils.schemas import Table

COLUMN_HEADINGS |= {
    "answered_once": "twins answered once or more",
    "auc_held_out": "AUC, left out",
    "auc_paper": "AUC, paper's weights",
    "ci_null": "CI, permuted",
    "dr_change": "DR, change",
    "dr_matched": "DR, matched",
    "dr_near_identical": "DR, near-identical",
    "dr_verdict": "DR is",
    "dr_detectable": "DR, detectable",
    "excess_equal_contrast": "excess at equal contrast",
    "excess_matched": "excess over matched floor",
    "flip_near": "flipped, near-identical",
    "flip_pairs": "flipped, all pairs",
    "flip_random": "flip rate by chance",
    "floor_matched": "matched floor",
    "frr_detectable": "FRR, detectable",
    "frr_change": "FRR, change",
    "gained_one_more": "gained by one query more",
    "icc_latent": "latent correlation",
    "lost_lowered": "lost by threshold",
    "lost_one_more": "lost by one query more",
    "mean_gained": "harmless answered",
    "mean_lost": "twins lost",
    "n_benign": "harmless prompts",
    "n_clusters": "clusters",
    "n_flip": "paraphrases",
    "n_mixed": "mixed clusters",
    "n_near": "near-identical pairs",
    "n_near_flipped": "flipped",
    "n_reworded": "reworded",
    "coin_verdict": "against a coin",
    "over_single": "against one query",
    "over_verdict": "against a threshold",
    "own_requests": "requests, own threshold",
    "own_twins": "twins, own threshold",
    "p_holm": "adjusted p",
    "ppl_ratio": "perplexity ratio",
    "promised_requests": "requests, guaranteed",
    "promised_twins": "twins, guaranteed",
    "queries_each": "queries per refusal",
    "refused_always": "refused in all",
    "refused_once": "refused once or more",
    "rephrased1": "at the first",
    "rephrased3": "within three",
    "rephrased3_twins": "within three, twins",
    "too_few_twins": "too few, twins",
    "twins_change": "twins, change",
    "twins_detectable": "twins, detectable",
    "twins_verdict": "twins are",
    "xstest_rejected": "XSTest unsafe refused",
    "xstest_safe_rejected": "XSTest safe refused",
}


def pivot(
    frame: pd.DataFrame,
    keys: Sequence[str],
    estimates: Sequence[str],
    by: str = "interpretation",
) -> pd.DataFrame:
    """Format estimates and put the values of one column side by side.

    `frame` has a row for each combination of `keys` and `by`, such as the two
    interpretations of the PPL contrast. Returns the keys, then columns "ESTIMATE, VALUE
    of `by`".
    """
    keys = list(keys)
    parts = {}
    for value, rows in frame.groupby(by, sort=False):
        parts[value] = format_estimates(rows, estimates, keys).set_index(keys)
    if not parts:
        return pd.DataFrame(columns=keys)
    columns = {}
    for name in estimates:
        heading = COLUMN_HEADINGS.get(name, name)
        for value, part in parts.items():
            columns[f"{heading}, {value}"] = part[name]
    return pd.concat(columns, axis="columns").reset_index()


def too_few_for_excess(table: Table) -> pd.Series:
    """Return which rows of Table 1 have too few decisions to judge their excess.

    They have too few rejections or mixed clusters. `table` is Table 1 with its floors.
    """
    return table["too_few"] | (table["n_mixed"] < MIN_MIXED)
