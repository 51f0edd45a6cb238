"""The leaderboard: files follow from their decisions, ties are ties, and the page
follows from the files.
"""

import json
import sys

import numpy as np
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
