"""Seeds from public benchmarks: formats, duplicates, bad files, stratified order; and
scripts that measure costs.
"""

import re
import runpy
import subprocess

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from paraguard_lab.corpus import benchmarks, reword
from paraguard_tools.guards import chat
from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError, Missing, SettingsError
from paraguard_utils.guards import packaged
from paraguard_utils.guards.contract import Guard, GuardNotes

SHARED = paths.ROOT.parent / "shared" / "data"
FILES = {
    "phtest": SHARED / "phtest" / "dataset_v0.1.csv",
    "ebench": SHARED / "usebench" / "usability_test_prompt.csv",
    "orbench": SHARED / "orbench" / "or-bench-hard-1k.csv",
}
needs_files = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the public benchmark files are not here"
)


@pytest.fixture
def files(tmp_path):
    """Small files in the upstream formats."""
    (tmp_path / "ph.csv").write_bytes(
        b'ID,Request,Harmfulness\r\n7,"Kill it,\r\nplease",harmless\r\n8,Bomb'
        b" it?,controversial\r\n9,bomb IT,harmless\r\n10,,harmless\r\n"
    )
    (tmp_path / "e.csv").write_text(
        "Request,Harmfulness\nBomb it!,harmless\nOnly here,harmless\n"
    )
    (tmp_path / "or.csv").write_text(
        "prompt,category\nOnly here.,Hate\nA third one,illegal\n"
    )
    return {
        name: tmp_path / file
        for name, file in (
            ("phtest", "ph.csv"),
            ("ebench", "e.csv"),
            ("orbench", "or.csv"),
        )
    }


def test_sources_are_read_merged_and_counted(files):
    seeds, left_out = benchmarks.read_benchmarks(files, ["harmless"])
    assert seeds.set_index("seed_id")[["source", "category"]].to_dict("split")[
        "data"
    ] == [
        ["PHTest v0.1", "unstated"],
        ["PHTest v0.1 + USEBench E-Bench", "unstated"],
        ["USEBench E-Bench + OR-Bench Hard-1K", "unstated"],
        ["OR-Bench Hard-1K", "illegal"],
    ]
    assert seeds["seed_id"].tolist() == [
        "phtest-00007",
        "phtest-00009",
        "ebench-00002",
        "orbench-00002",
    ]
    assert seeds["text"][0] == "Kill it,\r\nplease"
    assert left_out.to_dict("split")["data"] == [
        ["PHTest v0.1", "label is controversial", 1],
        ["PHTest v0.1", "blank", 1],
        ["USEBench E-Bench", "text is in an earlier row", 1],
        ["OR-Bench Hard-1K", "text is in an earlier row", 1],
    ]
    assert len(benchmarks.read_benchmarks(files, ("harmless", "controversial"))[0]) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as CSV"),
        (b"ID,Request,Harmfulness\n", "there are no rows"),
        (b"ID,Text,Harmfulness\n1,a,harmless\n", "column 'Request' is missing"),
        (
            b"ID,Request,Harmfulness\n1,a,harmless\n1,b,harmless\n",
            "row 3, column ID: '1' stands there twice",
        ),
        (b"ID,Request,Harmfulness\n1,caf\xe9,harmless\n", r"is not UTF-8 \(byte \d+\)"),
        (b"ID,Request,Harmfulness\n1,a,controversial\n", "no row is labelled harmless"),
        (
            b"ID,Request,Harmfulness\n1,a,harmless,x,y\n2,b\n3,c,d,e,f,g\n",
            "cannot be read as CSV",
        ),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path, content, message):
    (tmp_path / "ph.csv").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        benchmarks.read_benchmarks({"phtest": tmp_path / "ph.csv"}, ["harmless"])
    assert "ph.csv" in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_missing_file_is_one_clear_error():
    with pytest.raises(SettingsError, match=r"no file 'nowhere\.csv'"):
        benchmarks.read_benchmarks({"phtest": "nowhere.csv"}, ["harmless"])


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=60),
    st.integers(0, 5),
)
def test_every_prefix_of_the_order_is_stratified(categories, seed):
    seeds = pd.DataFrame(
        {"n": range(len(categories)), "source": "s", "category": categories}
    )
    order = benchmarks.order_by_strata(seeds, seed)
    assert sorted(order["n"]) == seeds["n"].tolist()
    shares = seeds["category"].value_counts(normalize=True)
    for n in range(1, len(order) + 1):
        drawn = (
            order["category"].head(n).value_counts().reindex(shares.index, fill_value=0)
        )
        # a stratum is at most one row ahead or behind, and the others' rounding moves n
        # itself by one each
        assert (np.abs(drawn - shares * n) <= len(shares)).all()
    pd.testing.assert_frame_equal(order, benchmarks.order_by_strata(seeds, seed))


@needs_files
def test_the_published_files_hold_what_their_authors_say():
    seeds, left_out = benchmarks.read_benchmarks(FILES, ["harmless"])
    assert len(seeds) == 3386
    counts = left_out.set_index(["source", "reason"])["rows"]
    assert (
        counts["USEBench E-Bench"].sum() == 500
    )  # every one of them lies inside PHTest
    assert counts["PHTest v0.1", "label is controversial"] == 1191
    assert set(seeds.loc[seeds["source"] == "OR-Bench Hard-1K", "category"]) > {
        "illegal",
        "self-harm",
    }
    assert (
        len(benchmarks.read_xstest(str(SHARED / "xstest" / "xstest_prompts.csv")))
        == 450
    )


def script(name):
    return runpy.run_path(str(paths.BENCHMARKS_FOLDER / f"{name}.py"))


def guard(score):
    return Guard("mine", "1", score, 0.5, "policy", "unstated", "unstated", "")


def test_prompts_for_guards_are_distinct_and_those_given_come_first(recorded_corpus):
    prompts = script("guard_throughput")["prompts"]
    given = recorded_corpus.iloc[[0, 1, 0]]
    found = prompts(given, 1000)
    assert len(set(found)) == len(found) > 4 and set(given["text"]) < set(found)
    assert found == prompts(given, 1000) and set(prompts(given, 2)) == set(
        given["text"]
    )


def test_a_guard_is_stopped_after_the_batch_in_which_its_limit_passes(
    tiny_folder, prompts
):
    throughput = script("guard_throughput")
    measured, batch = throughput["measured"], throughput["BATCH"]
    asked = []

    def score(texts, answers=None):
        asked.append(len(texts))
        return np.zeros(len(texts))

    texts = [f"{i}" for i in range(2 * batch + 1)]
    assert measured(guard(score), texts, 0, 3)["prompts"] == batch
    assert asked == [1, batch, 1, 1, 1, 3]
    assert measured(guard(score), texts, np.inf, 3)["prompts"] == len(texts)
    _, score = chat.make_yes_no_guard({"model": str(tiny_folder)}, GuardNotes())
    row = measured(guard(score), prompts["text"].tolist(), np.inf, 2)
    assert (
        row["prompts"] == len(prompts)
        and row["ratio"] == row["one_by_one"] / row["together"]
    )


def test_the_table_of_guards_grows_guard_by_guard(tmp_path, monkeypatch, capsys):
    code = (
        "def score(texts):\n    return [0.0] * len(texts)\n\n\ndef dies(texts):\n    1"
        " / 0\n"
    )
    (tmp_path / "costly.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    version = packaged.metadata.version

    def without(name):
        if name == "hatesonar":
            raise packaged.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(packaged.metadata, "version", without)
    main = script("guard_throughput")["main"]
    monkeypatch.setitem(
        main.__globals__, "prompts", lambda given, most: ["a", "b", "c"][:most]
    )
    file = tmp_path / "table.csv"
    options = [
        "-n",
        "2",
        "--output",
        str(file),
        "--guards",
        "hatesonar",
        "costly:score",
        "costly:dies",
    ]
    monkeypatch.setattr("sys.argv", ["guard_throughput.py", *options])
    with pytest.raises(ZeroDivisionError):
        main()
    table = stores.read_file(file, "tables")
    assert table[["guard", "prompts"]].to_dict("split")["data"] == [["costly-score", 2]]
    assert stores.read_meta(file)["prompts"] == 2
    assert "left out: the package hatesonar is not installed" in capsys.readouterr().err


def test_prompts_for_a_veto_are_those_that_the_system_rejects():
    store, system = stores.Store("recorded"), "smollm2-135m-instruct-q4_1--safety"
    rejected = script("veto_cost")["rejected"]
    labels = store.read("labels", "paraguard_mini", system).set_index("prompt_id")[
        "label"
    ]
    assert set(labels[rejected(store, system, 5)["prompt_id"]]) == {"reject"}
    assert (
        len(rejected(store, system, 5)) == 5
        and len(rejected(store, system, 9999)) == (labels == "reject").sum()
    )


def test_a_veto_costs_its_rewordings_and_one_row_a_step(
    tiny_model, recorded_corpus, capsys
):
    veto = script("veto_cost")
    given = pd.concat(
        [
            recorded_corpus.head(2),
            pd.DataFrame({"prompt_id": ["none"], "text": ["Xyzzy!"]}),
        ]
    )
    again = reword.reword_prompts(given)
    asked, decided = [], []

    def answer(prompts):
        asked.append(len(prompts))
        return np.ones(len(prompts))

    def missing(prompts):
        raise Missing("no such package")

    systems = {
        "tiny": veto["chat"](tiny_model, "safety", 4, given),
        "mine": veto["System"](
            answer, lambda prompts, scores: decided.append(len(scores))
        ),
        "gone": veto["System"](missing, missing),
    }
    table = veto["measure"](systems, given)
    steps = ["first answer", "rewording", "asking again", "deciding", "veto, all three"]
    assert (
        table["system"].tolist() == ["tiny"] * 5 + ["mine"] * 5
        and table["step"].tolist() == steps * 2
    )
    assert table["queries"].to_numpy() == pytest.approx(
        [1, 0, len(again) / 3, 0, len(again) / 3] * 2
    )
    for _, own in table.groupby("system"):
        own = own.set_index("step")
        assert own.loc[steps[1:4], "ms"].sum() == pytest.approx(own.loc[steps[4], "ms"])
        assert own["ratio"].to_numpy() == pytest.approx(
            own["ms"] / own.loc[steps[0], "ms"]
        )
    sizes = again["cluster_id"].value_counts()
    # once to load; what has no rewording is not asked again
    assert asked == [
        1,
        *(n for one in given["prompt_id"] for n in (1, sizes.get(one, 0)) if n),
    ]
    assert (
        decided == [1, *(sizes[one] for one in given["prompt_id"] if one in sizes)]
        and "none" not in sizes
    )
    assert capsys.readouterr().err.startswith("left out: no such package")


@needs_files
@pytest.mark.slow
def test_no_text_of_the_benchmarks_is_in_the_repository():
    pool, _ = benchmarks.read_benchmarks(
        {name: str(file) for name, file in FILES.items()}, ("harmless", "controversial")
    )
    texts = [
        *pool["text"],
        *benchmarks.read_xstest(str(SHARED / "xstest" / "xstest_prompts.csv"))["text"],
    ]
    # what stands between marks that a file might escape
    runs = pd.Series(
        [max(re.split(r'["\\\r\n]', text), key=len).strip() for text in texts]
    )
    sampled = runs[runs.str.len() >= 35].sample(200, random_state=20251201).tolist()
    listed = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=paths.ROOT, check=True
    ).stdout
    read = 0
    for file in map(paths.ROOT.joinpath, listed.splitlines()):
        if file.suffix == ".parquet":
            columns = [column.dropna() for _, column in pd.read_parquet(file).items()]
            content = "\n".join(
                "\n".join(column)
                for column in columns
                if column.map(type).eq(str).all()
            )
        elif file.suffix not in (".png", ".pdf"):
            content = file.read_text(encoding="utf-8")
        else:
            continue
        read += 1
        assert not [text for text in sampled if text in content], file
    assert read > 300


def test_other_languages_follow_from_their_decisions_and_interpretations():
    folder, told = (
        paths.BENCHMARKS_FOLDER / "languages",
        pd.read_csv(paths.BENCHMARKS_FOLDER / "languages.csv"),
    )
    decided, read = (
        pd.read_csv(folder / f"{name}.csv") for name in ("decisions", "interpretations")
    )
    names = {
        "full_refusal": "reject",
        "partial_refusal": "reject",
        "full_compliance": "accept",
    }
    both = read.merge(decided).assign(first=read["first"].map(names)).dropna()
    for language in ("german", "spanish"):
        own, rows = (frame[frame["language"] == language] for frame in (decided, told))
        shares = own["label"].eq("reject").groupby(own["system"]).mean()
        assert rows.set_index("about")["frr"].dropna().to_dict() == pytest.approx(
            shares.to_dict(), abs=1e-5
        )
        pairs = both[both["language"] == language]
        kappa = cohen_kappa_score(pairs["label"], pairs["first"])
        assert rows.set_index("about").at["label and first", "kappa"] == pytest.approx(
            kappa, abs=1e-5
        )
        prompts = pd.read_csv(folder / f"prompts_{language}.csv")
        assert (
            prompts["text"].is_unique
            and prompts.groupby("cluster_id").size().tolist() == [6] * 40
        )
