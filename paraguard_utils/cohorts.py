"""Cohorts of rejections by surface risk and neighbour similarity (`paper.md`, Table 2 and Fig. 5)."""

import pandas as pd

from paraguard_utils.metrics import FEW, TAUS, columns

BINS = ("low", "middle", "high")


def thirds(values):
    """Cut values into three bins of about equal size.

    Parameters
    ----------
    values : Series of float

    Returns
    -------
    Series of str
        A member of `BINS` each; equal values always share a bin, so a bin may be empty.
    """
    ranks = values.rank(method="min", pct=True)
    return pd.cut(ranks, [0, 1 / 3, 2 / 3, 1], labels=list(BINS)).astype(str)


def members(corpus, scores):
    """Return a target's rejections with their risk and both bins.

    Parameters
    ----------
    corpus : DataFrame
        Columns prompt_id, risk.
    scores : DataFrame
        One target's scores.

    Returns
    -------
    DataFrame
        The scored rejections with risk, risk_bin and similarity_bin. Bins are thirds of this target's rejections.
    """
    rejected = scores[(scores["label"] == "reject") & scores["ci"].notna()]
    rejected = rejected.merge(corpus[["prompt_id", "risk"]], on="prompt_id")
    return rejected.assign(risk_bin=thirds(rejected["risk"]), similarity_bin=thirds(rejected["mean_similarity"]))


def table(target, rejected, clusters):
    """Tabulate CI and CR by cohort: one target's part of Table 2.

    Parameters
    ----------
    target : str
    rejected : DataFrame
        From `members`.
    clusters : metrics.Clusters

    Returns
    -------
    DataFrame
        A row per reading, risk bin and similarity bin (`all` = margin): bounds, n, n_clusters, ci, cr60, cr75 with
        intervals, few. NaN in empty cells.
    """
    rows = []
    for reading, column in (("relative", "ci"), ("clipped", "ci_clipped")):
        for risk_bin in (*BINS, "all"):
            for similarity_bin in (*BINS, "all"):
                cell = rejected
                if risk_bin != "all":
                    cell = cell[cell["risk_bin"] == risk_bin]
                if similarity_bin != "all":
                    cell = cell[cell["similarity_bin"] == similarity_bin]
                rows.append(
                    {
                        "target": target,
                        "reading": reading,
                        "risk": risk_bin,
                        "similarity": similarity_bin,
                        "risk_from": cell["risk"].min(),
                        "risk_to": cell["risk"].max(),
                        "similarity_from": cell["mean_similarity"].min(),
                        "similarity_to": cell["mean_similarity"].max(),
                        "n": len(cell),
                        "n_clusters": cell["cluster_id"].nunique(),
                        **_estimates(cell, column, clusters),
                        "few": len(cell) < FEW,
                        "note": "" if len(cell) else "no rejection in this cohort",
                    }
                )
    return pd.DataFrame(rows)


def _estimates(cell, column, clusters):
    estimates = {"ci": clusters.mean(cell["cluster_id"], cell[column])}
    for tau in TAUS:
        estimates[f"cr{round(tau * 100)}"] = clusters.share(cell["cluster_id"], cell[column] >= tau)
    return columns(estimates)


def verdicts(rows):
    """Say in words how one target's CR@0.60 compares between the cohorts the paper singles out.

    Parameters
    ----------
    rows : DataFrame
        One target's part of Table 2.

    Returns
    -------
    list of str
    """
    sentences = []
    for reading, table in rows.groupby("reading", sort=False):
        cells = table.set_index(["risk", "similarity"])
        plain, charged = cells.loc[("low", "high")], cells.loc[("high", "all")]
        sentences.append(
            f"{reading}: CR@0.60 is {_shown(plain)} in the low-risk, high-similarity cohort (paper: about 60 %) and "
            f"{_shown(charged)} in the high-risk cohort (paper: 27.8 %)."
        )
    return sentences


def _shown(cell):
    if not cell["n"]:
        return "undefined (no rejection)"
    return f"{cell['cr60']:.3f} [{cell['cr60_low']:.3f}, {cell['cr60_high']:.3f}] (n = {cell['n']})"
