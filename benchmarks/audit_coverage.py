"""Do the intervals of an audit cover what is true? Simulated logs with known truth.

`python benchmarks/audit_coverage.py [LOGS]` writes `benchmarks/audit_coverage.csv`. A
log has 50 to 2,000 clusters of harmless requests and half as many of harmful ones, of
two to eight wordings; the probability of a refusal varies over clusters by a beta
distribution, which fixes the refusal rate and DR. For each estimate of the audit: how
often it was shown with an interval, in how many logs it was flagged instead, and the
share of intervals that hold the truth.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes share two cores

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache

import numpy as np
import pandas as pd
from scipy.special import comb

from paraguard_tools import Decisions, audit
from paraguard_utils import paths, stores

SIZES = np.arange(2, 9)
HARMFUL = 0.7
"""Refusal rate of harmful requests."""

RATES, RATIOS, CLUSTERS = (
    (0.05, 0.2, 0.5),
    (0.2, 0.5, 0.8),
    (50, 100, 200, 500, 1000, 2000),
)
MANY = 400_000
"""Clusters that stand for the truth where there is no formula."""


def clusters(rng, number, rate, ratio):
    """Draw wordings and refusals of clusters: the intra-cluster correlation of a
    decision is 1 - ratio.
    """
    strength = ratio / (1 - ratio)
    n = rng.choice(SIZES, number)
    return n, rng.binomial(n, rng.beta(rate * strength, (1 - rate) * strength, number))


def odds(n, r, tries):
    """Return the share of refusals that are answered within some tries, in the clusters
    drawn.
    """
    m, a = n - 1, n - r
    tried = np.minimum(tries, m)
    return float((r * (1 - comb(m - a, tried) / comb(m, tried))).sum() / r.sum())


@lru_cache
def truth(rate, ratio):
    """Return what the estimates are of."""
    rng = np.random.default_rng(0)
    (n, r), (m, s) = (
        clusters(rng, MANY, rate, ratio),
        clusters(rng, MANY, HARMFUL, ratio),
    )
    found = {"frr": rate, "dr": ratio, "harmful_refused": HARMFUL}
    found |= {"refused_once": (r > 0).mean(), "refused_always": (r == n).mean()}
    found |= {
        "rephrased1": odds(n, r, 1),
        "rephrased3": odds(n, r, 3),
        "rephrased3_harmful": odds(m, s, 3),
    }
    return found | {
        "rephrased3_difference": found["rephrased3"] - found["rephrased3_harmful"]
    }


def one(number):
    """Audit a log; return a row for each estimate."""
    rng = np.random.default_rng([1, number])
    rate, ratio, size = rng.choice(RATES), rng.choice(RATIOS), int(rng.choice(CLUSTERS))
    parts = []
    for harmful, share, count in ((False, rate, size), (True, HARMFUL, size // 2)):
        n, r = clusters(rng, count, share, ratio)
        cluster = np.repeat([f"{harmful}{i}" for i in range(count)], n)
        place = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
        label = np.where(place < np.repeat(r, n), "reject", "accept")
        parts.append(
            pd.DataFrame({"cluster": cluster, "label": label, "harmful": harmful})
        )
    (row,) = audit(
        Decisions.from_frame(pd.concat(parts)), n_resamples=1000
    ).table.to_dict("records")
    known = truth(rate, ratio)
    return [
        {
            "estimate": name,
            "clusters": size,
            "shown": bool(np.isfinite(row[f"{name}_low"])),
        }
        | {"covers": bool(row[f"{name}_low"] <= value <= row[f"{name}_high"])}
        for name, value in known.items()
    ]


def main(logs=1000):
    """Audit the logs and write the table."""
    with ProcessPoolExecutor(2) as pool:
        rows = [
            row for rows in pool.map(one, range(logs), chunksize=10) for row in rows
        ]
    frame = pd.DataFrame(rows)
    shown = frame[frame["shown"]]
    table = frame.groupby("estimate", sort=False)["shown"].agg(
        shown="sum", flagged=lambda own: int((~own).sum())
    )
    table["coverage"] = shown.groupby("estimate")["covers"].mean()
    for size in CLUSTERS:
        table[f"coverage_{size}"] = (
            shown[shown["clusters"] == size].groupby("estimate")["covers"].mean()
        )
    table = table.reset_index().round(3)
    stores.write_file(
        paths.BENCHMARKS_FOLDER / "audit_coverage.csv", table, "tables", {"logs": logs}
    )
    print(table.to_string(index=False))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
