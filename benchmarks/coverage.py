"""Do the intervals cover what is true? Worlds with known truth, scored by the package's own estimators.

`python benchmarks/coverage.py [WORLDS]` writes `benchmarks/coverage.csv`: for each kind of world the share of worlds
whose 95 % interval covers zero, the mean estimate and its standard deviation. A world has 200 clusters of six prompts,
with a place in a space of meanings, a log-perplexity and a length that clusters share in part; its rule of refusing is

- independent: every prompt with the same probability;
- clusters: at random inside clusters whose rates differ;
- perplexity: every prompt above a perplexity, so that refusals are separable by wording.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_utils import nulls, signals, stores
from paraguard_utils.metrics import Clusters

CLUSTERS, SIZE, DIMENSIONS = 200, 6, 12
RULES = ("independent", "clusters", "perplexity")


def world(rule, seed):
    """Draw one world.

    Returns
    -------
    ranked, own : DataFrame
        Pairs with the k nearest accepted prompts, and pairs inside clusters: cluster_id, centre, centre_label,
        same_cluster, similarity, length, contrast, score.
    """
    rng = np.random.default_rng([seed, RULES.index(rule)])
    cluster = np.repeat(np.arange(CLUSTERS), SIZE)
    n = len(cluster)

    def shared(cluster_spread, own_spread, *shape):
        return cluster_spread * rng.normal(size=(CLUSTERS, *shape))[cluster] + own_spread * rng.normal(size=(n, *shape))

    place = shared(1, 0.7, DIMENSIONS)
    place /= np.linalg.norm(place, axis=1, keepdims=True)
    perplexity, length, noise = shared(0.5, 0.4), shared(0.3, 0.2), rng.random(n)
    rejected = {
        "independent": lambda: rng.random(n) < 0.2,
        "clusters": lambda: rng.random(n) < rng.beta(0.5, 2, CLUSTERS)[cluster],
        "perplexity": lambda: perplexity > np.quantile(perplexity, 0.8),
    }[rule]()
    cosines = place @ place.T
    np.fill_diagonal(cosines, -2)
    accepted = np.flatnonzero(~rejected)
    near = accepted[np.argpartition(-cosines[:, accepted], signals.K, axis=1)[:, : signals.K]]
    mates = np.arange(n).reshape(CLUSTERS, SIZE)[cluster]
    kept = (mates != np.arange(n)[:, None]) & ~rejected[mates]
    found = []
    for a, b in (
        (np.repeat(np.arange(n), signals.K), near.ravel()),
        (np.repeat(np.arange(n), SIZE)[kept.ravel()], mates[kept]),
    ):
        contrast = np.abs(perplexity[a] - perplexity[b])
        frame = pd.DataFrame({"cluster_id": cluster[a], "centre": a, "same_cluster": cluster[a] == cluster[b]})
        frame["centre_label"] = np.where(rejected[a], "reject", "accept")
        frame["similarity"], frame["contrast"] = cosines[a, b], contrast
        frame["length"] = np.abs(length[a] - length[b])
        frame["score"] = 0.2 * (1 - cosines[a, b]) + 0.1 * np.abs(noise[a] - noise[b]) + 0.5 * (1 - np.exp(-contrast))
        found.append(frame)
    return tuple(found)


def measure(task):
    """Estimate one world's excess in three ways; return rows (rule, estimator, value, low, high)."""
    rule, seed = task
    clusters = Clusters(range(CLUSTERS), resamples=1000, seed=seed)
    ranked, own = world(rule, seed)
    found = {
        "primary": nulls.within(clusters, own, own["score"]),
        "matched": nulls.standardised(clusters, ranked, nulls.strata(ranked), ranked["score"].to_numpy())[1],
        "at equal perplexity contrast": nulls.within(clusters, own, own["score"], own["contrast"]),
    }
    return [(rule, name, *estimate) for name, estimate in found.items()]


def main():
    """Run all worlds on two processes and write the table."""
    worlds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    tasks = [(rule, seed) for rule in RULES for seed in range(worlds)]
    with ProcessPoolExecutor(2) as pool:
        rows = [row for rows in pool.map(measure, tasks, chunksize=20) for row in rows]
    frame = pd.DataFrame(rows, columns=["rule", "estimator", "value", "low", "high"])
    frame["covers"] = (frame["low"] <= 0) & (frame["high"] >= 0)
    table = frame.groupby(["rule", "estimator"], sort=False).agg(
        worlds=("value", "size"), covers_zero=("covers", "mean"), mean=("value", "mean"), deviation=("value", "std")
    )
    stores.write(Path(__file__).with_suffix(".csv"), table.reset_index(), "tables", {"worlds": worlds})
    print(table.round(4).to_string())


if __name__ == "__main__":
    main()
