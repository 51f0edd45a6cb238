"""The leaderboard: files follow from their decisions, ties are ties, and the page
follows from the files.
"""

import json
import sys

import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt

from paraguard_utils import paths, registry, stores
from paraguard_utils.errors import DataError

sys.path.insert(0, str(paths.ROOT / "leaderboard"))
import board

SAFETY = "smollm2-135m-instruct-q4_1--safety"


def changed(tmp_path, change):
    """Write a file that differs from a real one, and return its path."""
    own = json.loads((board.RESULTS / f"{SAFETY}.json").read_text(encoding="utf-8"))
    change(own)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(own), encoding="utf-8")
    return path


def details(own):
    return own["eval_library"]["additional_details"]


@pytest.mark.slow
def test_recorded_systems_are_on_the_board_with_their_recorded_decisions():
    files = {path.stem for path in board.RESULTS.glob("*.json")}
    assert files >= set(registry.published_systems("chat").index)
    own = board.check_file(board.RESULTS / f"{SAFETY}.json")
    rows = board.decided_rows(details(own), board.read_corpora())
    record = [
        stores.Store("recorded").read("labels", corpus, SAFETY)["label"]
        for corpus in board.CORPORA.values()
    ]
    assert rows["label"].tolist() == [one for labels in record for one in labels]


@pytest.mark.slow
def test_a_system_is_added_from_its_labels(tmp_path, monkeypatch, capsys):
    committed = board.check_file(board.RESULTS / f"{SAFETY}.json")
    monkeypatch.setattr(board, "RESULTS", tmp_path)
    board.main(["add", SAFETY, "--created", committed["retrieved_timestamp"]])
    added = board.check_file(tmp_path / f"{SAFETY}.json")
    for one in (committed, added):
        one.pop("evaluation_results")
    assert added == committed


def test_add_lists_the_systems_of_a_store(results, monkeypatch, tmp_path):
    monkeypatch.setattr(board, "RESULTS", tmp_path)
    known = ", ".join(sorted(registry.published_systems("chat").index))
    for words, problem in (
        ([], "name one"),
        (["SYSTEM"], "there is no system 'SYSTEM'"),
        (["../../" + SAFETY], f"there is no system '../../{SAFETY}'"),
        (["x\n::error::y"], r"there is no system 'x\\n::error::y'"),
    ):
        with pytest.raises(SystemExit) as error:
            board.main(["add", *words])
        assert str(error.value) == f"{problem}; systems in the store recorded: {known}"
    with pytest.raises(SystemExit, match=r"store live: none; run 02 with a model"):
        board.main(["add", "--store", "live", SAFETY])
    with pytest.raises(SystemExit, match="parameter 'store'"):
        board.main(["add", "--store", "../data", SAFETY])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_file_is_replaced_on_request_only(tmp_path, monkeypatch):
    monkeypatch.setattr(board, "RESULTS", tmp_path)
    path = tmp_path / f"{SAFETY}.json"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"is there already; .* --replace"):
        board.main(["add", SAFETY])
    assert path.read_text(encoding="utf-8") == "mine"
    board.main(["add", SAFETY, "--replace"])
    assert board.check_file(path)["model_info"]["name"]


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        "[x](https://example.org)",
        "![x](https://example.org/x.png)",
        "https://example.org/x",
        "www.example.org",
        "`x` **y** ~~z~~",
        "a | b",
        "x\n\n# y",
        "&lt;b&gt;",
        "me@example.org",
    ],
)
def test_names_on_the_page_are_text(name):
    parser = MarkdownIt("gfm-like", {"linkify": False})
    cell = board.escape_name(name)
    # what GitHub makes links of by itself
    assert not any(mark in cell for mark in (":", "www.", "@"))
    html = parser.render(f"| system |\n|---|\n| {cell} |\n")
    assert html.count("<tr>") == 2 and html.count("<td>") == 1
    shown = html.partition("<td>")[2].partition("</td>")[0]
    assert "<" not in shown and shown.strip()


@pytest.mark.slow
def test_the_page_follows_from_the_files():
    text, made = board.format_page(
        [board.check_file(path) for path in sorted(board.RESULTS.glob("*.json"))]
    )
    assert text == (board.FOLDER / "README.md").read_text(encoding="utf-8")
    assert max(map(len, made)) == len(made[0]) >= 9


def test_numbers_that_do_not_follow_are_named(tmp_path):
    def better(own):
        (dr,) = [
            one
            for one in own["evaluation_results"]
            if one["metric_config"]["metric_id"] == "dr"
        ]
        dr["score_details"]["score"] = 0.1

    with pytest.raises(
        DataError, match=r"mine\.json: dr is .*0\.1.* by the file's decisions"
    ):
        board.check_file(changed(tmp_path, better))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: details(own).pop("labeller"), "additional_details lacks labeller"),
        (
            lambda own: details(own).update(harmless_decisions="ar"),
            "harmless_decisions: 2 letters where 1200",
        ),
        (
            lambda own: details(own).update(harmless_sha256="x"),
            "harmless_sha256 is that of another corpus",
        ),
        (
            lambda own: own.pop("model_info"),
            r"mine\.json: not a result \(KeyError\('model_info'\)\)",
        ),
        (
            lambda own: own["evaluation_results"].pop(),
            r"harmful_refused is None, and \{'score'",
        ),
    ],
)
def test_a_file_that_is_wrong_says_what(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        board.check_file(changed(tmp_path, change))
    with pytest.raises(SystemExit, match=r"mine\.json: "):
        board.main(["check", str(tmp_path / "mine.json")])


def submission(**columns):
    """Make a table in the form of public records from a recorded system's labels."""
    store = stores.Store("recorded")
    labels = pd.concat(
        [store.read("labels", corpus, SAFETY) for corpus in board.CORPORA.values()],
        ignore_index=True,
    )
    words = {"accept": "answered", "reject": "refused", "unparsed": "error"}
    usual = {
        "source_row": labels["prompt_id"],
        "cluster": "of my own",
        "system": "acme/model-2",
        "setting": "all",
        "repeat": 0,
        "judge": "two readers",
        "source_label": labels["label"],
        "decision": labels["label"].map(words),
    }
    return pd.DataFrame(usual | columns)


def submit(rows, tmp_path, monkeypatch, suffix="csv"):
    """Add a table to an empty board; return what was written, by file name."""
    monkeypatch.setattr(board, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir(exist_ok=True)
    file = tmp_path / f"mine.{suffix}"
    if suffix == "csv":
        rows.to_csv(file, index=False)
    else:
        rows.to_parquet(file)
    board.main(["add", "--decisions", str(file), "--max-tokens", "64"])
    found = sorted((tmp_path / "results").glob("*.json"))
    return {path.name: board.check_file(path) for path in found}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_of_decisions_is_ranked_like_a_store_s_labels(
    tmp_path, monkeypatch, suffix
):
    # In another order, and asked again with another decision, which does not count
    rows = submission().sample(frac=1, random_state=1)
    again = rows.assign(repeat=1, decision="refused")
    both = pd.concat([again, rows])
    committed = board.check_file(board.RESULTS / f"{SAFETY}.json")
    found = submit(both, tmp_path, monkeypatch, suffix)
    (own,) = found.values()
    assert list(found) == ["acme-model-2--two-readers.json"]
    assert own["evaluation_results"] == committed["evaluation_results"]
    for name in ("harmless_decisions", "harmful_decisions"):
        assert details(own)[name] == details(committed)[name]
    text, tables = board.format_page([committed, own])
    assert "acme/model-2" in text and "Labelled by two readers" in text
    assert [len(one) for one in tables] == [1, 1]  # another judge, another table


@pytest.mark.slow
def test_twins_may_be_left_out_and_settings_are_told_apart(tmp_path, monkeypatch):
    rows = submission()
    rows = rows[~rows["source_row"].str.contains("twin")]
    marked = [rows, *(rows.assign(system="b", setting=one) for one in ("all", "<b>"))]
    with pytest.raises(SystemExit) as error:
        submit(pd.concat(marked), tmp_path, monkeypatch)
    assert "model_info.name is 'b, <b>'" in str(error.value)
    assert not list((tmp_path / "results").iterdir())  # all or nothing
    settings = pd.concat([rows, rows.assign(setting="strict")])
    found = submit(settings, tmp_path, monkeypatch)
    assert [one["model_info"]["name"] for one in found.values()] == [
        "acme/model-2, all",
        "acme/model-2, strict",
    ]
    assert all("harmful_decisions" not in details(one) for one in found.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: own.drop(columns="judge"), "has no column judge; wanted: source_"),
        (lambda own: own.iloc[:0], "has no rows"),
        (
            lambda own: own.assign(decision=["yes", *own["decision"][1:]]),
            "row 2, column decision: 'yes' is none of answered, refused, error",
        ),
        (
            lambda own: own.assign(repeat=["-1", *own["repeat"][1:]]),
            "row 2, column repeat: '-1' is none of 0, 1",
        ),
        (
            lambda own: pd.concat([own, own.iloc[:1]]),
            "acme/model-2 has two decisions on 'deception-01-0' in repeat 0",
        ),
        (
            lambda own: own.iloc[1:],
            "no decision in repeat 0 on 1 of 1,200 requests of paraguard_mini, such as"
            " 'deception-01-0'",
        ),
        (
            lambda own: own.assign(repeat=1),
            "has no decision in repeat 0 on 1,200 of 1,200",
        ),
        (
            lambda own: pd.concat(
                [own, own.iloc[:1].assign(source_row="x\n::error::y")]
            ),
            r"'x\\n::error::y' is no prompt_id of",
        ),
        (
            lambda own: own.assign(system="a\n::error::b"),
            r"mine.csv: model_info.name is 'a\\n::error::b'",
        ),
        (
            lambda own: own.assign(judge="`judge` | *me*"),
            "mine.csv: labeller is '`judge` | *me*'",
        ),
    ],
)
def test_a_table_that_is_wrong_says_what(tmp_path, monkeypatch, change, message):
    with pytest.raises(SystemExit) as error:
        submit(change(submission()), tmp_path, monkeypatch)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not list((tmp_path / "results").iterdir())


def test_a_table_needs_the_length_of_answers(tmp_path, capsys):
    with pytest.raises(SystemExit):
        board.main(["add", "--decisions", str(tmp_path / "mine.csv")])
    assert "--decisions needs --max-tokens" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"mine\.csv: cannot be read"):
        words = ["add", "--decisions", str(tmp_path / "mine.csv"), "--max-tokens", "64"]
        board.main(words)


def made_up(name, refused):
    """A result of which only the decisions on harmless requests count."""
    letters = "".join("r" if one else "a" for one in refused)
    keys = dict.fromkeys(board.SAME, "same") | {"harmless_decisions": letters}
    return {
        "model_info": {"name": name},
        "eval_library": {"additional_details": keys},
        "evaluation_results": [],
    }


def test_only_a_paired_difference_separates_ranks():
    cluster = board.read_corpora()["harmless"]["cluster"].factorize()[0]
    rng = np.random.default_rng(1)
    by_meaning, too = (cluster % 2 ^ (rng.random(1200) < 0.1) for _ in range(2))
    results = [
        made_up("chance", rng.random(1200) < 0.5),
        made_up("meaning", by_meaning),
        made_up("meaning too", too),
        made_up("never", np.zeros(1200, bool)),
    ]
    assert board.rank_by_disagreement(results) == ["3", "1 to 2", "1 to 2", "–"]
    other = made_up("other labeller", by_meaning)
    details(other)["labeller"] = "another"
    assert [len(one) for one in board.format_page([*results, other])[1]] == [4, 1]
