"""Do the intervals cover what is true? Worlds with known truth, scored by the package's
own functions.

`python benchmarks/coverage.py [WORLDS] [KIND]` writes `benchmarks/coverage.csv`: for
each kind of world and estimate the truth, the share of worlds whose 95 % interval
covers it, the mean estimate and its standard deviation, and the share of worlds in
which the interval lies above zero. KIND is `ratio`, `scores` or `instructions`; the
rows of other kinds stay.

The worlds of `ratio` know decisions only: clusters of six prompts, or of 2 to 10, with
a probit intercept each whose latent correlation is given. DR follows from it and the
refusal rate. Rows named "DR, not flagged" are over the worlds with 100 refusals and 100
acceptances or more.

The worlds of `instructions` are 200 clusters of six prompts, decided under three
wordings of each of two instructions. The probability of a refusal is 0.5 and steps up
or down: of the meaning, the prompt, the instruction, its wording, the prompt under one
instruction, and the prompt under one wording. The parts of the variance follow from the
steps.

The other worlds have 200 clusters of six prompts, with a place in a space of meanings,
a log-perplexity and a length that clusters share in part; the rule of refusing is

- independent: every prompt with the same probability;
- clusters: at random inside clusters whose rates differ;
- perplexity: every prompt above a perplexity, so that refusals are separable by
  wording;
- near-identical: whole clusters, but of two near-identical prompts in each cluster one
  is decided the other way with probability 0.2.

An excess is truly 0 under the first two rules, and so is what is left at equal
perplexity contrast under the third. The truth of the other estimates is their mean over
all worlds of a kind, and 0.2 where the rule says so. Finished worlds are kept in
`results/coverage/`: a run that is cut short goes on where it was.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes share two cores

import itertools
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm

from paraguard_lab.analysis import chance, near_identical, variance
from paraguard_lab.analysis.excess import cluster_excess
from paraguard_lab.core.disagreement import cluster_profiles
from paraguard_lab.report import findings
from paraguard_utils import paths, stores
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.analysis.system import System
from paraguard_utils.core import disagreement
from paraguard_utils.core.confusion import N_NEIGHBOURS
from paraguard_utils.core.estimates import ClusterBootstrap, to_columns

CLUSTERS, SIZE, DIMENSIONS = 200, 6, 12
RULES = ("independent", "clusters", "perplexity", "near-identical")
TAU = 0.3
"""CR is taken at a threshold that the worlds' scores reach."""

RESAMPLES = 1000
BATCH = 100


def world(rule, seed):
    """Draw one world.

    Returns
    -------
    corpus, labels, pairs : DataFrame
        As the package has them; texts share no words.
    vectors : numpy.ndarray, shape (n, DIMENSIONS)
    lengths, perplexities : numpy.ndarray, shape (n,)
    """
    rng = np.random.default_rng([seed, RULES.index(rule)])
    cluster = np.repeat(np.arange(CLUSTERS), SIZE)
    n = len(cluster)

    def shared(cluster_spread, own_spread, *shape):
        return cluster_spread * rng.normal(size=(CLUSTERS, *shape))[
            cluster
        ] + own_spread * rng.normal(size=(n, *shape))

    place = shared(1, 0.7, DIMENSIONS)
    perplexity, length, noise = shared(0.5, 0.4), shared(0.3, 0.2), rng.random(n)
    if rule == "near-identical":
        first = np.arange(0, n, SIZE)
        for values, step in (
            (place, 0.02),
            (perplexity, 0.02),
            (length, 0.02),
            (noise, 0.02),
        ):
            values[first + 1] = values[first] + step * rng.normal(
                size=values[first].shape
            )
    place /= np.linalg.norm(place, axis=1, keepdims=True)
    whole = (rng.random(CLUSTERS) < 0.2)[cluster]
    if rule == "near-identical":
        whole[first[rng.random(CLUSTERS) < 0.2] + 1] ^= True
    rejected = {
        "independent": rng.random(n) < 0.2,
        "clusters": rng.random(n) < rng.beta(0.5, 2, CLUSTERS)[cluster],
        "perplexity": perplexity > np.quantile(perplexity, 0.8),
        "near-identical": whole,
    }[rule]
    ids = np.array([f"p{i:04d}" for i in range(n)])
    label = np.where(rejected, "reject", "accept")
    text = [f"w{i}" for i in range(n)]
    corpus = pd.DataFrame(
        {"prompt_id": ids, "cluster_id": [f"c{i:03d}" for i in cluster], "text": text}
    )

    cosines = place @ place.T
    np.fill_diagonal(cosines, -2)
    accepted = np.flatnonzero(~rejected)
    near = accepted[np.argsort(-cosines[:, accepted], axis=1)[:, :N_NEIGHBOURS]]
    rank = {(a, b): i + 1 for a, row in enumerate(near) for i, b in enumerate(row)}
    mates = {
        (a, b)
        for a in range(n)
        for b in range(a - a % SIZE, a - a % SIZE + SIZE)
        if a != b and not rejected[b]
    }
    a, b = np.array(sorted({*rank, *mates})).T
    contrast = np.abs(perplexity[a] - perplexity[b])
    pairs = pd.DataFrame(
        {
            "centre_id": ids[a],
            "centre_label": label[a],
            "neighbour_id": ids[b],
            "same_cluster": cluster[a] == cluster[b],
            "rank": pd.array(
                [rank.get(pair) for pair in zip(a, b, strict=True)], dtype="Int64"
            ),
            "similarity": cosines[a, b],
            "drift": (1 - cosines[a, b]) / 2,
            "prob_shift": np.clip(np.abs(noise[a] - noise[b]), 0, 1),
            "ppl_relative": 1 - np.exp(-contrast),
            "ppl_clipped": np.minimum(1, contrast),
        }
    )
    labels = pd.DataFrame({"prompt_id": ids, "label": label})
    return corpus, labels, pairs, place, np.exp(length), np.exp(perplexity)


def measure(task):
    """Estimate one world; return rows (rule, estimate, value, low, high) and what the
    package says of it.
    """
    rule, seed = task
    corpus, labels, pairs, vectors, lengths, perplexities = world(rule, seed)
    clusters = ClusterBootstrap(corpus["cluster_id"], RESAMPLES, seed)
    system = replace(System.of(rule, corpus, labels, clusters), pairs=pairs)
    scores = confusion.score_prompts(system)
    wording = pd.DataFrame(
        {
            "cluster_id": corpus["cluster_id"],
            "length": np.log(lengths),
            "ppl": np.log(perplexities),
        }
    ).set_index(corpus["prompt_id"])
    frame = chance.add_matching_columns(pairs, wording)
    own = frame[frame["same_cluster"]]
    estimates, _ = chance.estimate_against_floors(system, frame, "relative")
    rejected = scores[(scores["label"] == "reject") & scores["ci"].notna()]
    ids = rejected["cluster_id"]
    excess = cluster_excess(own, signals.score_pairs(own))
    estimates |= {
        **confusion.estimate_rates(system),
        "ci": clusters.mean(ids, rejected["ci"]),
        "cr": clusters.share(ids, rejected["ci"] >= TAU),
        "cd": clusters.deviation(ids, rejected["ci"]),
        "excess": clusters.mean(excess.index, excess),
    }
    row = {
        "system": rule,
        "interpretation": "relative",
        "too_few": False,
        "n_mixed": len(excess),
        "n_reject": len(rejected),
    }
    row |= {"p": np.nan, **to_columns(estimates)}
    found = {
        "separable": (
            findings.judge_excess(pd.DataFrame([row])) == ["separable by wording"]
        )
    }
    if rule == "near-identical":
        together = near_identical.pair_within_clusters(corpus, vectors)
        shares = near_identical.near_identical_flips(together, [system]).iloc[0]
        estimates["flip_near"] = tuple(
            shares[["flip_near", "flip_near_low", "flip_near_high"]]
        )
        tail = near_identical.lowest_scored_pairs([system])
        rule_says = shares["n_near_flipped"]
        found |= {
            "tail_finds": len(tail) / rule_says,
            "tail_share_below": tail["share_below"].median(),
        }
    rows = [
        (rule, seed, name, *estimates[name]) for name in MEASURES if name in estimates
    ]
    return rows + [
        (rule, seed, name, float(value), np.nan, np.nan)
        for name, value in found.items()
    ]


MEASURES = {
    "frr": "FRR",
    "flip_rate": "flip rate",
    "ci": "CI",
    "cr": f"CR@{TAU}",
    "cd": "CD",
    "excess": "primary excess",
    "excess_matched": "excess over the matched floor",
    "excess_equal_contrast": "excess at equal perplexity contrast",
    "flip_near": "near-identical pairs decided differently",
}
OTHERS = {
    "separable": "the package says: separable by wording (share of worlds)",
    "tail_finds": (
        "pairs in the low-score tail, per near-identical pair decided differently"
    ),
    "tail_share_below": (
        "share of rejected-accepted pairs that score lower than the tail's median pair"
    ),
}
KNOWN = {
    **{
        (rule, name): 0.0
        for rule in ("independent", "clusters")
        for name in ("excess", "excess_matched")
    },
    **{(rule, "excess_equal_contrast"): 0.0 for rule in RULES[:3]},
    ("independent", "frr"): 0.2,
    ("perplexity", "frr"): 0.2,
    ("near-identical", "flip_rate"): 0.2,
    ("near-identical", "flip_near"): 0.2,
}
"""What is true by the rule; elsewhere the truth is the mean over all worlds."""


RATES, CORRELATIONS, NUMBERS = (0.03, 0.1, 0.3, 0.6), (0.1, 0.4, 0.8), (50, 200, 1000)
SIZES = {"6": (6, 7), "2 to 10": (2, 11)}
LEAST = 200
"""Worlds that a row is over, at least."""


def ratio_rows(cell):
    """Draw the worlds of one cell; return its rows of the table."""
    number, rate, correlation, size, worlds = cell
    spread = np.sqrt(correlation / (1 - correlation))
    location = norm.ppf(rate) * np.sqrt(1 + spread**2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    chance, weights = norm.cdf(location + spread * nodes), weights / weights.sum()
    truth = (chance * (1 - chance) @ weights) / (rate * (1 - rate))
    rng = np.random.default_rng(
        [number, round(100 * rate), round(10 * correlation), SIZES[size][0]]
    )
    found = []
    for world_number in range(worlds):
        n = rng.integers(*SIZES[size], number)
        refused = rng.binomial(n, norm.cdf(location + spread * rng.normal(size=number)))
        alike = cluster_profiles(pd.DataFrame({"n": n, "rejected": refused}))
        clusters = ClusterBootstrap(
            alike.index, seed=world_number, multiplicity=alike["times"]
        )
        value, low, high = disagreement.estimate_disagreement(
            clusters, alike.assign(cluster_id=alike.index)
        )
        too_few = disagreement.too_few_for_disagreement(
            pd.DataFrame({"n": n, "rejected": refused})
        )
        found.append((value, low <= truth <= high, low > 0, too_few))
    frame = pd.DataFrame(found, columns=["value", "covered", "above", "too_few"])
    rows = []
    for name, own in (("DR", frame), ("DR, not flagged", frame[~frame["too_few"]])):
        if len(own) >= LEAST:
            row = {
                "rule": (
                    f"{number} clusters of {size}, FRR {rate}, latent correlation"
                    f" {correlation}"
                ),
                "estimate": name,
            }
            row |= {
                "worlds": len(own),
                "mean": own["value"].mean(),
                "deviation": own["value"].std(),
                "truth": truth,
            }
            rows.append(
                row
                | {
                    "known": True,
                    "covered": own["covered"].mean(),
                    "above_zero": own["above"].mean(),
                }
            )
    return rows


STEPS = {
    "much meaning": (0.25, 0.08, 0.0, 0.02, 0.05, 0.05),
    "all parts": (0.2, 0.1, 0.08, 0.05, 0.03, 0.02),
    "instructions differ": (0.15, 0.1, 0.15, 0.08, 0.01, 0.0),
    "wordings interact": (0.2, 0.1, 0.02, 0.01, 0.03, 0.1),
}
"""Sizes of the steps: meaning, prompt, instruction, its wording, prompt with
instruction, prompt with wording.
"""


def instruction_rows(cell):
    """Draw the worlds of one row of `STEPS`; return its rows of the table."""
    name, worlds = cell
    meaning, prompt, idea, wording, own_idea, own_wording = STEPS[name]
    total = 0.25 + idea**2
    # Products of two wordings of one instruction, and of two instructions, differ by
    # these.
    truth = {
        "meaning": meaning**2,
        "request": prompt**2,
        "idea": 2 * idea**2 - wording**2 / 3,
        "wording": wording**2,
    }
    truth |= {"idea_request": own_idea**2}
    truth |= {"wording_request": total - sum(truth.values())}
    corpus = pd.DataFrame({"cluster_id": np.repeat(np.arange(CLUSTERS), SIZE)})
    fixed, n = (
        np.repeat([idea, -idea], 3) + np.tile([wording, 0, -wording], 2),
        len(corpus),
    )
    found = []
    for seed in range(worlds):
        rng = np.random.default_rng([seed, list(STEPS).index(name)])
        chances = (
            0.5
            + fixed
            + np.repeat(rng.choice([-meaning, meaning], CLUSTERS), SIZE)[:, None]
        )
        chances = (
            chances
            + rng.choice([-prompt, prompt], (n, 1))
            + rng.choice([-own_wording, own_wording], (n, 6))
        )
        chances = chances + np.repeat(
            rng.choice([-own_idea, own_idea], (n, 2)), 3, axis=1
        )
        label = np.where(rng.random((n, 6)) < chances, "reject", "accept")
        clusters = ClusterBootstrap(corpus["cluster_id"], RESAMPLES, seed)
        systems = {
            one: System.of(one, corpus, pd.DataFrame({"label": own}), clusters)
            for one, own in zip(INSTRUCTIONS, label.T, strict=True)
        }
        row = variance.split_instruction_variance(name, systems)
        for part, value in truth.items():
            low, high = row[f"{part}_low"], row[f"{part}_high"]
            found.append((part, row[part], low <= value / total <= high, low > 0))
    frame = pd.DataFrame(found, columns=["part", "value", "covered", "above"])
    rows = []
    for part, own in frame.groupby("part", sort=False):
        row = {
            "rule": f"instructions: {name}",
            "estimate": f"share of {part}",
            "worlds": len(own),
        }
        row |= {
            "mean": own["value"].mean(),
            "deviation": own["value"].std(),
            "truth": truth[part] / total,
        }
        rows.append(
            row
            | {
                "known": True,
                "covered": own["covered"].mean(),
                "above_zero": own["above"].mean(),
            }
        )
    return rows


INSTRUCTIONS = ("safety", "safety-2", "safety-3", "strict", "strict-2", "strict-3")


def summary(rows):
    """Make the table of coverage from the rows of all worlds."""
    table = []
    for (rule, name), own in rows.groupby(["rule", "estimate"], sort=False):
        row = {
            "rule": rule,
            "estimate": (MEASURES | OTHERS)[name],
            "worlds": len(own),
            "mean": own["value"].mean(),
        }
        row["deviation"] = own["value"].std()
        if name in MEASURES:
            truth = KNOWN.get((rule, name), own["value"].mean())
            row |= {"truth": truth, "known": (rule, name) in KNOWN}
            row["covered"] = ((own["low"] <= truth) & (truth <= own["high"])).mean()
            row["above_zero"] = (own["low"] > 0).mean()
        table.append(row)
    return pd.DataFrame(table)


def main():
    """Measure some kinds of worlds, or all, on two processes, and write the table."""
    worlds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    kinds = sys.argv[2:] or ["scores", "ratio", "instructions"]
    file = Path(__file__).with_suffix(".csv")
    known = stores.read_file(file, "tables")
    split = known["rule"].isin(RULES), known["rule"].str.startswith("instructions: ")
    parts = {
        "scores": known[split[0]],
        "ratio": known[~split[0] & ~split[1]],
        "instructions": known[split[1]],
    }
    if "scores" in kinds:
        parts["scores"] = scores(worlds)
    if "ratio" in kinds:
        cells = [
            (*cell, worlds)
            for cell in itertools.product(NUMBERS, RATES, CORRELATIONS, SIZES)
        ]
        with ProcessPoolExecutor(2) as pool:
            parts["ratio"] = pd.DataFrame(
                [row for rows in pool.map(ratio_rows, cells) for row in rows]
            )
    if "instructions" in kinds:
        with ProcessPoolExecutor(2) as pool:
            found = pool.map(instruction_rows, [(name, worlds) for name in STEPS])
            parts["instructions"] = pd.DataFrame(
                [row for rows in found for row in rows]
            )
    table = pd.concat(parts.values(), ignore_index=True)
    stores.write_file(file, table, "tables", {"worlds": worlds, "resamples": RESAMPLES})
    print(table.round(4).to_string())


def scores(worlds):
    """Measure the worlds that are missing; return their rows of the table."""
    folder = paths.RESULTS / "coverage"
    frames = []
    with ProcessPoolExecutor(2) as pool:
        for rule in RULES:
            for start in range(0, worlds, BATCH):
                path = folder / f"{rule}-{start}.parquet"
                if not path.is_file():
                    tasks = [
                        (rule, seed)
                        for seed in range(start, min(start + BATCH, worlds))
                    ]
                    rows = [
                        row
                        for rows in pool.map(measure, tasks, chunksize=5)
                        for row in rows
                    ]
                    frame = pd.DataFrame(
                        rows,
                        columns=["rule", "seed", "estimate", "value", "low", "high"],
                    )
                    stores.write_file(
                        path,
                        frame,
                        "coverage",
                        {"worlds": len(tasks), "resamples": RESAMPLES},
                    )
                    print(path.stem, flush=True)
                frames.append(pd.read_parquet(path))
    rows = pd.concat(frames)
    return summary(rows[rows["seed"] < worlds])


if __name__ == "__main__":
    main()
