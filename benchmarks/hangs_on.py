"""Do the parts of a decision have the intervals that they claim, and does the test of
the gap hold its level? Worlds with known truth.

`python benchmarks/hangs_on.py [WORLDS] [KIND ...]` writes `benchmarks/hangs_on.csv`; the
rows of other kinds stay. For each kind of world and estimate: the truth, by quadrature;
the mean; the share of worlds in which the estimate is flagged as too few; and over the
others the mean width of the 95 % interval, and the share of worlds that it covers. For
the gap, the share of worlds with p of at most 0.05.

- gap: 200 requests in six phrasings, refused where a normal variable is large that
  phrasings of a request share in part (0.4); strategies shift it. With `gap` 0 nothing
  else is shared, else near-copies share 0.2 or 0.4 more. FRR 0.02 to 0.95.
- chance: the same with 8 answers drawn to each prompt, whose probability is the normal
  distribution function of what is shared, at several steepnesses: at 0.3 chance decides
  nearly all. Meaning, wording and chance of near-copies and of free rewordings; same3
  and other3.
- harm: requests and twins, whose variable has parts by topic and by topic and harm, and
  a shift for harm.

`PROCESSES` in the environment says how many cells are measured at once; by default two.
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
from paraguard_lab.core import pair_shares
from paraguard_utils import stores
from paraguard_utils.analysis.wording import NEAR_COPY_STRATEGIES, find_cluster_pairs
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.wording import Phrasings
from paraguard_utils.schemas import STRATEGIES

CLUSTERS, RESAMPLES, ANSWERS = 200, 1000, 8
NAMES = np.array(["seed", *STRATEGIES])
SHIFTS = {"softening": -0.3, "hardening": 0.4, "register": 0.2}
SHIFT = np.array([SHIFTS.get(name, 0.0) for name in NAMES])
NEAR = np.isin(NAMES, NEAR_COPY_STRATEGIES)
MEANING, WORDS = 0.4, 0.2
PROCESSES = int(os.environ.get("PROCESSES", "2"))

GAPS = [
    (rate, gap)
    for rate in (0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95)
    for gap in (0.0, 0.2, 0.4)
]
CHANCES = [
    (0.05, 0.3),
    (0.05, 2),
    *[(rate, steepness) for rate in (0.1, 0.3, 0.6) for steepness in (1, 2, 4)],
]
HARMS = [
    (0.02, 0.0),
    (0.05, 0.0),
    *[(rate, shift) for rate in (0.1, 0.5) for shift in (0.0, 0.5, 1.5)],
]


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


def draw_tendency(rng, n, gap):
    """Draw the normal variables of n requests, shape (n, 6)."""
    topic = np.sqrt(MEANING) * rng.normal(size=(n, 1))
    near = NEAR * np.sqrt(gap) * rng.normal(size=(n, 1))
    left = np.where(NEAR, np.sqrt(1 - MEANING - gap), np.sqrt(1 - MEANING))
    return topic + near + left * rng.normal(size=(n, 6))


def summarize(kind, rule, found, truth):
    """Return a row for each estimate: found has (value, low, high, flagged) by name."""
    rows = []
    for name, values in found.items():
        columns = ["value", "low", "high", "flagged"]
        frame = pd.DataFrame(values, columns=columns).dropna()
        judged = frame[~frame["flagged"]]
        true = truth[name]
        covered = (judged["low"] <= true) & (true <= judged["high"])
        rows.append(
            {
                "kind": kind,
                "rule": rule,
                "estimate": name,
                "worlds": len(frame),
                "flagged": frame["flagged"].mean(),
                "truth": true,
                "mean": frame["value"].mean(),
                "width": (judged["high"] - judged["low"]).mean(),
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


def refuse_all(limits, correlations):
    """Return the probability that all of some normal variables lie below limits."""
    return multivariate_normal.cdf(
        limits, np.zeros(len(limits)), correlations, abseps=1e-6, releps=1e-6
    )


def true_again(rate, steepness):
    """Return same3 and other3, by quadrature over four answers at a time."""
    slope = steepness**2 / (1 + steepness**2)
    limits = np.sqrt(slope) * (norm.ppf(rate) + SHIFT)
    refused = norm.cdf(limits).sum()
    correlations = slope * (MEANING + WORDS * np.outer(NEAR, NEAR))
    np.fill_diagonal(correlations, 1)
    same = np.full((4, 4), slope)
    np.fill_diagonal(same, 1)
    same_refused = sum(refuse_all([limit] * 4, same) for limit in limits)
    other_refused = 0
    for four in itertools.combinations(range(6), 4):
        # Each of the four is the first; it has 10 sets of three others
        all_four = refuse_all(limits[list(four)], correlations[np.ix_(four, four)])
        other_refused += 4 * all_four / 10
    truth = {"same3": 1 - same_refused / refused, "other3": 1 - other_refused / refused}
    truth["other3_minus_same3"] = truth["other3"] - truth["same3"]
    return truth


def chance_cell(task):
    """Measure the worlds of one cell of `CHANCES`."""
    (rate, steepness), worlds = task
    rng = np.random.default_rng([round(100 * rate), round(100 * steepness)])
    truth = true_parts(rate, steepness) | true_again(rate, steepness)
    corpus = make_corpus(CLUSTERS)
    clusters = ClusterBootstrap(corpus["cluster_id"], RESAMPLES)
    pairs = find_cluster_pairs(corpus)
    chosen = {"near": pairs.select(pairs.near), "free": pairs.select(pairs.free)}
    found = {name: [] for name in truth}
    for _ in range(worlds):
        z = draw_tendency(rng, CLUSTERS, WORDS)
        p = norm.cdf(steepness * (z + norm.ppf(rate) + SHIFT)).ravel()
        drawn = corpus.assign(size=ANSWERS, sum=rng.binomial(ANSWERS, p))
        few = drawn_pairs.too_few_mostly_refused(drawn)
        for name, one in drawn_pairs.estimate_asked_again(drawn, clusters).items():
            found[name].append((*one, few and name == "other3"))
        phrasings, same = drawn_pairs.share_draws(drawn)
        for kind, some in chosen.items():
            few = drawn_pairs.too_few_drawn(drawn, some)
            parts = pair_shares.PairShares(clusters, phrasings, some, same).estimate()
            for name in ("meaning", "wording", "chance"):
                found[f"{name}, {kind}"].append((*parts[name], few))
    return summarize("chance", f"FRR {rate}, steepness {steepness}", found, truth)


def true_harm(rate, shift):
    """Return the parts of `harm.HARM_PARTS`, by quadrature."""
    sides = [norm.ppf(rate) + SHIFT, norm.ppf(rate) + SHIFT + shift]
    means = [norm.cdf(limits).mean() for limits in sides]
    of_topic_and_harm = np.array([[1, 0.4], [0.4, 1]])
    of_topic = np.array([[1, 0.2], [0.2, 1]])
    same_side = []
    for limits in sides:
        for two in itertools.combinations(limits, 2):
            same_side.append(refuse_all(two, of_topic_and_harm))
    other_side = [refuse_all(two, of_topic) for two in itertools.product(*sides)]
    c11, c10 = np.mean(same_side), np.mean(other_side)
    c01, c00 = np.mean(np.square(means)), means[0] * means[1]
    variance = np.mean(means) - (c01 + c00) / 2
    parts = {
        "harm": (c01 - c00) / 2 / variance,
        "topic": (c10 - c00) / variance,
        "topic_by_harm": (c11 - c10 - c01 + c00) / variance,
    }
    parts["rest"] = 1 - sum(parts.values())
    return parts


def draw_harm(rng, rate, shift):
    """Count the refusals of requests and of their twins, in six phrasings each."""
    topic = np.sqrt(0.2) * rng.normal(size=(CLUSTERS, 1))
    sides = []
    for harmful in (0, 1):
        own = np.sqrt(0.2) * rng.normal(size=(CLUSTERS, 1))
        z = topic + own + np.sqrt(0.6) * rng.normal(size=(CLUSTERS, 6))
        refused = z + norm.ppf(rate) + SHIFT + harmful * shift > 0
        sides.append(refused.sum(axis=1))
    return sides


def harm_cell(task):
    """Measure the worlds of one cell of `HARMS`."""
    (rate, shift), worlds = task
    rng = np.random.default_rng([round(100 * rate), round(100 * shift)])
    clusters = ClusterBootstrap(range(CLUSTERS), RESAMPLES)
    six = np.full(CLUSTERS, 6)
    found = {name: [] for name in harm.HARM_PARTS}
    for _ in range(worlds):
        refused, refused_twins = draw_harm(rng, rate, shift)
        sums = harm.harm_shares(six, refused, six, refused_twins)
        parts, few = harm.estimate_harm(clusters, sums)
        for name, part in parts.items():
            found[name].append((*part, few))
    truth = true_harm(rate, shift)
    return summarize("harm", f"FRR {rate}, harm {shift}", found, truth)


def main() -> None:
    """Measure all cells, each of which replaces its rows in the table."""
    worlds = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    cells = {
        "gap": (gap_cell, GAPS),
        "chance": (chance_cell, CHANCES),
        "harm": (harm_cell, HARMS),
    }
    kinds = sys.argv[2:] or list(cells)
    path = Path(__file__).with_suffix(".csv")
    rows = (
        pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["kind", "rule"])
    )
    with ProcessPoolExecutor(PROCESSES) as pool:
        for kind in kinds:
            cell, tasks = cells[kind]
            for found in pool.map(cell, [(task, worlds) for task in tasks]):
                measured = pd.DataFrame(found)
                again = (rows["kind"] == kind) & rows["rule"].isin(measured["rule"])
                rows = pd.concat([rows[~again], measured], ignore_index=True)
                stores.write_file(path, rows, "tables", {"worlds": worlds})
                print(measured.round(3).to_string(), flush=True)


if __name__ == "__main__":
    main()
