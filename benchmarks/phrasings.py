"""Do estimates of phrasings, of label noise and of triggers find what is true? Worlds
with known truth.

`python benchmarks/phrasings.py [WORLDS] [KIND ...]` writes `benchmarks/phrasings.csv`:
for each kind of world and estimate the truth, the mean, the bias and the share of
worlds whose 95 % interval covers it. KIND is `wording`, `noise` or `triggers`; the rows
of other kinds stay.

- wording: 200 clusters of the six strategies; a prompt is refused where a normal
  variable is large that clusters share in part (`meaning`), near-copies share more of
  (`words`), and whose mean hangs on the strategy. Of 70 clusters there is a twin,
  refused more often. DR of near-copies and of free rewordings, rephrasing success, and
  rates by meaning follow. Worlds that are flagged `too_few` are left out, as nobody is to
  rely on them.
- noise: true decisions as above, without strategies; each label errs with a given
  probability, either way; 100 or 400 answers, half rejections where there are as many,
  are read without error. FRR and DR of the true decisions. `redrawn` is what an earlier
  version did (labels redrawn by the measured shares), `ppi` prediction-powered
  inference with as many readings, which lie in whole clusters. In `shared` worlds an
  error hits a whole cluster: the correction assumes that it does not.
- triggers: the recorded prompts, decisions drawn; a term or family raises the log odds
  of its near-copies. `mean` is the share of worlds in which it is a trigger (at an odds
  ratio of 1: in which anything is), `truth` how many clusters told something.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes share two cores

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import comb
from scipy.stats import multivariate_normal, norm

from paraguard_lab.analysis import rephrasing, triggers
from paraguard_lab.core import label_noise
from paraguard_lab.core.disagreement import disagreement_parts, estimate_pair_difference
from paraguard_lab.core.rephrasing import too_few_for_odds
from paraguard_lab.corpus import charged
from paraguard_utils import stores
from paraguard_utils.analysis import wording
from paraguard_utils.analysis.system import System
from paraguard_utils.core import disagreement
from paraguard_utils.core import wording as core_wording
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.schemas import STRATEGIES
from paraguard_utils.settings import CORPUS

CLUSTERS, TWINS, RESAMPLES = 200, 70, 1000
NAMES = ("seed", *STRATEGIES)
SHIFTS = {"softening": -0.3, "hardening": 0.4, "register": 0.2}
"""What strategies add to the normal variable."""

WORDING = [
    (rate, meaning, words)
    for rate in (0.1, 0.3, 0.6)
    for meaning in (0.1, 0.4)
    for words in (0.0, 0.4)
]
HARM = 1.0
"""What asking for harm adds."""

NOISE = [(rate, meaning, error, read) for rate in (0.2, 0.5) for meaning in (0.2, 0.4, 0.6, 0.8)
         for error in (0.05, 0.1, 0.2) for read in (100, 400)]  # fmt: skip

EFFECTS = (0.0, 2.0, 3.0, 4.0)
LEAST = 200
"""Worlds that a row is over, at least."""


def _rows(kind, rule, found, truth):
    """Summarize the worlds of one cell: found has name to list of (value, low, high)."""
    rows = []
    for name, values in found.items():
        frame = pd.DataFrame(values, columns=["value", "low", "high"]).dropna()
        if len(frame) < LEAST:
            continue
        true = truth[name]
        covered = ((frame["low"] <= true) & (true <= frame["high"])).mean()
        about = {
            "kind": kind,
            "rule": rule,
            "estimate": name,
            "worlds": len(frame),
            "truth": true,
        }
        mean = frame["value"].mean()
        rows.append(
            about
            | {
                "mean": mean,
                "bias": mean - true,
                "deviation": frame["value"].std(),
                "covered": covered,
            }
        )
    return rows


def _differ(rates, correlation):
    """Return the probability that two normal variables with a correlation lie on
    different sides of their limits.
    """
    limits = norm.ppf(rates)
    both = multivariate_normal(
        [0, 0], [[1, correlation], [correlation, 1]], allow_singular=True
    ).cdf(limits)
    return rates[0] + rates[1] - 2 * both


def _shares(location, meaning, words):
    """Return, by quadrature, the chances of every pattern of refusals of one cluster:
    shape (patterns of 6 bits,).
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    u, v = np.meshgrid(np.sqrt(meaning) * nodes, np.sqrt(words) * nodes, indexing="ij")
    both = np.outer(weights, weights)
    near = np.isin(NAMES, wording.NEAR_COPY_STRATEGIES)
    own = np.where(near, np.sqrt(1 - meaning - words), np.sqrt(1 - meaning))
    p = norm.cdf((location + u[..., None] + np.where(near, v[..., None], 0)) / own)
    patterns = (np.arange(64)[:, None] >> np.arange(6)) & 1
    chance = np.ones((64, *both.shape))
    for bit in range(6):
        chance *= np.where(
            patterns[:, bit, None, None] == 1, p[..., bit], 1 - p[..., bit]
        )
    return patterns.sum(axis=1), (chance * both).sum(axis=(1, 2))


def _of_patterns(refused, chance):
    """Return rephrasing success and rates by meaning of a distribution of refusals in a
    cluster of six.
    """
    at = np.bincount(refused, weights=chance, minlength=7)
    r = np.arange(1, 7)
    odds = {
        k: (
            (at[1:] * r * (1 - comb(6 - 1 - (6 - r), k) / comb(5, k))).sum()
            / (at[1:] * r).sum()
        )
        for k in (1, 3)
    }
    return odds, 1 - at[0], at[6]


def wording_cell(task):
    """Measure the worlds of one cell of `WORDING`."""
    (rate, meaning, words), worlds = task
    location = norm.ppf(rate) + np.array([SHIFTS.get(name, 0.0) for name in NAMES])
    rates = norm.cdf(location)
    truth = {}
    for name, kinds, correlation in (
        ("dr_near", wording.NEAR_COPY_STRATEGIES, meaning + words),
        ("dr_free", wording.FREE_REWORDING_STRATEGIES, meaning),
    ):
        own = [rates[NAMES.index(one)] for one in kinds]
        ends = [(own[i], own[j]) for i in range(3) for j in range(i)]
        within = sum(_differ(pair, correlation) for pair in ends)
        truth[name] = within / sum(a + b - 2 * a * b for a, b in ends)
    truth["difference"] = truth["dr_free"] - truth["dr_near"]
    harmless, once, always = _of_patterns(*_shares(location, meaning, words))
    twin, _, lost = _of_patterns(*_shares(location + HARM, meaning, words))
    truth |= {
        "rephrased1": harmless[1],
        "rephrased3": harmless[3],
        "rephrased3_twins": twin[3],
    }
    truth |= {
        "rephrased1_difference": harmless[1] - twin[1],
        "rephrased3_difference": harmless[3] - twin[3],
    }
    truth |= {"refused_once": once, "refused_always": always, "answered_once": 1 - lost}
    ids = np.array([f"c{i:03d}" for i in range(CLUSTERS)])
    corpus = pd.DataFrame(
        {
            "cluster_id": np.repeat(ids, 6),
            "strategy": np.tile(NAMES, CLUSTERS),
            "text": "w",
        }
    )
    twins = corpus.head(6 * TWINS).assign(
        cluster_id=lambda frame: frame["cluster_id"] + "-twin"
    )
    clusters, pairs = (
        ClusterBootstrap(ids, RESAMPLES),
        wording.find_cluster_pairs(corpus),
    )
    near, rng = (
        np.isin(NAMES, wording.NEAR_COPY_STRATEGIES),
        np.random.default_rng([round(100 * x) for x in (rate, meaning, words)]),
    )

    def drawn(places, number):
        shared = np.sqrt(meaning) * rng.normal(size=(number, 1)) + near * np.sqrt(
            words
        ) * rng.normal(size=(number, 1))
        z = shared + np.where(
            near, np.sqrt(1 - meaning - words), np.sqrt(1 - meaning)
        ) * rng.normal(size=(number, 6))
        return pd.DataFrame(
            {"label": np.where((z + places > 0).ravel(), "reject", "accept")}
        )

    found = {name: [] for name in truth}
    for _ in range(worlds):
        labels, harmful = drawn(location, CLUSTERS), drawn(location + HARM, TWINS)
        system = System.of("t", corpus, labels, clusters)
        on_twins = System.of("t", twins, harmful, clusters)
        shown, decided = {}, wording.make_phrasings(system)
        for name, mask in (("dr_near", pairs.near), ("dr_free", pairs.free)):
            ends = pairs.first[mask], pairs.second[mask]
            if not core_wording.too_few_for_pairs(decided.refused, ends):
                shown[name] = core_wording.estimate_pair_disagreement(
                    clusters, decided, ends
                )
        if len(shown) == 2:
            ends = [
                (pairs.first[mask], pairs.second[mask])
                for mask in (pairs.free, pairs.near)
            ]
            shown["difference"] = estimate_pair_difference(clusters, decided, *ends)
        sides = (
            rephrasing.count_benign_decisions(system),
            rephrasing.count_benign_decisions(on_twins),
        )
        values = rephrasing.estimate_rephrasing(clusters, *sides)
        flags = {"": too_few_for_odds(sides[0]), "_twins": too_few_for_odds(sides[1])}
        flags["_difference"] = any(flags.values())
        for name in truth.keys() - {"dr_near", "dr_free", "difference"}:
            end = next(
                (end for end in ("_twins", "_difference") if name.endswith(end)), ""
            )
            if not (name.startswith("rephrased") and flags[end]):
                shown[name] = values[name]
        for name, value in shown.items():
            found[name].append(tuple(value))
    return _rows(
        "wording", f"FRR {rate}, meaning {meaning}, words {words}", found, truth
    )


def _redrawn(n, labelled, shares, rng):
    """Return DR after redrawing labels by the measured shares, as an earlier version
    did.
    """
    chance = np.where(labelled, shares[0], shares[1])
    refused = [(rng.random(labelled.shape) < chance).sum(axis=1) for _ in range(20)]
    return float(np.mean([disagreement_parts(n, one)[2] for one in refused]))


def _powered(n, labelled, true, chosen):
    """Return DR by prediction-powered inference, whole clusters being read: labels,
    plus what readings change.
    """
    ratios = []
    for rows, decisions in (
        (slice(None), labelled),
        (chosen, true),
        (chosen, labelled),
    ):
        within, between, _ = disagreement_parts(n[rows], decisions[rows].sum(axis=1))
        ratios.append((within, between))
    within, between = (
        all_ + read - same for all_, read, same in zip(*ratios, strict=True)
    )
    return within / between


def noise_cell(task):
    """Measure the worlds of one cell of `NOISE`, or of one whose errors hit whole
    clusters.
    """
    (rate, meaning, error, read), shared, worlds = task
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    p = norm.cdf((norm.ppf(rate) + np.sqrt(meaning) * nodes) / np.sqrt(1 - meaning))
    within = (p * (1 - p) @ weights) / weights.sum()
    truth = dict.fromkeys(
        ("dr", "labelled", "redrawn", "ppi"), within / (rate * (1 - rate))
    ) | {"frr": rate}
    ids = np.array([f"c{i:03d}" for i in range(CLUSTERS)])
    clusters, n = ClusterBootstrap(ids, RESAMPLES), np.full(CLUSTERS, 6)
    rng = np.random.default_rng(
        [round(100 * x) for x in (rate, meaning, error)] + [read, shared]
    )
    found = {name: [] for name in truth}
    for _ in range(worlds):
        u = np.sqrt(meaning) * rng.normal(size=(CLUSTERS, 1))
        true = (
            u + np.sqrt(1 - meaning) * rng.normal(size=(CLUSTERS, 6)) + norm.ppf(rate)
            > 0
        )
        wrong = rng.random((CLUSTERS, 1 if shared else 6)) < error
        labelled = true ^ wrong
        counts = []
        for side in (True, False):
            rows = rng.permutation(np.flatnonzero(labelled.ravel() == side))[
                : read // 2
            ]
            counts.append((int(true.ravel()[rows].sum()), len(rows)))
        decided = pd.DataFrame(
            {"cluster_id": ids, "n": n, "rejected": labelled.sum(axis=1)}
        )
        for name, value in label_noise.correct_label_noise(
            clusters, decided, *counts
        ).items():
            found[name].append(tuple(value))
        found["labelled"].append(
            tuple(disagreement.estimate_disagreement(clusters, decided))
        )
        shares = [hits / number for hits, number in counts]
        chosen = rng.permutation(CLUSTERS)[: read // 6]
        for name, value in (
            ("redrawn", _redrawn(n, labelled, shares, rng)),
            ("ppi", _powered(n, labelled, true, chosen)),
        ):
            found[name].append(
                (value, -np.inf, np.inf)
            )  # no interval: what counts is bias and deviation
    rule = f"FRR {rate}, meaning {meaning}, error {error}, {read} read" + (
        ", errors shared" if shared else ""
    )
    rows = _rows("noise", rule, found, truth)
    return [
        row | ({"covered": np.nan} if row["estimate"] in ("redrawn", "ppi") else {})
        for row in rows
    ]


def triggers_cell(task):
    """Measure how often triggers are found: one effect, every term and family in turn."""
    effect, worlds = task
    corpus = stores.Store(stores.RECORDED).read("corpus", CORPUS)
    tested = triggers.find_exposures(
        corpus, charged.match_charged_terms(corpus["text"]), charged.term_themes()
    )
    codes, rng = (
        pd.factorize(corpus["cluster_id"])[0],
        np.random.default_rng(round(10 * effect)),
    )
    found = {name: [] for name in tested} if effect else {"any": []}
    for number in range(worlds):
        name = list(found)[number % len(found)]
        # Between the families nothing is planted: near-copies differ by chance, in half
        # of the clusters.
        z = 2 * rng.normal(size=codes.max() + 1)[codes] + rng.logistic(size=len(codes))
        if effect:
            z = z + effect * tested[name][1]
        labels = pd.DataFrame({"label": np.where(z > 0, "reject", "accept")})
        system = System.of("drawn", corpus, labels)
        table = triggers.trigger_table(system, tested).set_index("term")
        hit = table["trigger"].any() if not effect else table.loc[name, "trigger"]
        found[name].append(
            (hit, table.loc[name, "n_clusters"] if effect else len(table))
        )
    rows = []
    for name, values in found.items():
        hits, sizes = np.array(values, float).T
        about = {
            "kind": "triggers",
            "rule": f"odds ratio {np.exp(effect):.0f}",
            "estimate": name,
        }
        rows.append(
            about | {"worlds": len(hits), "truth": sizes.mean(), "mean": hits.mean()}
        )
    return rows


def main():
    """Measure the kinds of worlds asked for on two processes and write the table."""
    worlds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    kinds = sys.argv[2:] or ["wording", "noise", "triggers"]
    file = Path(__file__).with_suffix(".csv")
    parts = (
        [stores.read_file(file, "tables").query("kind not in @kinds")]
        if file.is_file()
        else []
    )
    shared = [(0.5, meaning, 0.1, 400) for meaning in (0.2, 0.6)]
    tasks = {
        "wording": (wording_cell, [(cell, worlds) for cell in WORDING]),
        "noise": (
            noise_cell,
            [(cell, False, worlds) for cell in NOISE]
            + [(cell, True, worlds) for cell in shared],
        ),
        "triggers": (triggers_cell, [(effect, worlds) for effect in EFFECTS]),
    }
    with ProcessPoolExecutor(2) as pool:
        for kind in kinds:
            measure, cells = tasks[kind]
            parts.append(
                pd.DataFrame([row for rows in pool.map(measure, cells) for row in rows])
            )
            print(parts[-1].round(4).to_string(), flush=True)
    table = pd.concat(parts, ignore_index=True)
    stores.write_file(file, table, "tables", {"worlds": worlds, "resamples": RESAMPLES})


if __name__ == "__main__":
    main()
