"""Seeds from public benchmarks: formats, duplicates, bad files, stratified order."""

import re
import subprocess

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import large_string, parquet, string

from paraguard_lab.corpus import benchmarks, xstest
from paraguard_utils import paths
from paraguard_utils.errors import DataError, SettingsError

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
        (b"", "cannot be read"),
        (b"ID,Request,Harmfulness\n", "there are no rows"),
        (b"ID,Text,Harmfulness\n1,a,harmless\n", "column 'Request' is missing"),
        (
            b"ID,Request,Harmfulness\n1,a,harmless\n1,b,harmless\n",
            "row 3, column ID: '1' stands there twice",
        ),
        (b"ID,Request,Harmfulness\n1,caf\xe9,harmless\n", "row 2 is not UTF-8"),
        (b"ID,Request,Harmfulness\n1,a,controversial\n", "no row is labelled harmless"),
        (
            b"ID,Request,Harmfulness\n1,a,harmless,x,y\n2,b\n3,c,d,e,f,g\n",
            "cannot be read",
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
    assert len(xstest.read_xstest(str(SHARED / "xstest" / "xstest_prompts.csv"))) == 450


@needs_files
@pytest.mark.slow
def test_no_text_of_the_benchmarks_is_in_the_repository():
    pool, _ = benchmarks.read_benchmarks(
        {name: str(file) for name, file in FILES.items()}, ("harmless", "controversial")
    )
    texts = [
        *pool["text"],
        *xstest.read_xstest(str(SHARED / "xstest" / "xstest_prompts.csv"))["text"],
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
            fields = parquet.read_schema(file)
            names = [
                one.name for one in fields if one.type in (string(), large_string())
            ]
            columns = pd.read_parquet(file, columns=names)
            content = "\n".join("\n".join(columns[name].dropna()) for name in names)
        elif file.suffix not in (".png", ".pdf"):
            content = file.read_text(encoding="utf-8")
        else:
            continue
        read += 1
        assert not [text for text in sampled if text in content], file
    assert read > 300
