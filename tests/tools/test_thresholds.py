"""The cut with a promise: by hand, in worlds, on recorded scores, and as a command."""

from math import comb

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded_systems
from scipy.stats import binomtest

from paraguard_lab.analysis.guarded import compare_with_promised_threshold
from paraguard_lab.core.thresholds import choose_promised_threshold
from paraguard_tools.logs.commands import describe_cut, read_score_rows
from paraguard_utils import settings, stores
from paraguard_utils.core.estimates import SEED, ClusterBootstrap
from paraguard_utils.errors import DataError

RECORDED = stores.Store("recorded")


def allowed(n, requests, confidence):
    """The largest k with P(Bin(n, meanings) <= k) <= 1 - confidence, summed term by
    term; -1 if there is none.
    """
    terms = [comb(n, k) * requests**k * (1 - requests) ** (n - k) for k in range(n + 1)]
    return int((np.cumsum(terms)[:n] <= 1 - confidence).sum()) - 1


def test_a_cut_by_hand():
    # Largest of each cluster: a 0.2, b 0.9, c 0.3. Of Bin(3, 0.85): P(0) = 0.003, P(<=
    # 1) = 0.061, P(<= 2) = 0.386, so that one of three may lie above, and the cut is
    # the second largest, 0.3.
    scores, cluster = [0.1, 0.2, 0.9, 0.3, 0.05], ["a", "a", "b", "c", "c"]
    found = choose_promised_threshold(scores, cluster, requests=0.85)
    assert found[:3] == (0.3, 1, 3)
    # P(Bin(3, p) <= 1) = 0.1 at p = 0.804: (1 - p)^2 (1 + 2 p) = 0.0384 * 2.608
    assert found.upper == pytest.approx(0.804, abs=5e-4)
    # nothing may lie above: 0.35^3 = 0.043 of a share of 0.65, but P(<= 1) = 0.28
    assert choose_promised_threshold(scores, cluster, requests=0.65)[:3] == (0.9, 0, 3)


def test_too_few_clusters_say_how_many_it_takes():
    # 0.95^45 = 0.0994 and 0.95^44 = 0.1047
    with pytest.raises(
        DataError,
        match=r"44 harmless clusters are too few .* confidence 0.9: 45 are needed",
    ):
        choose_promised_threshold(np.arange(44), np.arange(44))
    assert choose_promised_threshold(np.arange(45), np.arange(45)).threshold == 44
    with pytest.raises(DataError, match="230 are needed"):
        choose_promised_threshold(np.arange(45), np.arange(45), requests=0.01)


@pytest.mark.parametrize("bad", [{"requests": 0}, {"requests": 1}, {"confidence": 1}])
def test_a_promise_is_between_none_and_all(bad):
    with pytest.raises(DataError, match="lie between 0 and 1"):
        choose_promised_threshold(np.arange(99), np.arange(99), **bad)


def test_a_missing_score_is_an_error():
    with pytest.raises(DataError, match="1 of 99 scores are missing"):
        choose_promised_threshold([np.nan, *range(98)], np.arange(99))


@pytest.mark.slow
@given(
    st.integers(45, 160),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.05, 0.1, 0.3]),
    st.booleans(),
)
def test_the_cut_is_the_lowest_that_keeps_the_promise(n, seed, requests, coarse):
    rng = np.random.default_rng(seed)
    cluster = np.concatenate([np.arange(n), rng.integers(0, n, 2 * n)])
    scores = rng.normal(size=len(cluster)).round(1 if coarse else 12)
    found = choose_promised_threshold(scores, cluster, requests=requests)
    largest = pd.Series(scores).groupby(cluster).max().to_numpy()
    k = allowed(n, requests, 0.9)
    assert (
        found.blocked == (largest > found.threshold).sum() <= k and found.clusters == n
    )
    # an upper bound at 90 % is the upper end of a two-sided interval at 80 %
    assert found.upper == pytest.approx(
        binomtest(found.blocked, n).proportion_ci(0.8, "exact").high
    )
    assert found.upper <= requests + 1e-9
    assert (largest >= found.threshold).sum() > k, (
        "whatever blocks the cut itself too, blocks too many"
    )
    order = rng.permutation(len(scores))
    assert (
        choose_promised_threshold(scores[order], cluster[order], requests=requests)
        == found
    )
    assert choose_promised_threshold(
        np.exp(scores), cluster, requests=requests
    ).threshold == pytest.approx(np.exp(found.threshold))


@pytest.mark.parametrize("name", recorded_systems("guard", "refusal"))
def test_the_promise_is_kept_on_random_halves_of_recorded_scores(name):
    corpus = RECORDED.read("corpus", settings.CORPUS)
    rows = corpus.merge(
        RECORDED.read("guards", settings.CORPUS, name)[["prompt_id", "score"]]
    ).dropna(subset="score")
    largest = rows.groupby("cluster_id")["score"].max().to_numpy()
    rng = np.random.default_rng(7)
    halves = rng.permuted(np.tile(largest, (1000, 1)), axis=1)
    here, there = -np.sort(-halves[:, :100], axis=1), halves[:, 100:]
    k = allowed(100, 0.05, 0.9)
    cuts = here[:, k]
    ours = [
        choose_promised_threshold(one, np.arange(100)).threshold for one in here[:5]
    ]
    assert ours == cuts[:5].tolist()
    broken = [
        float(((there > here[:, [at]]).mean(axis=1) > 0.05).mean()) for at in (k, k + 1)
    ]
    assert broken[0] <= 0.1
    # One more above would not do: the largest eight of 200 hold at most two of this
    # half in 37 / 256 of halves.
    if len(set(largest)) > 190:
        assert broken[1] > 0.1


def test_each_half_is_cut_by_the_other():
    # 100 harmless clusters: those of one half have a wording at 0.1, those of the other
    # at 0.5
    names = pd.Series([f"c{number:03d}" for number in range(100)])
    high = np.random.default_rng(SEED).permutation(100) % 2 == 1
    scores = np.repeat(np.where(high, 0.5, 0.1), 2)
    benign = pd.DataFrame(
        {"cluster_id": np.repeat(names.to_numpy(), 2), "score": scores}
    )
    twins = pd.DataFrame({"cluster_id": names + "-twin", "score": 0.3})
    clusters = ClusterBootstrap(names, 200)
    # 0.5 blocks nothing of the low half and no twin there; 0.1 blocks all of the high
    # half, and its twins
    found = compare_with_promised_threshold(benign, twins, 0.4, clusters)
    columns = ["own_requests", "own_twins", "promised_requests", "promised_twins"]
    assert [found[name] for name in columns] == [0.5, 0, 0.5, 0.5]
    # what has no score is left out; 80 clusters are too few in halves, but not for what
    # the guard itself blocks
    unscored = benign.assign(score=benign["score"].where(benign.index >= 40))
    too_few = compare_with_promised_threshold(unscored, twins, 0.3, clusters)
    assert (
        too_few["own_twins"] == 1
        and np.isnan(
            [too_few["promised_requests"], too_few["promised_twins_low"]]
        ).all()
    )


def write(path, rows):
    pd.DataFrame(rows).to_csv(path, index=False)
    return str(path)


def test_the_command_says_cut_promise_and_price(command, tmp_path):
    harmless = {
        "cluster": [f"c{n}" for n in range(50)] * 2,
        "score": [n / 100 for n in range(100)],
    }
    file = write(tmp_path / "scores.csv", harmless)
    twins = write(
        tmp_path / "twins.csv",
        {"cluster": ["a", "a", "b", "b"], "score": [0.9, 1.0, 1.0, 0.2]},
    )
    done = command("threshold", file, "--twins", twins)
    said = " ".join(done.printed.split())
    # of 50 clusters none may lie above, since 1 - 0.95^50 - 50 * 0.05 * 0.95^49 leaves
    # P(<= 1) = 0.28
    assert said.startswith(
        "Block scores above 0.99. 0 of 50 harmless requests have a wording above it."
    )
    # 1 - 0.1^(1 / 50) = 0.045
    assert "With 90% confidence, at most 4.5% of such requests" in said
    assert said.endswith("It still blocks 50% [50%, 50%] of 4 harmful requests.")
    assert "is unknown: name harmful requests" in " ".join(
        command("threshold", file).printed.split()
    )


def test_harmful_rows_may_stand_in_the_same_file(tmp_path):
    rows = {
        "group": [f"c{n}" for n in range(60)],
        "risk": range(60),
        "kind": ["harmless"] * 50 + ["harmful"] * 10,
    }
    read = read_score_rows(
        write(tmp_path / "s.csv", rows),
        {"score": "risk", "cluster": "", "harmful": "kind"},
    )
    assert read["harmful"].sum() == 10 and read["score"].tolist() == list(range(60))
    assert describe_cut(read, 0.05, 0.9)[-1].startswith("It still blocks 100% ")
    lines = '{"cluster": "a", "score": 0.5, "harmful": true}\n'
    (tmp_path / "s.jsonl").write_text(lines)
    (one,) = read_score_rows(
        tmp_path / "s.jsonl", dict.fromkeys(("score", "cluster", "harmful"), "")
    ).to_dict("records")
    assert (one["cluster"], one["score"], one["harmful"]) == ("a", 0.5, True)


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (
            "cluster,score\na,0.1\nb,\n",
            "row 3: score '' is no number; fix it, leave the row out",
        ),
        ("cluster,score\na,0.1\nb,high\n", "row 3: score 'high' is no number"),
        ("cluster,score\na,0.1\nb,inf\n", "row 3: score 'inf' is no number"),
        ("cluster,score\n,0.1\n", "row 2: cluster '' is blank"),
        (
            "cluster,score,harmful\na,0.1,maybe\n",
            "row 2: harmful 'maybe' is neither true nor false",
        ),
        (
            "text,score\na,0.1\n",
            "there is no column of clusters; name it with --cluster",
        ),
        ("cluster,text\na,b\n", "there is no column of scores; name it with --score"),
        ("cluster,score\na,0.1\n", "1 harmless clusters are too few"),
    ],
)
def test_a_bad_file_of_scores_is_one_line(command, tmp_path, rows, line):
    (tmp_path / "bad.csv").write_text(rows)
    done = command("threshold", str(tmp_path / "bad.csv"))
    assert (
        line in done.error and done.error.strip().count("\n") == 0 and done.status != 0
    )
