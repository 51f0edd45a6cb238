"""Anybody's decisions: reading, measuring, comparing, and one line for every bad file."""

import numpy as np
import pandas as pd
import pytest

from paraguard_utils.core import disagreement, neighbours
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.errors import DataError
from paraguard_utils.report import audit
from paraguard_utils.scoring import evaluation


def file_of(path, words, **more):
    """A CSV file with a cluster a word: a accepts, r rejects."""
    names = {"a": "accept", "r": "reject", "b": "blocked"}
    rows = [(f"text {i} {j}", names[letter], f"c{i}") for i, word in enumerate(words) for j, letter in enumerate(word)]
    frame = pd.DataFrame(rows, columns=["text", "decision", "cluster"]).assign(**more)
    frame.to_csv(path, index=False)
    return path


def test_numbers_are_those_of_the_estimators(tmp_path):
    words = list(np.random.default_rng(0).permutation(["rraaaa", "aaaaaa", "rrrrrr", "raaab"] * 40))
    found = audit.read(file_of(tmp_path / "d.csv", words))
    table = audit.systems(found)
    (row,) = table.to_dict("records")
    label = pd.DataFrame({"label": [{"a": "accept", "r": "reject", "b": "blocked"}[x] for word in words for x in word]})
    cluster = pd.DataFrame({"cluster_id": [f"c{i}" for i, word in enumerate(words) for _ in word]})
    decided = evaluation.tally(cluster, label)
    assert row["dr"] == pytest.approx(disagreement.ratio(decided["n"], decided["rejected"])[2])
    assert row["isolation"] == pytest.approx(np.nanmean(evaluation.isolation(cluster, label)))
    assert (row["system"], row["n"], row["n_scored"], row["n_reject"]) == ("all rows", 920, 880, 360)
    assert row["frr"] == pytest.approx(360 / 880) and row["frr_low"] < row["frr"] < row["frr_high"]
    exact = disagreement.estimate(ClusterBootstrap(cluster["cluster_id"]), decided)
    assert (row["dr_low"], row["dr_high"]) == pytest.approx(tuple(exact[1:]), abs=0.02)
    listed = audit.rejections(found)
    assert len(listed) == 360 and listed["isolation"].max() == 1, "raaab: three of three others accept"


def test_chunks_change_nothing(tmp_path, monkeypatch):
    file = file_of(tmp_path / "d.csv", ["rraa", "aaaa", "raaa", "rrrr"] * 5, system=["one", "two"] * 40)
    whole = audit.systems(audit.read(file), 50)
    first = audit.texts(audit.read(file), np.array([0, 37, 79]))
    monkeypatch.setattr(audit, "BLOCK", 200)
    again = audit.systems(audit.read(file), 50)
    pd.testing.assert_frame_equal(whole, again)
    assert whole["system"].tolist() == ["one", "two"]
    assert audit.texts(audit.read(file), np.array([0, 37, 79])).to_dict() == first.to_dict()
    assert first[37] == "text 9 1"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "the file is empty"),
        ("text,decision,cluster\n", "there are no rows"),
        ("text,cluster\na,c\n", "there is no column 'decision'"),
        ("decision\naccept\n", "neither a column 'cluster' nor 'text'"),
        ("text,decision,cluster\na,accept,c\nb,maybe,c\n", "row 3: the decision 'maybe' is none of accept, reject, bl"),
        ("text,decision,cluster\na,accept,c\nb,,c\n", "row 3: decision is blank"),
        ("text,decision,cluster\na,accept,c\nb,reject, \n", "row 3: cluster is blank"),
        ("text,decision,cluster\na,accept,c\nb,reject,c,d,e\n", "Row #3: Expected 3 columns, got 5"),
        ('text,decision,cluster\na,accept,c\n"b,reject,c\n', "Row #3: Expected 3 columns, got 1"),
        ("text,decision,cluster\na,accept,\xff\xfe\n", "cluster is not UTF-8 behind row 1"),
        ("text,decision,cluster\na,reject,c\n", "no cluster has two rows"),
        ("text,decision,cluster\na,reject,c\nb,accept,d\n", "no cluster has two rows"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, command, content, line):
    file = tmp_path / "bad.csv"
    file.write_bytes(content.encode("latin-1"))
    done = command("audit", str(file), "--out", str(tmp_path / "out"))
    assert line in done.error and str(file) in done.error and "\n" not in done.error.strip(), done.error
    assert not (tmp_path / "out").exists(), "nothing is written"


def test_one_cluster_or_one_mind_is_told_so(tmp_path):
    rows = {"one cluster": ["rraa"], "never": ["aa", "aa"], "always": ["rr", "rr"], "whole": ["rr", "aa"]}
    told = {name: audit.systems(audit.read(file_of(tmp_path / "d.csv", words))) for name, words in rows.items()}
    notes = {name: table["note"][0] for name, table in told.items()}
    assert "fewer than two clusters" in notes["one cluster"] and "no row with" in notes["never"]
    assert "every row with" in notes["always"] and "no cluster is decided both ways" in notes["whole"]
    assert told["whole"]["dr"][0] == 0 and told["one cluster"]["dr"].isna().all()


def test_other_names_and_other_decisions(tmp_path, command):
    file = file_of(tmp_path / "d.csv", ["rraa", "aaaa", "raaa", "rrrr"] * 5)
    frame = pd.read_csv(file).replace({"decision": {"accept": "1_yes", "reject": "2_no", "blocked": "3_part"}})
    frame = frame.rename(columns={"decision": "verdict", "cluster": "meaning"})
    frame.to_csv(tmp_path / "other.csv", index=False)
    named = ["--decision", "verdict", "--cluster", "meaning", "--rejects", "2_no", "--out", str(tmp_path / "out")]
    done = command("audit", str(tmp_path / "other.csv"), *named)
    assert done.error == "" and "all rows" in done.printed
    same = audit.systems(audit.read(file))
    assert pd.read_csv(tmp_path / "out" / "audit.csv")["dr"][0] == pytest.approx(same["dr"][0])
    missing = command("audit", str(tmp_path / "other.csv"), *named, "--rejects", "never")
    assert "no decision is 'never'; there are" in missing.error


def test_the_gate_fails_above_its_limit(tmp_path, command):
    file = file_of(tmp_path / "d.csv", ["rraa", "aaaa", "raaa", "rrrr"] * 5)
    value = audit.systems(audit.read(file))["dr"][0]
    passed = command("audit", str(file), "--out", str(tmp_path / "o"), "--fail-above", str(value + 0.01))
    failed = command("audit", str(file), "--out", str(tmp_path / "o"), "--fail-above", str(value - 0.01))
    assert passed.error == "" and "is above" in failed.error
    assert (tmp_path / "o" / "report.html").is_file(), "what was found is there all the same"


def test_the_page_escapes_what_the_file_says(tmp_path, command):
    file = file_of(tmp_path / "<b>d.csv", ["rraa", "aaaa", "raaa"])
    frame = pd.read_csv(file)
    frame["text"] = "<script>alert(1)</script>"
    frame.loc[0, "text"] = "=cmd()"
    frame.to_csv(file, index=False)
    assert command("audit", str(file), "--out", str(tmp_path / "out")).error == ""
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<script>" not in page and "&lt;script&gt;" in page and "<b>d" not in page
    assert "http" not in page.replace("http-equiv", "") and 'src="data:image/png' in page
    assert "'=cmd()" in (tmp_path / "out" / "isolated.csv").read_text(encoding="utf-8")


def test_comparing_pairs_clusters(tmp_path, command):
    old = ["rraa", "aaaa", "raaa", "rrrr", "rara"] * 12
    new = [word if i % 2 else "aaaa" for i, word in enumerate(old)]
    files = [file_of(tmp_path / f"{name}.csv", words) for name, words in (("old", old), ("new", new))]
    (row,) = audit.compared(*map(audit.read, files)).to_dict("records")
    assert row["n_clusters"] == 60
    for end, words in (("old", old), ("new", new)):
        table = audit.systems(audit.read(file_of(tmp_path / "x.csv", words)))
        assert row[f"dr_{end}"] == pytest.approx(table["dr"][0]) and row[f"frr_{end}"] == pytest.approx(table["frr"][0])
    assert row["frr"] == pytest.approx(row["frr_new"] - row["frr_old"]) and row["frr_high"] < 0
    (same,) = audit.compared(audit.read(files[0]), audit.read(files[0])).to_dict("records")
    assert same["dr"] == same["dr_low"] == same["dr_high"] == 0 and same["p"] == 1
    assert "60" in command("audit", *map(str, files), "--compare").printed
    assert "two with --compare" in command("audit", str(files[0]), "--compare").error


def grouped(rng, n_groups, size=4, dimensions=24):
    """Vectors near each other in groups, far from those of others, and rejections that follow the group."""
    middle = rng.normal(size=(n_groups, dimensions))
    vectors = np.repeat(middle, size, axis=0) + 0.25 * rng.normal(size=(n_groups * size, dimensions))
    return vectors, rng.random(n_groups * size) < np.repeat(rng.beta(0.5, 1, n_groups), size)


def test_neighbours_by_loops():
    vectors, rejected = grouped(np.random.default_rng(1), 30)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = neighbours.find(vectors, rejected, 0.6)
    leaders = []
    for i in range(len(unit)):
        near = [j for j in range(len(unit)) if j != i and float(unit[i] @ unit[j]) >= 0.6]
        assert found.near[i] == len(near) and found.near_rejected[i] == sum(rejected[j] for j in near)
        led = [g for g, leader in enumerate(leaders) if leader in near]
        if not led:
            leaders.append(i)
        assert found.groups[i] == (led[0] if led else len(leaders) - 1)
    assert found.recall == 1


def test_the_approximate_index_finds_nearly_all(monkeypatch):
    vectors, rejected = grouped(np.random.default_rng(2), 300)
    exact = neighbours.find(vectors, rejected, 0.6)
    monkeypatch.setattr(neighbours, "EXACT", 100)
    found = neighbours.find(vectors, rejected, 0.6)
    assert 0.95 < found.recall <= 1 and (found.near == exact.near).mean() > 0.9


def test_neighbours_stand_for_clusters():
    vectors, rejected = grouped(np.random.default_rng(3), 200)
    near = neighbours.find(vectors, rejected)
    groups = np.repeat(np.arange(200), 4)
    counts = pd.DataFrame({"n": 4, "rejected": np.bincount(groups, weights=rejected)})
    by_cluster = disagreement.estimate_of_profiles(disagreement.cluster_profiles(counts))
    by_near = disagreement.estimate_near(near.groups, rejected, near.near, near.near_rejected)
    assert tuple(by_near) == pytest.approx(tuple(by_cluster), abs=0.1)
    # every prompt's neighbours are its cluster: the same number
    own = disagreement.estimate_near(
        groups, rejected, np.full(800, 3), counts["rejected"].to_numpy()[groups] - rejected
    )
    assert own[0] == pytest.approx(by_cluster[0], rel=1e-12)
    alone = disagreement.estimate_near(groups, rejected, np.zeros(800, int), np.zeros(800, int))
    assert np.isnan(alone).all()


@pytest.mark.slow
def test_texts_without_clusters_are_embedded_once(tmp_path, command, recorded_corpus, capsys, monkeypatch):
    monkeypatch.setattr(audit, "FIRST", 30)
    monkeypatch.setattr(audit, "PART", 50)
    rows = recorded_corpus.head(120)[["text"]].assign(decision=["reject", "accept", "accept"] * 40)
    rows.to_csv(tmp_path / "d.csv", index=False)
    done = command("audit", str(tmp_path / "d.csv"), "--out", str(tmp_path / "out"))
    assert done.error == "" and "all rows" in done.printed
    assert len(list((tmp_path / "out" / "vectors.parts").glob("part-*.parquet"))) == 3
    table = pd.read_csv(tmp_path / "out" / "audit.csv")
    assert table["n_near"][0] > 100 and table["recall"][0] == 1
    monkeypatch.setattr("paraguard_utils.models.encoder.encode", None)  # nothing is embedded again
    assert command("audit", str(tmp_path / "d.csv"), "--out", str(tmp_path / "out")).error == ""


def test_a_file_of_one_row_has_no_neighbours(tmp_path):
    pd.DataFrame({"text": ["a"], "decision": ["reject"]}).to_csv(tmp_path / "d.csv", index=False)
    found = audit.read(tmp_path / "d.csv")
    assert not found.clustered
    table, listed = audit.without_clusters(found, np.ones((1, 3)))
    assert np.isnan(table["dr"][0]) and "DR is undefined" in table["note"][0] and listed.empty
    with pytest.raises(DataError, match="no cluster has two rows"):
        audit.systems(audit.read(file_of(tmp_path / "e.csv", ["r", "a"])))


@pytest.mark.parametrize(
    ("content", "arguments", "line"),
    [
        ("text,decision,cluster\na,accept,c\n", ["--cluster", "decision"], "one column cannot be two things"),
        ("text,d\xe9cision\na,accept\n", [], "its header is not UTF-8"),
    ],
)
def test_bad_names_are_one_line(tmp_path, command, content, arguments, line):
    file = tmp_path / "bad.csv"
    file.write_bytes(content.encode("latin-1"))
    assert line in command("audit", str(file), *arguments).error


def test_comparing_needs_clusters(tmp_path, command):
    pd.DataFrame({"text": ["a", "b"], "decision": ["reject", "accept"]}).to_csv(tmp_path / "d.csv", index=False)
    assert "two files are compared by clusters" in command("audit", *[str(tmp_path / "d.csv")] * 2, "--compare").error


def test_names_are_no_formulas_and_no_mathematics(tmp_path, command):
    file = file_of(tmp_path / "d.csv", ["rraa", "aaaa", "raaa"])
    frame = pd.read_csv(file).assign(system="=cmd $\\frac$")
    frame["cluster"] = "=" + frame["cluster"]
    frame.to_csv(file, index=False)
    assert command("audit", str(file), "--out", str(tmp_path / "out")).error == ""
    for name in ("audit.csv", "isolated.csv", "brittle_clusters.csv"):
        cells = (tmp_path / "out" / name).read_text(encoding="utf-8")
        assert "'=cmd" in cells and ",=" not in cells and "\n=" not in cells


def test_rows_alone_count_for_the_rate_only(tmp_path):
    file = file_of(tmp_path / "d.csv", ["aa", "aa", "r"])
    (row,) = audit.systems(audit.read(file)).to_dict("records")
    # one of five is rejected, but it has no paraphrase
    assert row["frr"] == pytest.approx(1 / 5) and np.isnan(row["dr"])
    assert "no row with a paraphrase is rejected" in row["note"]


def test_a_system_without_decisions_has_no_numbers(tmp_path):
    rows = pd.DataFrame({"text": list("abcd"), "decision": ["reject", "accept", "blocked", "unparsed"]})
    rows.assign(system=["one", "one", "two", "two"]).to_csv(tmp_path / "d.csv", index=False)
    table, _ = audit.without_clusters(audit.read(tmp_path / "d.csv"), np.ones((4, 3)))
    assert table["note"].tolist()[1] == "no row is accepted or rejected" and np.isnan(table["frr"][1])
