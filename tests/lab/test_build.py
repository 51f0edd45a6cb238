"""A corpus from a pool of seeds: complete, resumable, the same bytes again."""

import functools
import shutil

import numpy as np
import pandas as pd
import pytest
from asking import Killed, dies
from filelock import FileLock
from test_corpus import needs_encoder

from paraguard_lab.corpus import benchmarks, build, charged, fluency, paraphrase
from paraguard_lab.report import full_scale
from paraguard_utils import paths, stores
from paraguard_utils.analysis.system import System
from paraguard_utils.corpus import gates, inputs, risk
from paraguard_utils.errors import DataError
from paraguard_utils.models import encoder
from paraguard_utils.settings import Gates

pytestmark = [needs_encoder, pytest.mark.slow]
LIMITS = Gates(min_strategies=1)


@pytest.fixture(scope="module")
def pool():
    """Thirty seeds of the project's own, in stratified order, and four that no corpus
    should take.
    """
    seeds = benchmarks.order_by_strata(
        stores.read_file(paths.resolve_input("data/seeds/paraguard_mini.csv"), "seeds")
    ).head(30)
    bad = ["=cmd()", "kill " * 10_000, "كيف أقتل عملية", "kill \u202eeht\u202c process"]
    extra = pd.DataFrame({"text": bad}).assign(
        seed_id=lambda x: "bad-" + x.index.astype(str), source="x", category="y"
    )
    return pd.concat([seeds.head(5), extra, seeds.tail(25)], ignore_index=True)


@pytest.fixture(scope="module")
def embed_once():
    """The encoder, which reads no text twice: most tests build the same corpus."""
    return build.memoize_embedding(encoder.encode_texts)


@pytest.fixture(autouse=True)
def short_parts(monkeypatch, embed_once):
    """Parts of ten seeds, judged without a model."""
    monkeypatch.setattr(build, "SEEDS_PER_PART", 10)
    monkeypatch.setattr(fluency, "compute_losses", shorter_is_better)
    monkeypatch.setattr(encoder, "encode_texts", embed_once)


def part_files(results):
    return sorted((results / "test" / "corpus").glob("mine.*.parts/*.parquet"))


def made(results):
    """Return what parts hold, by their folder and first seed."""
    frames = {}
    for path in part_files(results):
        frame = pd.read_parquet(path)
        key = path.parent.name, frame["seed_id"][0]
        frames[key] = frame.to_json(double_precision=15)
    return frames


def shorter_is_better(texts):
    """Stand in for a model."""
    return np.array([float(len(text)) for text in texts])


def files():
    """Return the files of the corpus that is built."""
    return stores.CorpusFiles(stores.Store("test"), "mine")


def made_of(pool, wanted=5, limits=LIMITS):
    scorer = risk.load_risk_scorer(risk.RISK_VERSION)
    return build.build_corpus(build.Order(files(), pool, wanted, limits, scorer))


def test_a_pool_becomes_complete_clusters_and_counted_skips(results, pool):
    corpus, seeds, candidates = made_of(pool)
    assert (corpus.groupby("cluster_id").size() == 6).all() and corpus[
        "cluster_id"
    ].nunique() == 5
    reasons = seeds.set_index("seed_id")["reason"]
    assert reasons.filter(like="bad").tolist() == [
        "formula",
        "length",
        "language",
        "characters",
    ]
    assert corpus["cluster_id"].tolist() == sorted(
        corpus["cluster_id"], key=lambda name: pool["seed_id"].tolist().index(name)
    )
    # every vector is in the store
    judging = gates.Judging(LIMITS, inputs.make_embedder(files()))
    again, judged = gates.judge_candidates(
        pool[pool["seed_id"].isin(corpus["cluster_id"])],
        corpus[corpus["variant"] > 0].rename(columns={"cluster_id": "seed_id"})[
            ["seed_id", "strategy", "text"]
        ],
        judging,
    )
    assert (again["reason"] == "").all() and (judged["reason"] == "").all()
    yields = build.count_seed_yield(seeds, pool).set_index("source").loc["all"]
    assert yields["insane"] == 4 and yields["drawn"] == len(seeds)
    assert (
        yields["complete"]
        == candidates.loc[candidates["reason"] == "", "seed_id"].nunique()
    )
    assert (
        yields["drawn"] == yields[["insane", "risk_low", "risk_high", "within"]].sum()
    )


def test_what_was_made_before_a_kill_is_kept_and_the_rest_comes_out_the_same(
    results, pool, monkeypatch, capsys
):
    made_of(pool)
    whole, corpus = (
        made(results),
        (results / "test" / "corpus" / "mine.csv").read_bytes(),
    )
    assert len(whole) >= 2
    second = part_files(results)[1].read_bytes()
    shutil.rmtree(results / "test")
    with monkeypatch.context() as patch:
        patch.setattr(
            paraphrase,
            "paraphrase_by_rules",
            second_time(paraphrase.paraphrase_by_rules, dies),
        )
        with pytest.raises(Killed):
            made_of(pool)
    before = made(results)
    assert len(before) == 1
    damaged = part_files(results)[0].with_name("part-000001.parquet")
    damaged.write_bytes(second[:1000])  # half a part, as a disk may leave it
    with monkeypatch.context() as patch:
        patch.setattr(
            paraphrase,
            "paraphrase_by_rules",
            second_time(paraphrase.paraphrase_by_rules, len, len(whole)),
        )
        made_of(pool)
    assert made(results) == whole
    assert f"{damaged.name}: cannot be read" in capsys.readouterr().err
    assert (results / "test" / "corpus" / "mine.csv").read_bytes() == corpus


def second_time(function, instead, after=2):
    """Return `function`, which the call number `after` replaces by another."""
    calls = []

    def replaced(*arguments):
        calls.append(arguments)
        return (instead if len(calls) == after else function)(*arguments)

    return replaced


def test_other_thresholds_begin_anew(results, pool):
    made_of(pool, 2)
    first = set(made(results))
    made_of(pool, 2, Gates(min_strategies=1, max_overlap=0.95))
    assert first < set(made(results))


def test_a_pool_that_is_too_small_says_how_many_it_allows(
    results, pool, command, recorded_corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(build, "CORPUS", "own")
    few = functools.partial(charged.risk_auc, resamples=100)
    monkeypatch.setattr(charged, "risk_auc", few)
    stores.Store("test").write("corpus", "own", frame=recorded_corpus.head(12), meta={})
    pool.rename(columns={"text": "prompt"})[["prompt", "category"]].tail(25).to_csv(
        tmp_path / "or.csv", index=False
    )
    (tmp_path / "xs.csv").write_text(
        "prompt,label,type\nkill it,safe,a\nkill him,unsafe,b\nbake it,safe,a\nbomb"
        " it,unsafe,b\n"
    )
    files = [
        "--orbench",
        str(tmp_path / "or.csv"),
        "--xstest",
        str(tmp_path / "xs.csv"),
    ]
    kind = [
        "--store",
        "test",
        "--name",
        "mine",
        "--seed",
        "1",
        "--clusters",
        "50",
        "--min-strategies",
        "1",
    ]
    assert (
        "(50 wanted: the pool allows no more)"
        in command("corpus", "build", *files, *kind).printed
    )
    read = {
        name: stores.Store("test").read("tables", f"mine_{name}")
        for name in build.PUBLIC_CORPUS_TABLES
    }
    assert read["seeds"].set_index("source").loc["all", "pool"] == 25
    groups = read["risk"].groupby("group", sort=False)["texts"].first()
    assert groups.to_dict() == {
        "ParaGuard mini": 12,
        "OR-Bench Hard-1K": 25,
        "XSTest safe": 2,
        "XSTest unsafe": 2,
    }
    assert (
        read["risk"].groupby("group")["n"].sum()
        == read["risk"].groupby("group")["texts"].first()
    ).all()
    assert read["risk_auc"]["unsafe"].tolist() == [2, 2, 2]


def test_the_command_wants_a_live_store_a_file_and_a_number(command):
    for arguments, message in (
        ([], "name at least one benchmark file"),
        (
            ["--orbench", "x.csv", "--store", "recorded"],
            "the recorded store is not written",
        ),
        (["--orbench", "x.csv", "--clusters", "0"], "'--clusters'"),
        (["--orbench", "nowhere.csv"], "there is no file 'nowhere.csv'"),
    ):
        assert message in command("corpus", "build", *arguments).error


def test_two_processes_do_not_build_one_corpus(results, pool):
    file = stores.Store("test").output_path("corpus", "mine")
    with (
        FileLock(f"{file}.lock"),
        pytest.raises(
            DataError, match=r"mine\.csv is being written by another process"
        ),
    ):
        made_of(pool)


def test_no_text_is_published(results, pool):
    corpus, *_ = made_of(pool)
    system = System.of("m", corpus, corpus.assign(label="accept"))
    published = full_scale.publishable_labels(corpus, [system])
    assert "text" not in published and published["m"].eq("accept").all()
