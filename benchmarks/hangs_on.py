"""Do the parts of a decision have the intervals that they claim, and does the test of
the gap hold its level? Worlds with known truth.

`python benchmarks/hangs_on.py [WORLDS] [KIND ...]` writes `benchmarks/hangs_on.csv`; the
rows of other kinds stay. For each kind of world and estimate the truth, the mean and the share of worlds whose 95 % interval
covers it; for the gap the share of worlds with p of at most 0.05.

- gap: 200 requests in six phrasings, refused where a normal variable is large that
  phrasings of a request share in part (0.4); strategies shift it. With `gap` 0 nothing
  else is shared, else near-copies share 0.2 or 0.4 more. FRR 0.02 to 0.95.
- chance: the same with 8 answers drawn to each prompt, whose probability is the normal
  distribution function of what is shared, at three steepnesses. Meaning, wording and
  chance of near-copies and of free rewordings; same3 and other3.
- harm: requests and twins, whose variable has parts by topic and by topic and harm, and
  a shift for harm. The truth of a part is its mean over 4,000 requests.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes share two cores

import itertools
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import multivariate_normal, norm

from paraguard_lab.analysis import drawn_pairs, harm
from paraguard_lab.core import draws, pair_shares
from paraguard_utils import stores
from paraguard_utils.analysis.system import System
from paraguard_utils.analysis.wording import NEAR_COPY_STRATEGIES, find_cluster_pairs
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.wording import Phrasings
from paraguard_utils.schemas import STRATEGIES

CLUSTERS, RESAMPLES, ANSWERS, LARGE = 200, 1000, 8, 4000
NAMES = np.array(["seed", *STRATEGIES])
SHIFTS = {"softening": -0.3, "hardening": 0.4, "register": 0.2}
SHIFT = np.array([SHIFTS.get(name, 0.0) for name in NAMES])
NEAR = np.isin(NAMES, NEAR_COPY_STRATEGIES)
MEANING, WORDS = 0.4, 0.2

GAPS = [
    (rate, gap)
    for rate in (0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95)
    for gap in (0.0, 0.2, 0.4)
]
CHANCES = [(rate, steepness) for rate in (0.1, 0.3, 0.6) for steepness in (1, 2, 4)]
HARMS = [(rate, shift) for rate in (0.1, 0.5) for shift in (0.0, 0.5, 1.5)]


def make_corpus(n, end=""):
    """Return n requests in six phrasings."""
    ids = [f"c{i:04d}{end}" for i in range(n)]
    return pd.DataFrame(
        {
            "prompt_id": [f"{name}-{i}" for name in ids for i in range(6)],
            "cluster_id": np.repeat(ids, 6),
            "strategy": np.tile(NAMES, n),
            "text": "w",
        }
    )


def make_system(n, resamples):
    """Return a system on n requests; its own decisions are not used."""
    corpus = make_corpus(n)
    labels = pd.DataFrame({"label": ["accept"] * len(corpus)})
    return System.of(
        "t", corpus, labels, ClusterBootstrap(corpus["cluster_id"], resamples)
    )


def draw_tendency(rng, n, gap):
    """Draw the normal variables of n requests, shape (n, 6)."""
    topic = np.sqrt(MEANING) * rng.normal(size=(n, 1))
    near = NEAR * np.sqrt(gap) * rng.normal(size=(n, 1))
    left = np.where(NEAR, np.sqrt(1 - MEANING - gap), np.sqrt(1 - MEANING))
    return topic + near + left * rng.normal(size=(n, 6))


def summarize(kind, rule, found, truth):
    """Return a row for each estimate: found has (value, low, high) by its name."""
    rows = []
    for name, values in found.items():
        frame = pd.DataFrame(values, columns=["value", "low", "high"]).dropna()
        true = truth[name]
        covered = (frame["low"] <= true) & (true <= frame["high"])
        rows.append(
            {
                "kind": kind,
                "rule": rule,
                "estimate": name,
                "worlds": len(frame),
                "truth": true,
                "mean": frame["value"].mean(),
                "covered": covered.mean(),
            }
        )
    return rows


def gap_cell(task):
    """Return how often the test of the gap finds one."""
    (rate, gap), worlds = task
    corpus = make_corpus(CLUSTERS)
    clusters = ClusterBootstrap(corpus["cluster_id"], 2)
    pairs = find_cluster_pairs(corpus)
    sides = pairs.select(pairs.near), pairs.select(pairs.free)
    ids = corpus["cluster_id"].to_numpy()
    style = corpus["strategy"].to_numpy().astype(str)
    rng = np.random.default_rng([round(100 * rate), round(100 * gap)])
    p = []
    n_mixed = []
    for _ in range(worlds):
        z = draw_tendency(rng, CLUSTERS, gap) + norm.ppf(rate) + SHIFT
        refused = (z > 0).astype(float).ravel()
        decided = disagreement.count_decisions(refused, ids)
        n_mixed.append(disagreement.is_mixed(decided).sum())
        phrasings = Phrasings(ids, refused, style)
        p.append(pair_shares.gap_p(clusters, phrasings, *sides, draws=199)[1])
    judged = np.array(n_mixed) >= 10
    found = np.array(p)[judged] <= 0.05
    return [
        {
            "kind": "gap",
            "rule": f"FRR {rate}, gap {gap}",
            "estimate": "p at most 0.05",
            "worlds": int(judged.sum()),
            "mixed": float(np.mean(n_mixed)),
            "mean": found.mean() if len(found) else np.nan,
        }
    ]


def differ(rates, correlation):
    """Return the probability that two normal variables lie on two sides of limits."""
    both = multivariate_normal(
        [0, 0], [[1, correlation], [correlation, 1]], allow_singular=True
    ).cdf(norm.ppf(rates))
    return rates[0] + rates[1] - 2 * both


def true_parts(rate, steepness):
    """Return meaning, wording and chance of both kinds of pairs, by quadrature.

    An answer refuses where a normal variable is large that two answers to one prompt
    share in part, and two phrasings less.
    """
    slope = steepness**2 / (1 + steepness**2)
    rates = norm.cdf(np.sqrt(slope) * (norm.ppf(rate) + SHIFT))
    truth = {}
    for kind, chosen, shared in (
        ("near", NEAR, MEANING + WORDS),
        ("free", ~NEAR, MEANING),
    ):
        pairs = list(itertools.combinations(rates[chosen], 2))
        unrelated = sum(a + b - 2 * a * b for a, b in pairs)
        pair = sum(differ(both, slope * shared) for both in pairs) / unrelated
        same = sum(differ((a, a), slope) + differ((b, b), slope) for a, b in pairs)
        chance = same / 2 / unrelated
        truth[f"meaning, {kind}"] = 1 - pair
        truth[f"wording, {kind}"] = pair - chance
        truth[f"chance, {kind}"] = chance
    return truth


def estimate_chance(system, samples):
    """Return the estimates of one world by name."""
    found = {}
    for row in drawn_pairs.split_chance(system, samples, "drawn"):
        if row["pairs"] != "all":
            for part in ("meaning", "wording", "chance"):
                ends = (row[part], row[f"{part}_low"], row[f"{part}_high"])
                found[f"{part}, {row['pairs']}"] = ends
    drawn = draws.join_draws(system.prompts, samples)
    again = drawn_pairs.estimate_asked_again(drawn, system.clusters)
    return found | {name: tuple(one) for name, one in again.items()}


def chance_cell(task):
    """Measure the worlds of one cell of `CHANCES`."""
    (rate, steepness), worlds = task
    rng = np.random.default_rng([round(100 * rate), steepness])

    def draw(z, corpus):
        p = norm.cdf(steepness * (z + norm.ppf(rate) + SHIFT)).ravel()
        refused = rng.random((ANSWERS, len(p))) < p
        label = np.where(refused.ravel(), "reject", "accept")
        return pd.DataFrame(
            {"prompt_id": np.tile(corpus["prompt_id"], ANSWERS), "label": label}
        )

    truth = true_parts(rate, steepness)
    large = make_system(LARGE, 2)
    tries = []
    for _ in range(5):
        samples = draw(draw_tendency(rng, LARGE, WORDS), large.prompts)
        drawn = draws.join_draws(large.prompts, samples)
        tries.append(drawn_pairs.estimate_asked_again(drawn, large.clusters))
    for name in tries[0]:
        truth[name] = np.mean([one[name].value for one in tries])
    system = make_system(CLUSTERS, RESAMPLES)
    found = {name: [] for name in truth}
    for _ in range(worlds):
        samples = draw(draw_tendency(rng, CLUSTERS, WORDS), system.prompts)
        for name, one in estimate_chance(system, samples).items():
            found[name].append(one)
    return summarize("chance", f"FRR {rate}, steepness {steepness}", found, truth)


def draw_harm(rng, n, rate, shift):
    """Draw the decisions of n requests and of their twins."""
    topic = np.sqrt(0.2) * rng.normal(size=(n, 1))
    sides = []
    for harmful in (0, 1):
        own = np.sqrt(0.2) * rng.normal(size=(n, 1))
        z = topic + own + np.sqrt(0.6) * rng.normal(size=(n, 6))
        refused = z + norm.ppf(rate) + SHIFT + harmful * shift > 0
        sides.append(np.where(refused.ravel(), "reject", "accept"))
    return sides


def harm_cell(task):
    """Measure the worlds of one cell of `HARMS`."""
    (rate, shift), worlds = task
    rng = np.random.default_rng([round(100 * rate), round(100 * shift)])

    def measure(n, resamples):
        systems = []
        labels = draw_harm(rng, n, rate, shift)
        for end, label in zip(("", "-twin"), labels, strict=True):
            corpus = make_corpus(n, end)
            clusters = ClusterBootstrap(corpus["cluster_id"], resamples)
            labelled = pd.DataFrame({"label": label})
            systems.append(System.of("t", corpus, labelled, clusters))
        row = harm.harm_row(*systems)
        return {
            name: (row[name], row[f"{name}_low"], row[f"{name}_high"])
            for name in harm.HARM_PARTS
        }

    means = [measure(LARGE, 2) for _ in range(5)]
    truth = {name: np.mean([one[name][0] for one in means]) for name in means[0]}
    found = {name: [] for name in truth}
    for _ in range(worlds):
        for name, one in measure(CLUSTERS, RESAMPLES).items():
            found[name].append(one)
    return summarize("harm", f"FRR {rate}, harm {shift}", found, truth)


def main() -> None:
    """Measure all cells in two processes."""
    worlds = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    cells = {
        "gap": (gap_cell, GAPS),
        "chance": (chance_cell, CHANCES),
        "harm": (harm_cell, HARMS),
    }
    kinds = sys.argv[2:] or list(cells)
    path = Path(__file__).with_suffix(".csv")
    rows = []
    if path.exists():
        known = pd.read_csv(path)
        rows = known[~known["kind"].isin(kinds)].to_dict("records")
    with ProcessPoolExecutor(2) as pool:
        for kind in kinds:
            cell, tasks = cells[kind]
            for found in pool.map(cell, [(task, worlds) for task in tasks]):
                rows += found
                print(pd.DataFrame(found).round(3).to_string(), flush=True)
    stores.write_file(path, pd.DataFrame(rows), "tables", {"worlds": worlds})


if __name__ == "__main__":
    main()
