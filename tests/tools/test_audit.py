"""The audit of anybody's decisions: what it measures, compares, gates and writes."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from paraguard_lab import false_refusal_rate, record, rephrasing_odds
from paraguard_lab.core import neighbours
from paraguard_lab.core.disagreement import disagreement_parts
from paraguard_lab.core.inference import two_sided_p
from paraguard_tools.logs import audit as audits
from paraguard_tools.logs import gate
from paraguard_utils import (
    Decisions,
    audit,
    compare,
    disagreement_ratio,
    isolation,
    paths,
    stores,
)
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate
from paraguard_utils.errors import DataError

NAMES = {"a": "accept", "r": "reject", "b": "blocked", "u": "unparsed"}


def frame_of(words, **more):
    """A cluster for each word: a accepts, r rejects, b is blocked, u unparsed."""
    rows = [
        (f"text {i} {j}", NAMES[letter], f"c{i}")
        for i, word in enumerate(words)
        for j, letter in enumerate(word)
    ]
    return pd.DataFrame(rows, columns=["text", "decision", "cluster"]).assign(**more)


def file_of(path, words, **more):
    frame_of(words, **more).to_csv(path, index=False)
    return path


def decisions_of(words, **more):
    return Decisions.from_frame(
        frame_of(words, **more).rename(columns={"decision": "label"})
    )


def row_of(words, **more):
    (row,) = audit(decisions_of(words, **more), n_resamples=200).table.to_dict(
        "records"
    )
    return row


def test_numbers_are_those_of_the_core():
    words = list(
        np.random.default_rng(0).permutation(
            ["rraaaa", "aaaaaa", "rrrrrr", "raaab"] * 40
        )
    )
    (row,) = audit(decisions_of(words)).table.to_dict("records")
    refused = [float(letter != "a") for word in words for letter in word]
    cluster = [i for i, word in enumerate(words) for _ in word]
    assert (row["system"], row["n"], row["n_scored"], row["n_reject"]) == (
        "all rows",
        920,
        920,
        400,
    )
    assert row["n_blocked"] == 40 and row["n_clusters"] == 160
    for name, found in {
        "frr": false_refusal_rate(refused, cluster, random_state=20251201),
        "dr": disagreement_ratio(refused, cluster, random_state=20251201),
        "rephrased1": rephrasing_odds(refused, cluster, tries=1, random_state=20251201),
        "rephrased3": rephrasing_odds(refused, cluster, random_state=20251201),
    }.items():
        assert (row[name], row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx(
            tuple(found)
        ), name
    assert row["rephrased1"] == pytest.approx(np.nanmean(isolation(refused, cluster)))
    # 80 of 160 words are of both kinds, 40 all refused; 360 of 880 rows are refused
    # where a stop is set aside
    assert (row["refused_once"], row["refused_always"]) == (0.75, 0.25)
    assert row["frr"] == pytest.approx(400 / 920) and row["frr_aside"] == pytest.approx(
        360 / 880
    )


def test_requests_that_should_be_refused_are_apart():
    words = ["rraaaa"] * 40 + ["rrrrrr", "rrraaa"] * 20
    harmful = [i >= 240 for i in range(480)]
    row = row_of(words, harmful=harmful)
    # harmless: two of six refused; a refused one meets four answers among five others
    # within three: 1 - 0 / 10 = 1
    assert (row["n_scored"], row["n_harmful"], row["frr"]) == (
        240,
        240,
        pytest.approx(1 / 3),
    )
    assert row["rephrased3"] == 1 and row["refused_always"] == 0
    # harmful: 180 of 240 refused; 60 of these have three answers among five others,
    # found in 1 - 0 / 10
    assert row["harmful_refused"] == 0.75 and row[
        "rephrased3_harmful"
    ] == pytest.approx(60 / 180)
    assert (
        row["rephrased3_difference"] == pytest.approx(2 / 3)
        and row["rephrased3_difference_low"] > 0
    )


def test_shared_words_split_dr(tmp_path):
    """Each cluster has texts of two groups of words, and the group alone decides."""
    rows = [
        (
            f"{['alpha beta gamma', 'other words here'][half]} c{i} {'x' * j}",
            f"c{i}",
            half == i % 2,
        )
        for i in range(200)
        for half in (0, 1)
        for j in (1, 2)
    ]
    file = tmp_path / "d.csv"
    pd.DataFrame(rows, columns=["text", "cluster", "refused"]).to_csv(file, index=False)
    (row,) = audit(Decisions.from_file(file), n_resamples=200).table.to_dict("records")
    assert (
        row["dr_most_words"] == 0 and row["dr_few_words"] > 1.9
    )  # half of unrelated pairs differ, all of these


def test_annotations_correct_the_rate():
    words = ["rraa"] * 100
    # every second refusal was read: one in four of these is none; of the answers read
    # all are
    read = ["reject", "", "", ""] * 75 + ["accept", "", "", ""] * 25
    read = [one or ("accept" if i % 4 == 2 else "") for i, one in enumerate(read)]
    row = row_of(words, annotation=read)
    assert row["frr"] == 0.5 and row["frr_read"] == pytest.approx(0.375)
    assert row["frr_read_low"] < 0.375 < row["frr_read_high"]


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["rraa"], "10 clusters with a refusal"),
        (["aa", "aa"], "DR is undefined"),
        (["rr", "rr"], "DR is undefined"),
        (["rraa"] * 12 + ["aaaa"] * 38, "takes 100 refusals, and as many answers"),
        (["rraa"] * 12 + ["aaaa"] * 38, "takes 30 refusals"),
    ],
)
def test_an_interval_that_cannot_be_relied_on_is_not_shown(words, note):
    row = row_of(words)
    assert note in row["note"]
    name = (
        "rephrased3"
        if "30 refusals" in note
        else "frr"
        if "clusters with a refusal" in note
        else "dr"
    )
    assert np.isnan(row[f"{name}_low"]) and np.isnan(row[f"{name}_high"])


@pytest.mark.slow
def test_the_gate_has_three_verdicts_and_fails_closed(tmp_path, command):
    words = ["rraaaa", "aaaaaa", "raaaaa", "rrrrrr"] * 30
    file = file_of(tmp_path / "d.csv", words)
    row = row_of(words)
    out = ["--out", str(tmp_path / "o")]
    for limit, verdict, status in (
        (row["dr_low"] - 0.05, "worse", 3),
        (row["dr_high"] + 0.05, "not worse", 0),
        (row["dr"] + 0.01, "too little to say", 4),
    ):
        done = command("audit", str(file), *out, "--fail-above", f"{limit:.3f}")
        assert f": {verdict}: dr" in done.printed and (done.status or 0) == status
    assert "clusters would be enough" in done.printed
    assert (tmp_path / "o" / "report.html").is_file(), (
        "what was found is there all the same"
    )
    nothing = file_of(tmp_path / "e.csv", ["aaaa"] * 50)
    assert command("audit", str(nothing), *out, "--fail-above", "0.5").status == 4, (
        "an undefined DR passes no gate"
    )
    assert gate.exit_status([]) == 4


def test_the_gate_says_how_many_clusters_would_do():
    row = {"system": "a", "dr": 0.5, "dr_low": 0.4, "dr_high": 0.6, "n_clusters": 100}
    (found,) = gate.judge_audit(pd.DataFrame([row]), "dr", 0.55)
    assert found.needed == 400, "half the distance needs four times the clusters"
    (undefined,) = gate.judge_audit(
        pd.DataFrame([row | {"dr": np.nan, "dr_low": np.nan, "dr_high": np.nan}]),
        "dr",
        0.55,
    )
    assert (
        undefined.verdict == "too little to say" and "nobody can tell" in undefined.line
    )


@pytest.mark.slow
def test_a_baseline_is_paired_by_cluster(tmp_path, command):
    old = ["rraaaa", "aaaaaa", "raaaaa", "rrrrrr"] * 40
    worse = [word.replace("aa", "ra", 1) for word in old]
    files = [
        file_of(tmp_path / f"{name}.csv", words)
        for name, words in (("old", old), ("worse", worse))
    ]
    out = ["--out", str(tmp_path / "o"), "--measure", "frr"]
    assert (
        command("audit", str(files[1]), "--baseline", str(files[0]), *out).status == 3
    )
    assert not command("audit", str(files[0]), "--baseline", str(files[1]), *out).status
    same = command("audit", str(files[0]), "--baseline", str(files[0]), *out)
    assert not same.status and "not worse: frr 0.00 [-0.02, 0.02]" in same.printed


@pytest.mark.slow
def test_comparing_pairs_clusters(tmp_path, command):
    old = ["rraa", "aaaa", "raaa", "rrrr", "rara"] * 24
    new = [word if i % 2 else "aaaa" for i, word in enumerate(old)]
    (row,) = compare(decisions_of(old), decisions_of(new)).to_dict("records")
    assert row["n_clusters"] == 120
    for end, words in (("old", old), ("new", new)):
        alone = row_of(words)
        for name in ("frr", "dr", "rephrased3"):
            assert row[f"{name}_{end}"] == pytest.approx(alone[name]), name
    assert (
        row["frr"] == pytest.approx(row["frr_new"] - row["frr_old"])
        and row["frr_high"] < 0
    )
    assert (
        row["dr"] == pytest.approx(row["dr_new"] - row["dr_old"])
        and row["dr_low"] < row["dr"] < row["dr_high"]
    )
    (same,) = compare(decisions_of(old), decisions_of(old)).to_dict("records")
    # Equal logs are no proof that nothing changes: the interval is exact, not 0
    assert same["dr"] == 0 and same["dr_low"] < 0 < same["dr_high"]
    assert same["p"] == 1
    files = [
        file_of(tmp_path / f"{name}.csv", words)
        for name, words in (("old", old), ("new", new))
    ]
    assert "120" in command("audit", *map(str, files), "--compare").printed
    assert "two with --compare" in command("audit", str(files[0]), "--compare").error
    bare = pd.DataFrame({"text": ["a", "b"], "decision": ["reject", "accept"]})
    bare.to_csv(tmp_path / "d.csv", index=False)
    assert (
        "two logs are compared by clusters"
        in command("audit", *[str(tmp_path / "d.csv")] * 2, "--compare").error
    )


@pytest.mark.slow
def test_a_plan_is_what_the_interval_becomes(command):
    words = list(
        np.random.default_rng(1).permutation(
            ["rraaaa", "aaaaaa", "raaaaa", "rrrrrr"] * 125
        )
    )
    decided = pd.DataFrame({"n": 6, "rejected": [word.count("r") for word in words]})
    clusters = ClusterBootstrap(decided.index)
    row = audits.plan_clusters(decided, clusters).set_index("clusters").loc[500]
    alone = row_of(words)
    for name in ("frr", "dr", "rephrased3"):
        assert row[name] == pytest.approx(
            (alone[f"{name}_high"] - alone[f"{name}_low"]) / 2, rel=0.15
        ), name
    assert row["refusals"] == decided["rejected"].sum()
    drawn = audits.simulate_clusters(0.2, 0.3, 6)
    assert drawn["rejected"].mean() / 6 == pytest.approx(0.2, abs=0.02)
    assert disagreement_parts(drawn["n"], drawn["rejected"])[2] == pytest.approx(
        0.3, abs=0.03
    )
    assert "20 % refused, DR 0.7" in command("audit", "--plan").printed


@pytest.mark.slow
def test_what_is_written_for_a_pipeline(tmp_path, command):
    file = file_of(tmp_path / "d.csv", ["rraaaa", "aaaaaa"] * 60, system="<b>|one\x07")
    made = {name: tmp_path / name for name in ("json", "junit", "summary")}
    options = [
        one for name, system in made.items() for one in (f"--{name}", str(system))
    ]
    done = command(
        "audit",
        str(file),
        "--fail-above",
        "0.01",
        "--out",
        str(tmp_path / "o"),
        *options,
    )
    assert done.status == 3
    found = json.loads(made["json"].read_text())
    assert found["gate"][0]["verdict"] == "worse" and found["systems"][0]["n"] == 720
    suite = ElementTree.fromstring(made["junit"].read_text())
    assert (
        suite.attrib["failures"] == "1" and suite.find("testcase/failure") is not None
    )
    summary = made["summary"].read_text()
    assert "**worse**" in summary and "<b>" not in summary and "&#124;one" in summary
    command(
        "audit",
        str(file),
        "--fail-above",
        "0.01",
        "--out",
        str(tmp_path / "o"),
        *options,
    )
    assert len(made["summary"].read_text()) == 2 * len(summary), (
        "a job's page is added to"
    )


@pytest.mark.slow
def test_the_demo_is_the_record(tmp_path, command):
    made = record.make_demo_log(stores.Store("recorded"))
    assert (paths.DATA / "demo.csv").read_text(encoding="utf-8") == made.to_csv(
        index=False
    )
    done = command("audit", "--demo", "--out", str(tmp_path / "o"))
    read, said = done.printed.split("\n\n")[:2]
    assert read.startswith(f"Read {len(made):,} rows")
    assert not done.error
    (ratio,) = re.findall("^disagreement ratio.*$", done.printed, re.MULTILINE)
    readme = (paths.ROOT / "README.md").read_text(encoding="utf-8")
    for shown in (said, ratio):
        assert f"```\n{shown}\n```" in readme


@pytest.mark.slow
def test_the_page_lists_a_refusal_only_if_another_wording_is_answered(
    tmp_path, command
):
    # The first request is refused in two of three wordings, the second in all.
    file = file_of(tmp_path / "d.csv", ["rra", "rrr", "aaa"])
    out = tmp_path / "out"
    assert not command("audit", str(file), "--out", str(out)).error
    page = (out / "report.html").read_text(encoding="utf-8")
    _, _, listed = page.partition("<h2>Refusals of which another wording is answered")
    assert listed.count("<td>0.5</td>") == 2 and "<td>0.0</td>" not in listed

    every = file_of(tmp_path / "every.csv", ["rrr", "aaa"])
    assert not command("audit", str(every), "--out", str(out)).error
    page = (out / "report.html").read_text(encoding="utf-8")
    _, _, listed = page.partition("<h2>Refusals of which another wording is answered")
    assert "None." in listed and "<td>" not in listed


def test_harmful_rows_are_counted_before_their_rate(tmp_path, command):
    # 80 harmless prompts, 20 + 20 refused; 80 harmful ones, 40 + 20 refused
    frame = pd.concat(
        [
            frame_of(["ra", "ra", "aa", "rr"] * 10).assign(harmful=False),
            frame_of(["rr", "ra"] * 20).assign(harmful=True),
        ]
    )
    frame["cluster"] = [f"{name}{i // 2}" for i, name in enumerate("c" * 160)]
    frame["text"] = [f"text {i}" for i in range(160)]
    frame.to_csv(tmp_path / "d.csv", index=False)
    done = command("audit", str(tmp_path / "d.csv"), "--out", str(tmp_path / "out"))
    said = " ".join(done.printed.split())
    assert "80 of them are marked harmful." in said
    assert "of 80 harmless prompts, and 75 %" in said
    assert "of 80 harmful ones." in said
    assert said.index("marked harmful") < said.index("refused 50 %")


@pytest.mark.slow
def test_the_last_line_leads_to_the_files_from_the_caller_s_folder(
    tmp_path, command, monkeypatch
):
    file = file_of(tmp_path / "d.csv", ["rra", "aaa"])
    monkeypatch.chdir(tmp_path)
    done = command("audit", str(file), "--out", "here")
    assert "written to here: audit.csv" in done.printed
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    done = command("audit", str(file), "--out", str(tmp_path / "here"))
    assert f"written to {tmp_path / 'here'}: audit.csv" in done.printed


@pytest.mark.slow
def test_the_page_escapes_what_the_file_says(tmp_path, command):
    file = file_of(tmp_path / "<b>d.csv", ["rraa", "aaaa", "raaa"])
    frame = pd.read_csv(file)
    frame["text"] = "<script>alert(1)</script>"
    frame.loc[0, "text"] = "=cmd()"
    frame.to_csv(file, index=False)
    assert not command("audit", str(file), "--out", str(tmp_path / "out")).error
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<script>" not in page and "&lt;script&gt;" in page and "<b>d" not in page
    assert (
        "http" not in page.replace("http-equiv", "") and 'src="data:image/png' in page
    )
    assert "'=cmd()" in (tmp_path / "out" / "refusals.csv").read_text(encoding="utf-8")


@pytest.mark.slow
def test_names_are_no_formulas_no_mathematics_and_cut(tmp_path, command):
    file = file_of(tmp_path / "d.csv", ["rraa", "aaaa", "raaa"])
    frame = pd.read_csv(file).assign(system="=cmd $\\frac$" + "y" * 5000)
    frame["cluster"] = "=" + frame["cluster"]
    frame.to_csv(file, index=False)
    assert not command("audit", str(file), "--out", str(tmp_path / "out")).error
    for name in ("audit.csv", "refusals.csv", "brittle_clusters.csv"):
        cells = (tmp_path / "out" / name).read_text(encoding="utf-8")
        assert "'=cmd" in cells and ",=" not in cells and "\n=" not in cells
    assert (
        "y" * 100
        not in (tmp_path / "out" / "report.html")
        .read_text(encoding="utf-8")
        .partition("<table")[2]
    )


def test_rows_alone_count_for_the_rate_only():
    row = row_of(["aa", "aa", "r"])
    assert row["frr"] == pytest.approx(1 / 5) and np.isnan(row["dr"]), (
        "one of five is refused, without a paraphrase"
    )
    with pytest.raises(DataError, match="no cluster has two rows"):
        audit(decisions_of(["r", "a"]))


def test_systems_are_apart_and_one_without_decisions_has_no_numbers():
    frame = frame_of(["rraa", "aaaa"] * 20, system=["one"] * 80 + ["two"] * 80)
    frame.loc[80:, "decision"] = "unparsed"
    found = audit(
        Decisions.from_frame(frame.rename(columns={"decision": "label"})),
        n_resamples=100,
    ).table
    assert found["system"].tolist() == ["one", "two"] and found[
        "n_scored"
    ].tolist() == [80, 0]
    assert np.isnan(found["frr"][1]) and found["frr"][0] == 0.25


def grouped(rng, n_groups, size=4, dimensions=24):
    """Draw vectors that are near each other in groups, and rejections that follow the
    group.
    """
    middle = rng.normal(size=(n_groups, dimensions))
    vectors = np.repeat(middle, size, axis=0) + 0.25 * rng.normal(
        size=(n_groups * size, dimensions)
    )
    return vectors, rng.random(n_groups * size) < np.repeat(
        rng.beta(0.5, 1, n_groups), size
    )


def test_neighbours_by_loops():
    vectors, rejected = grouped(np.random.default_rng(1), 30)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = neighbours.find_neighbours(vectors, rejected, 0.6)
    leaders = []
    for i in range(len(unit)):
        near = [
            j for j in range(len(unit)) if j != i and float(unit[i] @ unit[j]) >= 0.6
        ]
        assert found.near[i] == len(near) and found.near_rejected[i] == sum(
            rejected[j] for j in near
        )
        led = [g for g, leader in enumerate(leaders) if leader in near]
        if not led:
            leaders.append(i)
        assert found.groups[i] == (led[0] if led else len(leaders) - 1)


def test_neighbours_stand_for_clusters():
    vectors, rejected = grouped(np.random.default_rng(3), 200)
    near = neighbours.find_neighbours(vectors, rejected)
    groups = np.repeat(np.arange(200), 4)
    counts = pd.DataFrame(
        {
            "cluster_id": range(200),
            "n": 4,
            "rejected": np.bincount(groups, weights=rejected),
        }
    )
    by_cluster = disagreement.estimate_disagreement(
        ClusterBootstrap(range(200)), counts
    )
    by_near = neighbours.estimate_neighbour_disagreement(
        ClusterBootstrap(near.groups), near, rejected
    )
    assert tuple(by_near) == pytest.approx(tuple(by_cluster), abs=0.1)
    # every prompt's neighbours are its cluster: the same number
    others = counts["rejected"].to_numpy()[groups] - rejected
    clusters = ClusterBootstrap(groups)
    whole = neighbours.Neighbourhoods(np.full(800, 3), others, groups)
    own = neighbours.estimate_neighbour_disagreement(clusters, whole, rejected)
    assert own[0] == pytest.approx(by_cluster[0], rel=1e-12)
    none = np.zeros(800, int)
    apart = neighbours.Neighbourhoods(none, none, groups)
    alone = neighbours.estimate_neighbour_disagreement(clusters, apart, rejected)
    assert np.isnan(alone).all()


@pytest.mark.slow
def test_texts_without_clusters_are_embedded(tmp_path, command, recorded_corpus):
    rows = recorded_corpus.head(120)[["text"]].assign(
        decision=["reject", "accept", "accept"] * 40
    )
    rows.to_csv(tmp_path / "d.csv", index=False)
    done = command("audit", str(tmp_path / "d.csv"), "--out", str(tmp_path / "out"))
    assert not done.error.count("Error") and "all rows" in done.printed
    table = pd.read_csv(tmp_path / "out" / "audit.csv")
    assert table["n_near"][0] > 100


def test_a_system_that_decides_nothing_near_has_no_numbers():
    frame = pd.DataFrame(
        {
            "label": ["reject", "accept", "unparsed", "unparsed"],
            "system": ["one", "one", "two", "two"],
        }
    )
    found = audit(Decisions.from_frame(frame), vectors=np.ones((4, 3)), n_resamples=100)
    assert found.table["note"].tolist()[
        1
    ] == "no row is answered or refused" and np.isnan(found.table["frr"][1])
    single = Decisions.from_frame(pd.DataFrame({"label": ["reject"]}))
    one = audit(single, vectors=np.ones((1, 3)), n_resamples=100)
    assert (
        np.isnan(one.table["dr"][0])
        and "DR is undefined" in one.table["note"][0]
        and one.refusals.empty
    )


def test_p_is_twice_the_smaller_share():
    # of ten draws two lie at or below zero: 2 * (1 + 2) / (1 + 10)
    found = Estimate(0.5, 0, 1, np.array([-1.0, 0, *[1] * 8]))
    assert two_sided_p(found) == pytest.approx(6 / 11)
    assert np.isnan(two_sided_p(Estimate(0.5, 0, 1, np.array([np.nan, 1]))))
