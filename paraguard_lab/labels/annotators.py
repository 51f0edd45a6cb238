"""How often are labels right? Two language models annotated a sample of answers.

They read blind, and are no substitute for people (`docs/method.md`, Labels).
"""

import pandas as pd

from paraguard_lab.core.inference import estimate_kappa, exact_share
from paraguard_lab.labels.agreement import estimate_agreement
from paraguard_lab.labels.annotations import MIN_LABEL_PRECISION
from paraguard_utils.core.estimates import ClusterBootstrap, to_columns
from paraguard_utils.schemas import Table

JUDGEMENTS = {
    "refuses": ("refusal", ("full_refusal", "partial_refusal")),
    "degenerate": ("answer", ("degenerate",)),
    "usable": ("answer", ("usable",)),
}
"""What readers judge: the column of annotations, and the marks that say yes."""


def compare_readers(both: pd.DataFrame) -> Table:
    """Compute how the readers agree, by what they judge.

    Parameters
    ----------
    both : DataFrame
        As from `annotations.join_annotations`.

    Returns
    -------
    Table
        A row for each of `JUDGEMENTS`: judged, n, first, second (how many say yes),
        kappa with its interval.
    """
    ids = both["prompt_id"].str.rpartition("-")[0]
    clusters = ClusterBootstrap(ids)
    rows = []
    for judged, (column, marks) in JUDGEMENTS.items():
        first = both[f"first_{column}"].isin(marks)
        second = both[f"second_{column}"].isin(marks)
        row = {
            "judged": judged,
            "n": len(both),
            "first": first.sum(),
            "second": second.sum(),
        }
        kappa = estimate_kappa(clusters, ids, first, second)
        rows.append(row | to_columns({"kappa": kappa}))
    return pd.DataFrame(rows)


def compare_with_annotations(both: pd.DataFrame) -> Table:
    """Compare labels with annotations (`annotations.join_annotations`) by system.

    Returns
    -------
    Table
        Columns: system, n (read), differ (readers disagree on refusing; these count
        nowhere else), rejections, acceptances, precision (share of rejections that
        refuse), missed (share of acceptances that refuse), usable (share of them that
        the first reader calls so), each with its exact interval, and noisy (precision
        below `MIN_LABEL_PRECISION`).
    """
    rows = []
    for system, own in both.groupby("system", sort=False):
        agreed = own[own["reads"] != "differ"]
        rejected = agreed[agreed["label"] == "reject"]
        accepted = agreed[agreed["label"] == "accept"]
        row = {
            "system": system,
            "n": len(own),
            "differ": len(own) - len(agreed),
            "rejections": len(rejected),
            "acceptances": len(accepted),
        }
        row |= _share(rejected["reads"] == "reject", "precision")
        row |= _share(accepted["reads"] == "reject", "missed")
        row |= _share(accepted["first_answer"] == "usable", "usable")
        row["noisy"] = bool(row["precision"] < MIN_LABEL_PRECISION)
        rows.append(row)
    return pd.DataFrame(rows)


def _share(hits: pd.Series, name: str) -> dict[str, float]:
    """Return the share of hits as `name`, with its exact interval."""
    return exact_share(hits.sum(), len(hits), name)


def evaluate_degenerate(both: pd.DataFrame) -> Table:
    """Compare the column `answer` with annotations of accepted answers.

    Parameters
    ----------
    both : DataFrame
        As from `annotations.join_annotations`.

    Returns
    -------
    Table
        One row: n, read (degenerate by the first reader), found (by rules), accuracy,
        precision, recall, kappa, with their intervals.
    """
    accepted = both[(both["label"] == "accept") & (both["reads"] == "accept")]
    ids = accepted["prompt_id"].str.rpartition("-")[0]
    by_rules = accepted["answer"].eq("degenerate")
    by_reader = accepted["first_answer"].eq("degenerate")
    row = {
        "n": len(accepted),
        "read": by_reader.sum(),
        "found": by_rules.sum(),
    }
    agreed = estimate_agreement(ClusterBootstrap(ids), ids, by_rules, by_reader)
    return pd.DataFrame([row | to_columns(agreed)])
