"""Vetoes, matched pairs and rivals: by hand and by loops."""

import itertools

import numpy as np
import pandas as pd
import pytest
import worlds
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from paraguard_lab.analysis import near_identical, predictions, validity
from paraguard_lab.core.disagreement import disagreement_parts
from paraguard_utils import paths, stores
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.analysis.system import System
from paraguard_utils.core.auc import estimate_auc
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.signals import Scoring

RECORDED = stores.Store(stores.RECORDED)


def small(seed=0, clusters=8):
    labels = list(
        np.random.default_rng(seed).choice(
            ["accept", "reject", "blocked"], 6 * clusters, p=[0.5, 0.4, 0.1]
        )
    )
    return worlds.world(labels, [f"c{i // 6}" for i in range(6 * clusters)], seed)


def test_veto_pairs_by_hand():
    corpus = pd.DataFrame({"prompt_id": list("abcdefg"), "cluster_id": list("1111222")})
    labels = pd.DataFrame(
        {
            "label": [
                "reject",
                "accept",
                "accept",
                "blocked",
                "reject",
                "reject",
                "blocked",
            ]
        }
    )
    held = validity.pair_held_out(System.of("m", corpus, labels))
    # a with b held out sees c, which is accepted, and the other way round; 2 has two
    # scored prompts only
    assert held[["prompt_id", "held_out"]].values.tolist() == [["a", "b"], ["a", "c"]]
    assert held["accepted"].all() and held["isolation"].tolist() == [1, 1]
    labels.loc[3, "label"] = "reject"
    held = validity.pair_held_out(System.of("m", corpus, labels))
    held = held.set_index(["prompt_id", "held_out"])
    # a sees of {b: accept, c: accept, d: reject} the two that are not held out
    assert held["isolation"].to_dict() == {
        **{
            ("a", "b"): 0.5,
            ("a", "c"): 0.5,
            ("a", "d"): 1,
            ("d", "a"): 1,
            ("d", "b"): 0.5,
            ("d", "c"): 0.5,
        }
    }
    assert held.loc[("a", "d"), "accepted"] == False  # noqa: E712


@pytest.mark.slow
def test_veto_by_loops():
    corpus, vectors, traces, labels, tokens = small(3)
    system = worlds.system(corpus, labels, traces=traces, tokens=tokens)
    held = validity.pair_held_out(system)
    label = dict(zip(corpus["prompt_id"], labels["label"], strict=True))
    cluster = dict(zip(corpus["prompt_id"], corpus["cluster_id"], strict=True))
    scored = [name for name in label if label[name] in ("accept", "reject")]
    k = 2
    pairs = signals.compute_pairs(system, vectors, k=k + 1)
    near = (
        pairs.assign(score=signals.score_pairs(pairs))
        .dropna(subset="rank")
        .sort_values("rank")
    )
    expected = {}
    for r in scored:
        for h in scored:
            rest = [p for p in scored if cluster[p] == cluster[r] and p not in (r, h)]
            if label[r] == "reject" and h != r and cluster[h] == cluster[r] and rest:
                own = near[(near["centre_id"] == r) & (near["neighbour_id"] != h)].head(
                    k
                )
                expected[r, h] = (
                    np.mean([label[p] == "accept" for p in rest]),
                    own["score"].mean(),
                )
    found = held.assign(
        ci=validity.ci_without_held_out(held, pairs, "relative", k)
    ).set_index(["prompt_id", "held_out"])
    assert len(found) == len(expected) > 20
    for name, (isolated, ci) in expected.items():
        assert found.loc[name, "isolation"] == pytest.approx(isolated, abs=1e-9)
        assert found.loc[name, "ci"] == pytest.approx(ci, abs=1e-9)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 4)),
        min_size=4,
        max_size=40,
    )
)
def test_auc_agrees_with_scikit_learn(rows):
    cluster, outcome, scores = (np.array(column) for column in zip(*rows, strict=True))
    names = np.array([f"c{i}" for i in cluster])
    clusters = ClusterBootstrap(names, resamples=12)
    found = estimate_auc(clusters, names, outcome, scores.astype(float), None)
    if outcome.all() or not outcome.any():
        assert np.isnan(found[0])
        return
    assert found[0] == pytest.approx(roc_auc_score(outcome, scores))
    for counts, draw in zip(clusters.counts, found.draws, strict=True):
        weight = counts[clusters.codes.loc[names]]
        if weight[outcome].sum() and weight[~outcome].sum():
            assert draw == pytest.approx(
                roc_auc_score(outcome, scores, sample_weight=weight)
            )
        else:
            assert np.isnan(draw)


def test_isolation_ranks_by_the_counts_of_clusters_alone():
    """Its AUC as a veto can be had without knowing which prompt was refused: it repeats
    DR, and is no evidence.
    """
    corpus, valid = (
        RECORDED.read("corpus", "paraguard_mini"),
        RECORDED.read("tables", "validity").set_index("system"),
    )
    for name in valid.index:
        labels = RECORDED.read("labels", "paraguard_mini", name)
        counts = System.of(name, corpus, labels).decided
        n, r = counts["n"].to_numpy(), counts["rejected"].to_numpy()
        # r rejections see n - r accepted held-out prompts, and r - 1 rejected ones,
        # among n - 2 others
        outcome, seen = (
            np.repeat([True, False], len(n)),
            np.concatenate([(n - r - 1) / (n - 2), (n - r) / (n - 2)]),
        )
        area = roc_auc_score(
            outcome, seen, sample_weight=np.concatenate([r * (n - r), r * (r - 1)])
        )
        assert area == pytest.approx(
            valid.loc[name, "auc_isolation"], abs=1e-5, nan_ok=True
        ), name


def test_auc_within_strata_by_hand():
    names = list("abcdefg")
    outcome, scores = (
        np.array([1, 0, 0, 1, 1, 0, 1], bool),
        np.array([0.9, 0.1, 0.95, 0.2, 0.3, 0.2, 0.5]),
    )
    strata = np.array([1, 1, 1, 2, 2, 2, 3])
    found = estimate_auc(ClusterBootstrap(names, 50), names, outcome, scores, strata)
    # stratum 1: 0.9 beats 0.1, not 0.95; stratum 2: 0.3 beats 0.2, 0.2 ties it; stratum
    # 3 has no pair: 2.5 of 4
    assert found[0] == pytest.approx(2.5 / 4)
    assert np.isnan(
        estimate_auc(ClusterBootstrap(names, 50), names, outcome, scores, np.arange(7))[
            0
        ]
    )


@pytest.mark.slow
def test_matched_ratio_by_loops(monkeypatch):
    monkeypatch.setattr(validity, "MATCHING_BINS", 2)
    corpus, _, traces, labels, _ = small(5, 10)
    ppl = signals.trace_perplexity(traces)
    length = np.log((traces["user_end"] - traces["user_start"]).to_numpy(float))
    label, cluster = labels["label"].tolist(), corpus["cluster_id"].tolist()
    scored = [i for i in range(60) if label[i] in ("accept", "reject")]
    scored = [i for i in scored if sum(cluster[j] == cluster[i] for j in scored) > 1]
    middle = [np.median(values[scored]) for values in (np.log(ppl), length)]
    cell = {i: (np.log(ppl[i]) >= middle[0], length[i] >= middle[1]) for i in scored}
    groups = {True: {}, False: {}}
    for i, j in itertools.permutations(scored, 2):
        own = cluster[i] == cluster[j]
        mates = sum(cluster[other] == cluster[i] for other in scored) - 1
        differ = label[i] != label[j]
        groups[own].setdefault((cell[i], cell[j]), []).append(
            (1 / mates if own else 1, differ)
        )
    known = [key for key in groups[True] if key in groups[False]]
    pairs = [pair for key in known for pair in groups[True][key]]
    within = sum(weight * differ for weight, differ in pairs) / sum(
        weight for weight, _ in pairs
    )
    shares = {
        key: np.mean([differ for _, differ in groups[False][key]]) for key in known
    }
    weights = {key: sum(weight for weight, _ in groups[True][key]) for key in known}
    between = sum(weights[key] * shares[key] for key in known) / sum(weights.values())
    clusters = ClusterBootstrap(corpus["cluster_id"], 99)
    system = worlds.system(corpus, labels, clusters, traces=traces)
    found = validity.matched_disagreement_ratio(system)
    assert found[0] == pytest.approx(within / between, abs=1e-9)


def test_matching_on_nothing_leaves_the_ratio(monkeypatch):
    monkeypatch.setattr(validity, "MATCHING_BINS", 1)
    labels = ["reject", "accept", "accept"] * 4 + ["accept"] * 12 + ["reject"] * 6
    corpus, _, traces, labels, _ = worlds.world(
        labels, [f"c{i // 6}" for i in range(30)]
    )
    clusters = ClusterBootstrap(corpus["cluster_id"], 99)
    system = worlds.system(corpus, labels, clusters, traces=traces)
    plain = system.dr()
    found = validity.matched_disagreement_ratio(system)
    assert found[0] == pytest.approx(plain[0])
    np.testing.assert_allclose(found.draws, plain.draws)  # in every resample


def test_near_identical_pairs_by_hand(monkeypatch):
    monkeypatch.setattr(near_identical, "MIN_REFUSALS", 2)
    corpus = pd.DataFrame({"prompt_id": list("abcdef"), "cluster_id": list("111222")})
    labels = pd.DataFrame(
        {"label": ["reject", "accept", "reject", "accept", "accept", "blocked"]}
    )
    vectors = np.array([[1, 0], [1, 0.1], [0, 1], [1, 0], [1, 0.2], [1, 0]])
    clusters = ClusterBootstrap(corpus["cluster_id"], 99)
    # near and scored: a-b (differ) and d-e (alike): 1/2. Two clusters: of 3 x 2 pairs a
    # and c differ from both: 4/6.
    system = System.of("m", corpus, labels, clusters)
    found = near_identical.near_identical_ratio(system, vectors)
    assert found.value == pytest.approx((1 / 2) / (4 / 6))
    monkeypatch.setattr(near_identical, "MIN_REFUSALS", 3)
    found = near_identical.near_identical_ratio(system, vectors)
    assert np.isnan(found.value)


def test_rivals_by_hand():
    corpus = pd.DataFrame({"prompt_id": list("abcd"), "cluster_id": list("1122")})
    labels = pd.DataFrame({"label": ["reject", "accept", "accept", "accept"]})
    clusters = ClusterBootstrap(corpus["cluster_id"], 9)
    found = validity.sensitivity_indices(System.of("m", corpus, labels, clusters))
    assert found["agreement"][0] == pytest.approx((0.5 + 1) / 2) and found["pss"][
        0
    ] == pytest.approx(0.5)


def test_halves_by_hand():
    # four clusters of two; words: 1, 2, 5 and 9, so that c and d are the longer half
    labels = [
        "accept",
        "reject",
        "accept",
        "accept",
        "reject",
        "reject",
        "reject",
        "accept",
    ]
    made = worlds.world(labels, list("aabbccdd"))
    corpus, _, traces, _, _ = made
    traces["user_end"] = 10
    traces["user_start"] = [10 - length for length in (1, 1, 2, 2, 5, 5, 9, 9)]
    # logarithms of the perplexities: a and c are the less fluent ones
    traces["token_nll"] = [np.full(10, value) for value in (3, 3, 1, 1, 4, 4, 2, 2)]
    traces["token_ids"] = [np.arange(10, dtype=np.int32)] * 8
    clusters = ClusterBootstrap(corpus["cluster_id"], 99)
    system = worlds.scored(made, clusters, Scoring(k=1))
    found = validity.compare_wording_halves(system)
    found = found.set_index(["wording", "measure"])
    # 3 of 4 rejected in c and d, 1 of 4 in a and b; in a and c 3 of 4, in b and d 1 of
    # 4
    assert found.loc[("length", "frr"), "difference"] == pytest.approx(3 / 4 - 1 / 4)
    assert found.loc[("perplexity", "frr"), "difference"] == pytest.approx(
        3 / 4 - 1 / 4
    )
    # of c and d only d is decided both ways, of a and b only a; of a and c only a, of b
    # and d only d
    assert found.loc[("length", "flip_rate"), "difference"] == 0
    ci = (
        system.scores.set_index("prompt_id")["ci"]
        .loc[corpus["prompt_id"][np.array(labels) == "reject"]]
        .to_numpy()
    )
    assert found.loc[("length", "ci"), "difference"] == pytest.approx(
        ci[1:].mean() - ci[0]
    )
    assert found["too_few"].all()
    assert {"dr", "ci", "cr60", "cd", "excess", "agreement", "pss"} <= set(
        found.loc["length"].index
    )


def test_a_cluster_at_the_median_is_of_the_lower_half():
    # three clusters of two, worded in 1, 2 and 5 tokens: the second is the median, so
    # that the third alone is above it
    labels = ["accept", "reject", "accept", "accept", "reject", "reject"]
    made = worlds.world(labels, list("aabbcc"))
    corpus, _, traces, _, _ = made
    traces["user_end"] = 10
    traces["user_start"] = [10 - length for length in (1, 1, 2, 2, 5, 5)]
    traces["token_nll"], traces["token_ids"] = (
        [np.ones(10)] * 6,
        [np.arange(10, dtype=np.int32)] * 6,
    )
    clusters = ClusterBootstrap(corpus["cluster_id"], 20)
    system = worlds.scored(made, clusters, Scoring(k=1))
    found = validity.compare_wording_halves(system)
    found = found.set_index(["wording", "measure"])
    assert found.loc[("length", "frr"), "difference"] == pytest.approx(2 / 2 - 1 / 4)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_the_latent_correlation_by_moments_is_that_of_the_simulation(rate):
    rng, correlation = np.random.default_rng(7), 0.6
    spread = np.sqrt(correlation / (1 - correlation))
    chance = stats.norm.cdf(
        stats.norm.ppf(rate) * np.sqrt(1 + spread**2) + spread * rng.normal(size=20_000)
    )
    decided = pd.DataFrame({"n": 6, "rejected": rng.binomial(6, chance)})
    share, dr = (
        decided["rejected"].mean() / 6,
        disagreement_parts(decided["n"], decided["rejected"])[2],
    )
    found = validity.latent_correlation_by_moments(share, dr)
    assert found == pytest.approx(correlation, abs=0.02)


def test_latent_correlation_without_a_ratio():
    # decided alike throughout a cluster; no more alike than by chance; less than that;
    # undefined
    found = validity.latent_correlation_by_moments(
        [0.3, 0.3, 0.3, 0.3], [0, 1, 1.2, np.nan]
    )
    assert found == pytest.approx([1, 0, 0, np.nan], abs=1e-9, nan_ok=True)


def test_dr_against_the_refusal_rate_by_loops():
    rng = np.random.default_rng(1)
    corpus = pd.DataFrame(
        {
            "prompt_id": [f"p{i}" for i in range(600)],
            "cluster_id": [f"c{i // 6}" for i in range(600)],
        }
    )
    rates = {"a": 0.1, "b": 0.3, "c": 0.4, "d": 0.5, "e": 0.6, "f": 0.7, "never": 0.0}
    leans = {name: np.repeat(rng.normal(0, 0.2, 100), 6) for name in rates}
    chance = {
        name: np.clip(rate + leans[name], 0.02, 0.98) if rate else np.zeros(600)
        for name, rate in rates.items()
    }
    labels = {
        name: corpus.assign(label=np.where(rng.random(600) < own, "reject", "accept"))
        for name, own in chance.items()
    }
    clusters = ClusterBootstrap(corpus["cluster_id"], resamples=30)
    systems = {
        name: System.of(name, corpus, frame, clusters) for name, frame in labels.items()
    }
    groups = {"all": list(systems.values()), "four": [systems[name] for name in "bcde"]}
    found = validity.correlate_dr_with_frr(groups).set_index(
        ["systems", "refusals", "measure"]
    )
    # `never` has no DR, and a too few refusals for one
    assert found["n"].to_dict() == {
        (*key, measure): n
        for key, n in {
            ("all", "any"): 6,
            ("all", "enough"): 5,
            ("four", "any"): 4,
            ("four", "enough"): 4,
        }.items()
        for measure in ("dr", "icc_latent")
    }
    assert found.loc["four", ["rho", "rho_low", "rho_high"]].isna().all(axis=None)
    for refusals, names in (("any", "abcdef"), ("enough", "bcdef")):
        own = [confusion.estimate_rates(systems[name]) for name in names]
        frr, dr = ([one[measure] for one in own] for measure in ("frr", "dr"))
        row = found.loc[("all", refusals, "dr")]
        assert row["rho"] == pytest.approx(
            stats.spearmanr([one[0] for one in frr], [one[0] for one in dr])[0]
        )
        draws = [
            stats.spearmanr(
                [one.draws[i] for one in frr], [one.draws[i] for one in dr]
            )[0]
            for i in range(30)
        ]
        assert row[["rho_low", "rho_high"]].tolist() == pytest.approx(
            np.percentile(draws, [2.5, 97.5]).tolist()
        )
        correlations = [
            validity.latent_correlation_by_moments(one[0], other[0])
            for one, other in zip(frr, dr, strict=True)
        ]
        expected = stats.spearmanr([one[0] for one in frr], correlations)[0]
        assert found.loc[("all", refusals, "icc_latent"), "rho"] == pytest.approx(
            expected
        )


def test_a_share_of_nearly_nothing_is_none():
    """In worlds of known truth meaning moves the excess and CD less than chance does:
    ratios would be 73 and 703.
    """
    moved = predictions.known_truth_effects(
        stores.read_file(paths.BENCHMARKS_FOLDER / "known_truth.csv", "tables")
    ).set_index("measure")
    shares = moved[["chance", "frr", "perplexity", "length"]]
    assert (
        set(moved.index[shares.isna().all(axis=1)])
        == {"excess", "cd"}
        == set(moved.index[shares.isna().any(axis=1)])
    )
    assert moved["meaning"].notna().all() and shares["chance"].max() <= 1


def test_dr_of_wordings_is_converted_at_the_system_s_own_rate():
    # At a rate of one half two normal variables of correlation r are decided
    # differently in arccos(r) / pi of cases, 2 arccos(r) / pi times as often as two
    # independent ones. At r = sin(pi / 4) = 0.70711 that is a DR of one half.
    table1 = pd.DataFrame({"system": ["a", "a", "b"], "frr": [0.5, 0.5, 0.05]})
    wording = pd.DataFrame({"system": ["b", "a"], "too_few": [True, False]})
    for kind in ("near", "free"):
        wording[[f"dr_{kind}", f"dr_{kind}_low"]] = 0.5, 0.0
        wording[f"dr_{kind}_high"] = [np.nan, 1.2]
    found = validity.convert_wording(table1, wording).set_index("system")
    assert found.loc["a", "latent_free"] == pytest.approx(np.sqrt(0.5), abs=1e-6)
    assert found.loc["a", "latent_free_low"] == 0  # of a DR above 1
    assert found.loc["a", "latent_free_high"] == pytest.approx(1, abs=1e-6)
    assert np.isnan(found.loc["b", "latent_near_low"])
    # The same DR means more at a lower rate: DR of 0.5 at 5 % is a larger correlation.
    assert found.loc["b", "latent_near"] > found.loc["a", "latent_near"] + 0.05
    assert not found.loc["a", "too_few"] and found.loc["b", "too_few"]
