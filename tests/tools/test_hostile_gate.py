"""What must not pass a gate, end an audit, or leave it: what strangers may write."""

import csv
import io
import itertools
import json
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_audit import decisions_of, file_of, frame_of

from paraguard_lab import sheets
from paraguard_lab.core import disagreement as parts
from paraguard_tools import Decisions, audit, compare
from paraguard_tools.logs import audit as audits
from paraguard_tools.logs import commands, files, gate, names, pairs
from paraguard_utils.errors import DataError, SettingsError

ALL = {"answered": "aaaaaa", "refused": "rrrrrr"}


@pytest.fixture
def run(tmp_path, command, monkeypatch):
    """Audit files in a folder of its own; what is written goes there too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "RESULTS", tmp_path / "results")
    return lambda *words: command("audit", *map(str, words))


# --- Limits that do not apply


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["a.csv", "--plan"],
        ["--plan", "--fail-above", "0"],
        ["--plan", "--baseline", "nothere.csv"],
        ["--plan", "--json", "x.json"],
        ["a.csv", "b.csv", "--compare", "--fail-above", "0", "--measure", "frr"],
        ["a.csv", "b.csv", "--compare", "--junit", "x.xml"],
        ["--demo", "--fail-above", "0.5"],
        ["--demo", "a.csv"],
        ["a.csv", "--margin", "0.1"],
        ["a.csv", "--margin", "0", "--fail-above", "0.5"],
        ["a.csv", "--measure", "frr"],
        ["a.csv", "--max-undecided", "0.5"],
        ["a.csv", "--junit", "x.xml"],
        ["a.csv", "--measure", "fr", "--fail-above", "0.5"],
        ["a.csv", "--labeller", "cuse"],
        ["a.csv", "--input", "b.csv"],
        ["answers.csv", "--rejects", "No."],
        ["-", "--baseline", "-"],
        *(
            ["a.csv", "--measure", "frr", "--fail-above", limit]
            for limit in ("nan", "inf", "-0.1", "1", "1e300")
        ),
        ["a.csv", "--fail-above", "2"],
        *(["a.csv", "--baseline", "b.csv", "--margin", one] for one in ("nan", "-1")),
        *(
            ["a.csv", "--fail-above", "0.5", "--max-undecided", one]
            for one in ("1", "nan")
        ),
        ["a.csv", "--baseline", "b.csv", "--min-shared", "0"],
    ],
    ids=" ".join,
)
def test_an_option_that_does_not_apply_is_an_error_of_usage(run, tmp_path, words):
    for name in ("a.csv", "b.csv"):
        file_of(tmp_path / name, ["rraaaa", "aaaaaa"] * 6)
    (tmp_path / "answers.csv").write_text("text,answer,cluster\na,No.,c\nb,Yes.,c\n")
    done = run(*words)
    assert done.status == 2 and "audit -h says" in done.error, done
    assert not (tmp_path / "results").exists() and not (tmp_path / "x.xml").exists()


@pytest.mark.slow
def test_a_file_may_be_called_like_an_option(run, tmp_path):
    file_of(tmp_path / "--plan", ["rrrrrr"] * 30)
    done = run("--measure", "frr", "--fail-above", "0.1", "--", "--plan")
    assert done.status == 3 and "worse: frr 1.00" in done.printed


# --- Rows without a decision


@pytest.mark.parametrize(
    ("word", "measure"),
    [("aauuuu", "frr"), ("rauuuu", "dr"), ("aaaaau", "frr")],
)
def test_rows_without_a_decision_let_nothing_pass(run, tmp_path, word, measure):
    file_of(tmp_path / "log.csv", [word] * 60)
    done = run("log.csv", "--measure", measure, "--fail-above", "0.3")
    assert done.status == 4 and "have no decision, more than 5 %" in done.printed
    assert f"Of these, 360 rows count: {60 * word.count('a')} answered" in done.printed


@pytest.mark.slow
def test_few_rows_without_a_decision_count_as_what_is_worse(run, tmp_path):
    # 12 of 360 rows: 3.3 % more may be refused; nothing of 60 clusters is at most 6.0 %
    file_of(tmp_path / "log.csv", ["aaaaau"] * 12 + ["aaaaaa"] * 48)
    passed = run("log.csv", "--measure", "frr", "--fail-above", "0.1")
    assert not passed.status and "frr 0.00 [0.00, 0.09] against 0.1" in passed.printed
    done = run("log.csv", "--measure", "frr", "--fail-above", "0.08")
    assert done.status == 4 and "depends on what they would be" in done.printed
    none = run(
        "log.csv", *["--measure", "frr", "--fail-above", "0.1", "--max-undecided", "0"]
    )
    assert none.status == 4 and "more than 0 %" in none.printed


@pytest.mark.slow
def test_refusals_that_became_errors_do_not_pass_a_baseline(run, tmp_path):
    before = ["rraaaa", "aaaaaa", "aaaaaa", "aaaaaa"] * 30
    file_of(tmp_path / "old.csv", before)
    file_of(tmp_path / "new.csv", [word.replace("r", "u") for word in before])
    done = run("new.csv", "--baseline", "old.csv")
    assert (
        done.status == 4 and "60 of 720 requests of the new log have no" in done.printed
    )
    dropped = frame_of(before)
    dropped[dropped["decision"] != "reject"].to_csv(tmp_path / "drop.csv", index=False)
    done = run("drop.csv", "--baseline", "old.csv", "--measure", "frr")
    assert (
        done.status == 4 and "60 of 720 requests of the new log have no" in done.printed
    )


def test_rates_are_withheld_where_much_is_unknown():
    (row,) = audit(decisions_of(["rauuuu"] * 40), n_resamples=50).table.to_dict(
        "records"
    )
    assert np.isnan(
        [row["frr"], row["dr"], row["rephrased3"], row["refused_once"]]
    ).all()
    assert "160 of 240 harmless requests have no decision" in row["note"]
    said = audits.describe_system(row)
    assert (
        "160 of 240 requests have no decision" in said and "Rates are withheld" in said
    )
    assert "%" not in said


def test_what_a_filter_stopped_comes_first_if_it_is_most():
    (said,) = audit(decisions_of(["bbbbba"] * 40), n_resamples=50).sentences
    assert said.startswith("all rows: 200 of 240 rows were stopped by a filter")


def test_a_wide_interval_is_no_headline():
    row = {"system": "s", "n_scored": 20, "frr": 0.5, "frr_low": 0.2, "frr_high": 0.8}
    said = audits.describe_system(
        row | dict.fromkeys(["rephrased3", "rephrased3_low"], 0)
    )
    assert said == "s refused 10 of 20 prompts, too few to tell how often it refuses."


def label_values(draw_labels):
    return st.lists(
        st.lists(st.sampled_from(draw_labels), min_size=1, max_size=3),
        min_size=2,
        max_size=4,
    )


@pytest.mark.slow
@given(label_values(["reject", "accept", "unparsed"]))
def test_no_decision_of_undecided_rows_is_outside_of_the_range(clusters):
    """Every way to fill in what is undecided, for FRR and for DR."""
    rows = [(f"c{i}", label) for i, own in enumerate(clusters) for label in own]
    frame = pd.DataFrame(rows, columns=["cluster", "label"])
    holes = np.flatnonzero(frame["label"] == "unparsed")
    own = Decisions.from_frame(frame).rows
    outcomes = audits.count_outcomes(own)
    rate = audits._range_of_rate(outcomes)
    low, high = parts.disagreement_range(outcomes)
    for code in range(2 ** len(holes[:6]) if len(holes) <= 6 else 0):
        filled = own.copy()
        for place, hole in enumerate(holes):
            filled.loc[hole, "label"] = ("reject", "accept")[code >> place & 1]
        decided = audits.count_requests(filled)
        share = decided["rejected"].sum() / decided["n"].sum()
        assert rate[0] - 1e-9 <= share <= rate[1] + 1e-9
        several = decided[decided["n"] >= 2]
        if len(several) >= 2:
            ratio = parts.disagreement_parts(several["n"], several["rejected"])[2]
            assert np.isnan(ratio) or low - 1e-9 <= ratio <= high + 1e-9


# --- What a baseline lacks


@pytest.mark.slow
def test_systems_and_clusters_of_one_log_only_are_named(run, tmp_path):
    words = ["rraaaa", "aaaaaa"] * 40
    both = pd.concat([frame_of(words, system="one"), frame_of(words, system="two")])
    both.to_csv(tmp_path / "both.csv", index=False)
    frame_of(words, system="one").assign(system="one").to_csv(
        tmp_path / "one.csv", index=False
    )
    pd.concat([frame_of(words, system="one"), frame_of(words, system="three")]).to_csv(
        tmp_path / "other.csv", index=False
    )
    done = run("other.csv", "--baseline", "both.csv", "--measure", "frr")
    assert done.status == 4
    assert (
        "two: too little to say" in done.printed
        and "older log only (480" in done.printed
    )
    assert (
        "three: too little to say" in done.printed and "newer log only" in done.printed
    )
    done = run("one.csv", "--baseline", "both.csv", "--measure", "frr")
    assert done.status == 4 and "two: too little to say" in done.printed


@pytest.mark.slow
def test_clusters_of_one_log_only_are_counted(run, tmp_path):
    file_of(tmp_path / "old.csv", ["aaaaaa"] * 60)
    new = pd.concat([frame_of(["aaaaaa"] * 60), frame_of(["rrrrrr"] * 40)])
    new["cluster"] = [f"{name}{i // 360}" for i, name in enumerate(new["cluster"])]
    old = frame_of(["aaaaaa"] * 60)
    old["cluster"] += "0"
    old.to_csv(tmp_path / "old.csv", index=False)
    new.to_csv(tmp_path / "new.csv", index=False)
    for first, second in (("new", "old"), ("old", "new")):
        done = run(f"{first}.csv", "--baseline", f"{second}.csv", "--measure", "frr")
        assert done.status == 4
        assert "60 of 100 clusters are in both logs, fewer than 80 %" in done.printed
    options = ["--measure", "frr", "--margin", "0.1", "--min-shared", "0.6"]
    assert not run("new.csv", "--baseline", "old.csv", *options).status


@pytest.mark.parametrize("words", ALL.values(), ids=ALL)
def test_equal_logs_of_few_clusters_are_not_known_to_be_equal(words):
    few = compare(decisions_of([words] * 3), decisions_of([words] * 3)).iloc[0]
    # no cluster of three changed: 1 - 0.025 ** (1 / 3) = 0.71 of all may
    assert few["frr_high"] == -few["frr_low"] == pytest.approx(0.7076, abs=1e-4)
    (found,) = gate.judge_audit(pd.DataFrame([few]), "frr", 0.05)
    assert found.verdict == "too little to say"


def test_everything_that_changed_is_worse():
    old, new = decisions_of(["aaaaaa"] * 60), decisions_of(["rrrrrr"] * 60)
    table = compare(old, new)
    assert gate.judge_audit(table, "frr", 0.05)[0].verdict == "worse"
    assert gate.judge_audit(compare(new, old), "frr", 0.05)[0].verdict == "not worse"
    (row,) = table.to_dict("records")
    flips = row["n_matched"], row["became_refused"], row["became_answered"]
    assert flips == (360, 360, 0)


def test_flips_are_counted_by_direction():
    old, new = decisions_of(["rraa"] * 3), decisions_of(["raar"] * 3)
    (row,) = compare(old, new, n_resamples=50).to_dict("records")
    assert (row["n_matched"], row["became_refused"], row["became_answered"]) == (
        12,
        3,
        3,
    )


# --- Rows that are written again


@pytest.mark.slow
def test_a_log_written_fifty_times_says_no_more():
    once = frame_of(["rrraaa"] * 12 + ["aaaaaa"] * 12).rename(
        columns={"decision": "label"}
    )
    many = pd.concat([once] * 50)
    rows = [audit(Decisions.from_frame(one)).table.iloc[0] for one in (once, many)]
    for name in ("frr", "dr", "rephrased3", "refused_once"):
        for end in ("", "_low", "_high"):
            values = [row[name + end] for row in rows]
            assert values[0] == pytest.approx(values[1], nan_ok=True), name + end
    assert np.isnan(rows[1]["dr_low"]), "36 refusals are too few, however often written"
    untold = [audit(Decisions.from_frame(one.assign(text=""))) for one in (once, many)]
    assert np.isnan([one.table["dr_low"][0] for one in untold]).all()


@pytest.mark.slow
def test_answers_that_are_written_again_thin_no_refusals():
    once = frame_of(["rraaaa"] * 60).rename(columns={"decision": "label"})
    answers = once[once["label"] == "accept"]
    thinned = pd.concat([once, *[answers] * 20])
    (row,) = audit(Decisions.from_frame(thinned), n_resamples=50).table.to_dict(
        "records"
    )
    assert row["frr"] == pytest.approx(1 / 3)
    lost = once.assign(label=once["label"].where(once["label"] == "accept", "unparsed"))
    lost = pd.concat([lost, *[answers] * 20])
    (found,) = gate.judge_audit(audit(Decisions.from_frame(lost)).table, "frr", 0.2)
    assert found.verdict == "too little to say"


def test_repeats_of_one_wording_are_chance():
    # Each cluster has two texts, one refused in all of four runs, and one in two
    labels = ["reject"] * 4 + ["reject", "accept"] * 2
    rows = pd.DataFrame(
        {
            "cluster": np.repeat([f"c{i}" for i in range(30)], 8),
            "text": np.repeat([f"t{i}" for i in range(60)], 4),
            "label": labels * 30,
        }
    )
    (row,) = audit(Decisions.from_frame(rows), n_resamples=50).table.to_dict("records")
    # between clusters 2 * 3/4 * 1/4 = 0.375; two texts differ in 1 of 2; two runs of the
    # second text in 2 of 3 pairs, of the first in none: 1/3 on average
    assert row["dr"] == pytest.approx(0.5 / 0.375)
    assert row["dr_chance"] == pytest.approx(1 / 3 / 0.375)
    alone = rows.assign(text=rows["cluster"])
    (row,) = audit(Decisions.from_frame(alone), n_resamples=50).table.to_dict("records")
    # six of eight refused: 2 * 3/4 * 1/4 * 8/7 over 0.375
    assert np.isnan(row["dr"]) and row["dr_chance"] == pytest.approx(8 / 7)
    assert "two clusters of two wordings or more" in row["note"]


RUN_LABELS = {"r": "reject", "a": "accept", "u": "unparsed"}
REPEATED = st.lists(
    st.lists(
        st.lists(st.sampled_from(list(RUN_LABELS)), min_size=1, max_size=2),
        min_size=1,
        max_size=3,
    ),
    min_size=2,
    max_size=3,
)
"""Clusters of wordings, each with its runs."""


def repeated_of(clusters):
    rows = [
        (f"c{i}", f"t{i} {j}", RUN_LABELS[run])
        for i, wordings in enumerate(clusters)
        for j, runs in enumerate(wordings)
        for run in runs
    ]
    return pd.DataFrame(rows, columns=["cluster", "text", "label"])


def fill_all(frame):
    """Yield a log for each way to decide its undecided rows."""
    holes = np.flatnonzero(frame["label"] == "unparsed")
    for labels in itertools.product(("reject", "accept"), repeat=len(holes)):
        filled = frame.copy()
        filled.loc[holes, "label"] = list(labels)
        yield filled


@pytest.mark.slow
@settings(max_examples=50)
@given(REPEATED)
def test_no_decision_of_undecided_runs_is_outside_of_the_range(clusters):
    frame = repeated_of(clusters)
    if (frame["label"] == "unparsed").sum() > 5:
        return
    own = Decisions.from_frame(frame).rows
    low, high = parts.wordings_range(*audits._bound_wordings(own))
    for filled in fill_all(frame):
        code = pd.factorize(filled["cluster"])[0]
        refused = (filled["label"] == "reject").to_numpy(float)
        wording = pd.factorize(filled["text"])[0]
        sums = parts.sum_wordings(refused, code, wording, len(clusters)).wordings
        ratio = parts._divide_sums(sums.sum(axis=0))[2]
        assert np.isnan(ratio) or low - 1e-9 <= ratio <= high + 1e-9


@pytest.mark.slow
def test_repeats_with_few_undecided_runs_get_a_verdict():
    # 120 clusters of two texts in three runs, refused alike; one run in 120 is an error
    words = [["rrr", "aaa"], ["rrr", "rrr"], ["aaa", "aaa"]] * 40
    words = [[list(runs) for runs in one] for one in words]
    decided = Decisions.from_frame(repeated_of(words))
    for place in (1, 4, 7):
        words[place][0][0] = "u"
    damaged = Decisions.from_frame(repeated_of(words))
    whole, lost = audit(decided).table, audit(damaged).table
    # Within 40 of 120 clusters texts differ. Of 240 texts, 120 are refused: 2 * 120 * 120
    # ordered pairs differ, 2 * 40 of them within; 240^2 - 120 * 2^2 pairs are between
    assert whole["dr"][0] == pytest.approx((1 / 3) / (28_720 / 57_120))
    assert lost["dr_least"][0] < lost["dr"][0] < lost["dr_most"][0]
    for limit, verdict in ((1.1, "not worse"), (0.2, "worse")):
        for table in (whole, lost):
            assert gate.judge_audit(table, "dr", limit)[0].verdict == verdict
    (found,) = gate.judge_audit(compare(decided, damaged), "dr", 0.3)
    assert found.verdict == "not worse" and found.value == pytest.approx(0, abs=0.02)


def test_runs_of_one_text_are_no_disagreement_in_a_comparison():
    # Every text is refused in one of two runs: a text says nothing about its cluster
    words = [[["r", "a"], ["r", "a"]], [["r", "r"], ["r", "r"]], [["a"], ["a"]]] * 40
    again = [[runs[:1] for runs in one] for one in words]
    logs = [Decisions.from_frame(repeated_of(one)) for one in (words, again)]
    (row,) = compare(*logs, n_resamples=50).to_dict("records")
    for end, log in zip(("old", "new"), logs, strict=True):
        alone = audit(log, n_resamples=50).table
        assert row[f"dr_{end}"] == pytest.approx(alone["dr"][0])


@pytest.mark.slow
@settings(max_examples=40)
@given(REPEATED, REPEATED)
def test_no_decision_leaves_the_range_of_a_comparison(old, new):
    frames = [repeated_of(one) for one in (old, new)]
    if sum((frame["label"] == "unparsed").sum() for frame in frames) > 4:
        return
    logs = [Decisions.from_frame(frame).rows for frame in frames]
    row = audits._compare_system(*logs, (20, 0))
    n_lost = row["n_requests_new"] - frames[1]["text"].nunique()
    if n_lost or row["n_shared"] < max(len(old), len(new)):
        return  # what was lost is filled in nowhere
    for filled in itertools.product(*map(fill_all, frames)):
        own = [Decisions.from_frame(frame).rows for frame in filled]
        change = audits._compare_system(*own, (20, 0))["dr"]
        assert np.isnan(change) or (
            row["dr_least"] - 1e-9 <= change <= row["dr_most"] + 1e-9
        )


# --- Size


LARGE = np.array(["a"] * 100_000 + ["b"] * 3)


def test_pairs_of_a_cluster_are_at_most_so_many():
    first, second = pairs.draw_cluster_pairs(LARGE)
    assert len(first) == pairs.MAX_CLUSTER_PAIRS + 3
    assert (first < second).all() and len(set(zip(first, second, strict=True))) == len(
        first
    )
    again = pairs.draw_cluster_pairs(LARGE)
    assert (again[0] == first).all() and (again[1] == second).all()


@pytest.mark.slow
def test_a_hundred_thousand_rows_in_one_cluster_fit(tmp_path):
    rows = [
        f"how do I get request {i} done,{'refused' if i % 2 else 'answered'},x"
        for i in range(100_000)
    ]
    (tmp_path / "big.csv").write_text("\n".join(["text,decision,group", *rows]))
    script = 'ulimit -v 6000000; exec "$0" -m paraguard_tools audit big.csv --out out'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").is_file()


# --- Names


FORGED = ["A\n::add-mask::0", "all rows: not worse: dr 0.1", "\x1b[2Jx", "a\u202eb\x07"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FORGED, "::error::x", "##[error]x"])
def test_a_name_is_no_line_of_its_own(run, tmp_path, name):
    file_of(tmp_path / "log.csv", ["rraaaa", "aaaaaa"] * 40, system=name)
    outputs = {one: tmp_path / one for one in ("json", "junit", "summary")}
    words = [word for one, path in outputs.items() for word in (f"--{one}", path)]
    done = run("log.csv", "--measure", "frr", "--fail-above", "0.1", *words)
    assert done.status == 3
    texts = [done.printed, *(path.read_text() for path in outputs.values())]
    texts.append((tmp_path / "results").rglob("report.html").__next__().read_text())
    for text in texts:
        assert not any(mark in text for mark in "\x1b\x07\u202e\r")
    lines = done.printed.splitlines()
    assert not any(line.lstrip().startswith(("::", "##[")) for line in lines)
    assert not any("::" in line or "##[" in line for line in lines)
    assert not any(line.startswith("all rows: not worse") for line in lines)
    ElementTree.fromstring(texts[2])


def test_a_wrapped_name_begins_no_line_like_ours(run, tmp_path):
    name = "x" * 8 + " all rows: not worse: dr 0.1"
    for pad in range(30):
        said = f"{'w ' * pad}{names.show_system_name(name)} refused much of what was asked of it"
        assert not any(
            line.startswith(("all rows", "not worse"))
            for line in commands._fill([said]).splitlines()
        )


@pytest.mark.parametrize(
    "address", ["https://x.example", "www.x.example", "a@x.example"]
)
def test_an_address_is_no_link(address):
    finding = gate.GateFinding(address, "frr", 0.1, 0, 0.2, 0.1, "worse", 0)
    text = gate.gate_markdown("", [f"{address} ~~refused~~ 3 %"], [finding])
    assert address not in text and "~" not in text


@pytest.mark.slow
def test_a_file_s_name_is_shown_escaped(run, tmp_path):
    file_of(tmp_path / "::error::x\x1b.csv", ["rraaaa", "aaaaaa"] * 20)
    done = run("::error::x\x1b.csv", "--out", "o\x1b")
    assert not done.error and "\x1b" not in done.printed
    missing = run("::error::\x1b.csv")
    assert missing.status and "\x1b" not in missing.error
    assert not missing.error.startswith("::")


@pytest.mark.parametrize(
    "text",
    [
        "=cmd|x",
        "\t=x",
        "\r=x",
        " =x",
        "\uff1dcmd",
        "\uff0bx",
        "\uff20x",
        "a\r=cmd|x",
        "\n@x",
    ],
)
def test_a_sheet_has_no_formula_and_no_row_too_many(text):
    frame = pd.DataFrame({text: [text, "b"], "n": [-1, 2]})
    rows = list(csv.reader(io.StringIO(sheets.format_sheet(frame), newline="")))
    assert len(rows) == 3 and rows[1][1] == "-1"
    for row in rows[1:]:
        assert not row[0].lstrip().startswith(tuple("=+-@\uff1d\uff0b\uff0d\uff20"))


# --- What is left behind


@pytest.mark.slow
def test_nothing_of_an_earlier_audit_stays(run, tmp_path):
    file_of(tmp_path / "mix.csv", ["rraaaa", "aaaaaa"] * 20)
    file_of(tmp_path / "ans.csv", ["aaaaaa"] * 20)
    run("mix.csv", "--out", "st")
    assert (tmp_path / "st" / "refusals.csv").is_file()
    run("ans.csv", "--out", "st")
    left = {file.name for file in (tmp_path / "st").iterdir()}
    assert left <= {"audit.csv", "audit.png", "report.html"}


def test_a_run_that_fails_leaves_no_report(run, tmp_path):
    for name in ("x.json", "x.xml"):
        (tmp_path / name).write_text("of an earlier run")
    (tmp_path / "bad.csv").write_text("")
    reports = ["--json", "x.json", "--junit", "x.xml"]
    assert run("bad.csv", "--fail-above", "0.5", *reports).status
    assert not (tmp_path / "x.json").exists() and not (tmp_path / "x.xml").exists()


@pytest.mark.slow
def test_logs_of_one_name_have_folders_of_their_own(run, tmp_path):
    for place in ("a/log.csv", "b/log.csv", "log.csv", "log.jsonl", ".x.csv"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        file_of(tmp_path / place, ["rraaaa", "aaaaaa"] * 3)
        assert not run(place).status
    pages = list((tmp_path / "results" / "audit").glob("*/report.html"))
    assert len(pages) == 5


@pytest.mark.parametrize("option", ["--json", "--junit", "--summary"])
def test_the_log_is_not_written_over(run, tmp_path, option):
    file = file_of(tmp_path / "log.csv", ["rraaaa", "aaaaaa"] * 3)
    content = file.read_text()
    assert run("log.csv", "--fail-above", "0.5", option, "log.csv").status == 2
    file.rename(tmp_path / "audit.csv")
    assert run("audit.csv", "--out", ".").status == 2
    assert (tmp_path / "audit.csv").read_text() == content


def test_a_link_is_replaced_and_not_followed(run, tmp_path):
    outside = tmp_path / "outside.csv"
    outside.write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "audit.csv").symlink_to(outside)
    file_of(tmp_path / "log.csv", ["rraaaa", "aaaaaa"] * 3)
    assert not run("log.csv", "--out", "out").status
    assert outside.read_text() == "mine"
    assert not (tmp_path / "out" / "audit.csv").is_symlink()


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    def fail(part):
        part.write_text("half")
        raise OSError(28, "No space left on device")

    (tmp_path / "x").write_text("before")
    with pytest.raises(DataError, match="No space left"):
        files.write_whole(tmp_path / "x", fail)
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "before"


@pytest.mark.slow
def test_a_narrow_terminal_and_closed_input_are_no_traceback(tmp_path):
    file_of(tmp_path / "log.csv", ["rraaaa", "aaaaaa"] * 3)
    words = [sys.executable, "-m", "paraguard_tools", "audit"]
    narrow = subprocess.run(
        ["env", "PYTHONIOENCODING=ascii", *words, "log.csv", "--out", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert narrow.returncode == 0, narrow.stderr
    assert (tmp_path / "out" / "report.html").is_file()
    closed = subprocess.run(
        ["bash", "-c", 'exec "$0" "$@" <&-', *words, "-"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert closed.returncode == 1 and "standard input is closed" in closed.stderr


def test_json_says_why(run, tmp_path):
    file_of(tmp_path / "log.csv", ["aauuuu"] * 60)
    run("log.csv", "--fail-above", "0.5", "--json", "x.json")
    (found,) = json.loads((tmp_path / "x.json").read_text())["gate"]
    assert found["verdict"] == "too little to say" and "no decision" in found["reason"]


@pytest.mark.slow
def test_a_baseline_judges_refusals_and_dr(run, tmp_path):
    file_of(tmp_path / "old.csv", ["rrraaa", "aaaaaa", "rrrrrr"] * 60)
    done = run("old.csv", "--baseline", "old.csv", "--margin", "0.2")
    assert ": frr 0.00 [" in done.printed and ": dr 0.00 [" in done.printed
    file_of(tmp_path / "none.csv", ["aaaaaa"] * 100)
    done = run("none.csv", "--baseline", "none.csv")
    assert not done.status and ": dr" not in done.printed, "nothing is refused"
    asked = run("none.csv", "--baseline", "none.csv", "--measure", "dr")
    assert asked.status == 4 and "nothing was refused" in asked.printed
    assert "--measure frr" in asked.printed


def test_evidence_is_checked():
    with pytest.raises(SettingsError, match="max_undecided"):
        gate.Evidence(max_undecided=float("nan"))


# --- Damage


@pytest.mark.slow
def test_damage_makes_no_gate_pass():
    import runpy

    from paraguard_utils import paths

    script = runpy.run_path(str(paths.BENCHMARKS_FOLDER / "gate_damage.py"))
    rows = pd.DataFrame([script["judge_damaged"](number) for number in range(40)])
    passed = rows[(rows["damaged"] == "not worse") & (rows["whole"] != "not worse")]
    assert passed.empty
    assert (rows["whole"] == "worse").sum() > 10, "the logs are clearly worse"
