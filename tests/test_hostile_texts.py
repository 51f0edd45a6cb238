"""A pull request of hostile Markdown, CSV and JSON: nothing runs, and each text ends in
one line.
"""

import json
import re
import sys

import pytest

from paraguard_lab import record
from paraguard_lab.analysis import predictions
from paraguard_lab.report import croissant, numbers
from paraguard_tools.pages import site
from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError
from paraguard_utils.report import sentences

sys.path.insert(0, str(paths.ROOT / "leaderboard"))
import board

RECORDED = stores.Store(stores.RECORDED)
VALIDITY = RECORDED.read("tables", "validity")

EXPRESSIONS = {
    "a call of pandas": "frr.to_pickle('CANARY')",
    "a module by @": "@paths.os.system('touch CANARY') == 0",
    "an import": "__import__('os').system('touch CANARY') == 0",
    "a dunder": "system.__class__.__mro__ == 0",
    "a pipe": 'frr.pipe(exec, \'open("CANARY", "w")\')',
    "parentheses": "(" * 100_000 + "frr" + ")" * 100_000,
    "negations": "not " * 100_000 + "too_few",
    "a huge number": "frr > 1" + "0" * 100_000,
    "a power": "9 ** 9 ** 9 ** 9 > frr",
    "a long text": "system * 999999999 == 'x'",
    "a pattern": "system.str.match('(a+)+b')",
    "no column": "nothing > 1",
}
MARKS = {
    **{f"rows: {name}": f"validity[{text}]" for name, text in EXPRESSIONS.items()},
    **{f"value: {name}": f"validity.{text}" for name, text in EXPRESSIONS.items()},
    "an endless format": "validity.auc_ci:999999999.2f",
    "a format of attributes": "validity.auc_ci:{0.__class__}",
    "another folder": "tables/../../secret.auc_ci",
    "no table": "nosuchtable.auc_ci",
    "an interval of all": "validity.auc_ci±",
    "brackets": "validity[" + "[" * 100_000,
}


@pytest.fixture(autouse=True)
def canary(tmp_path, monkeypatch):
    """Each test runs in an empty folder, in which nothing may be made."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    assert not list(folder.iterdir())


def one_line(error):
    message = str(error.value)
    assert "\n" not in message and 20 < len(message) < 3_000
    return message


def write_marks(folder, monkeypatch, **marks):
    """Write names of numbers and their marks, in place of those of the project."""
    file = folder / "numbers.yaml"
    file.write_text(json.dumps(marks), encoding="utf-8")  # which is YAML too
    monkeypatch.setattr(numbers, "MARKS_FILE", file)


@pytest.mark.slow
@pytest.mark.parametrize("mark", MARKS.values(), ids=list(MARKS))
def test_a_mark_is_refused_where_it_stands(mark, tmp_path, monkeypatch):
    write_marks(tmp_path, monkeypatch, twelve=mark)
    page = tmp_path / "page.md"
    page.write_text("# Fine\n\nIt is <!--=twelve-->12<!--=-->.\n", encoding="utf-8")
    with pytest.raises(DataError) as error:
        numbers.collect_numbers(RECORDED, [page])
    assert "page.md, line 3: " in one_line(error)


@pytest.mark.slow
def test_commands_that_read_documents_refuse_them(tmp_path, monkeypatch):
    page = tmp_path / "README.md"
    write_marks(tmp_path, monkeypatch, twelve=MARKS["value: a call of pandas"])
    hostile = "<!--=twelve-->12<!--=-->"
    page.write_text(hostile, encoding="utf-8")
    monkeypatch.setattr(numbers, "DOCUMENTS", (page,))
    monkeypatch.setattr(numbers.collect_numbers, "__defaults__", ((page,),))
    with pytest.raises(DataError) as error:
        record.refill_numbers()  # `paraguard numbers`
    assert "README.md, line 1: " in one_line(error)
    monkeypatch.setattr(site.handout, "ABSTRACT", page)
    with pytest.raises(DataError) as error:
        site.write_html(tmp_path / "site")  # `make site`
    assert "README.md, line 1: " in one_line(error)
    known = RECORDED.read("tables", numbers.NUMBERS_TABLE)
    for text in (hostile, f"## Tables\n{hostile}", "<!--=" * 1_000 + hostile):
        with pytest.raises(DataError) as error:
            croissant.fill_card(text, known)  # `paraguard card`
        one_line(error)
    assert page.read_text(encoding="utf-8") == hostile
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [b", "numbers.yaml: while parsing"),
        ("- a", "numbers.yaml: it is no list of lines NAME: MARK"),
        ("a: {b: c}", "numbers.yaml: 'a' is no line NAME: MARK"),
        ("a: !!python/object/apply:os.getcwd []", "numbers.yaml: "),
        ("b: models.n", "page.md, line 1: .*numbers.yaml has no number 'a'"),
    ],
)
def test_a_file_of_marks_that_is_wrong_is_one_line(
    text, problem, tmp_path, monkeypatch
):
    write_marks(tmp_path, monkeypatch)
    numbers.MARKS_FILE.write_text(text, encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("<!--=a-->3<!--=-->", encoding="utf-8")
    with pytest.raises(DataError, match=problem) as error:
        numbers.collect_numbers(RECORDED, [page])
    one_line(error)


def test_a_notebook_shows_no_hostile_mark():
    def read(name):
        return sentences.read_named_table(RECORDED, name)

    for mark in MARKS.values():
        if "{" not in mark:
            with pytest.raises(DataError) as error:
                sentences.fill_sentences(f"{{{mark}}}", read)
            one_line(error)


HEADER = "number,table,rows,measure,low,high,too_few\n"


@pytest.mark.parametrize("field", ["rows", "too_few"])
@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=list(EXPRESSIONS))
def test_a_prediction_is_refused_where_it_stands(
    field, expression, tmp_path, monkeypatch
):
    file = tmp_path / "predictions.csv"
    quoted = '"{}"'.format(expression.replace('"', '""'))
    fields = {"rows": "auc_ci > 0", "too_few": ""} | {field: quoted}
    rows = f"1,validity,auc_ci > 0,auc_ci,0,1,\n2,validity,{fields['rows']},auc_ci,0,1,"
    file.write_text(f"{HEADER}{rows}{fields['too_few']}\n", encoding="utf-8")
    monkeypatch.setattr(predictions, "PREDICTIONS_FILE", file)
    with pytest.raises(DataError) as error:
        predictions.judge_predictions({"validity": VALIDITY})
    assert "predictions.csv: row 3: " in one_line(error)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,validity,auc_ci > 0,to_pickle,0,1,", "no column of numbers 'to_pickle'"),
        ("1,validity,auc_ci > 0,system,0,1,", "no column of numbers 'system'"),
        ("1,validity,auc_ci > 0,auc_ci,x,1,", "row 2, column low: 'x' is no number"),
        ("1,validity,auc_ci > 0,auc_ci,0,,", "row 2, column high: .* is no number"),
    ],
)
def test_the_other_fields_of_a_prediction_are_checked(
    row, message, tmp_path, monkeypatch
):
    file = tmp_path / "predictions.csv"
    file.write_text(f"{HEADER}{row}\n", encoding="utf-8")
    monkeypatch.setattr(predictions, "PREDICTIONS_FILE", file)
    with pytest.raises(DataError, match=message):
        predictions.judge_predictions({"validity": VALIDITY})


def test_a_file_of_predictions_without_a_column_is_one_error(tmp_path, monkeypatch):
    file = tmp_path / "predictions.csv"
    file.write_text("number,rows\n1,x\n", encoding="utf-8")
    monkeypatch.setattr(predictions, "PREDICTIONS_FILE", file)
    with pytest.raises(DataError, match="the column table is not there"):
        predictions.read_predictions()


# Entries of the leaderboard

ENTRY = board.RESULTS / "smollm2-135m-instruct-q4_1--safety.json"


def details(own):
    return own["eval_library"]["additional_details"]


def score(own):
    return own["evaluation_results"][0]["score_details"]


def interval(own):
    return score(own)["uncertainty"]["confidence_interval"]


def forge_before(own):
    forged = json.loads(json.dumps(own["evaluation_results"][0]))
    forged["score_details"]["score"] = 0.01
    own["evaluation_results"].insert(0, forged)


CHANGES = {
    "a forged metric before the true one": (forge_before, "dr is there twice"),
    "a forged metric": (lambda own: score(own).update(score=0.01), "dr is .*0.01"),
    "a score that is a text": (
        lambda own: score(own).update(score=str(score(own)["score"])),
        "dr is ",
    ),
    "a score that no float holds": (
        lambda own: score(own).update(score=10**400),
        "not a result",
    ),
    "a list of scores": (
        lambda own: own["evaluation_results"][0].update(score_details=[0.8]),
        r"dr is \[0.8\]",
    ),
    "another confidence": (
        lambda own: interval(own).update(confidence_level=0.5),
        "dr is .*0.5",
    ),
    "another method": (lambda own: interval(own).update(method="none"), "dr is "),
    "a metric of its own": (
        lambda own: own["evaluation_results"][0]["metric_config"].update(
            metric_id="::error::best"
        ),
        r"'\\+x3a:error::best' is none of",
    ),
    "less is better": (
        lambda own: own["evaluation_results"][1]["metric_config"].update(
            lower_is_better=False
        ),
        "frr: metric_config",
    ),
    "an id that leaves its folder": (
        lambda own: own["model_info"].update(id="recorded/../../x"),
        "model_info.id is ",
    ),
    "an id that begins at the root": (
        lambda own: own["model_info"].update(id="/etc/passwd"),
        "model_info.id is ",
    ),
    "an evaluation that leaves its folder": (
        lambda own: own.update(evaluation_id="paraguard/../x/1"),
        "evaluation_id is not",
    ),
    "HTML in the name": (
        lambda own: own["model_info"].update(name="<script>alert(1)</script>"),
        "model_info.name is ",
    ),
    "a link in the name": (
        lambda own: own["model_info"].update(name="[x](https://example.org)"),
        "model_info.name is ",
    ),
    "lines in the name": (
        lambda own: own["model_info"].update(name="x\n::error::y"),
        r"model_info.name is 'x\\+n::error::y'",
    ),
    "HTML in the labeller": (
        lambda own: details(own).update(labeller="<img src=x onerror=alert(1)>"),
        "labeller is ",
    ),
    "a labeller that is a list": (
        lambda own: details(own).update(labeller=["a"]),
        "labeller is no text",
    ),
    "decisions that are a number": (
        lambda own: details(own).update(harmless_decisions=5),
        "harmless_decisions is no text",
    ),
    "a time of another form": (
        lambda own: own.update(retrieved_timestamp="now; touch CANARY"),
        "retrieved_timestamp is ",
    ),
    "results that are a text": (
        lambda own: own.update(evaluation_results="dr"),
        "not a result",
    ),
}


def check(path):
    with pytest.raises(SystemExit) as error:
        board.main(["check", str(path)])
    message = one_line(error)
    assert message.startswith("mine.json: ")
    return message


@pytest.fixture(scope="module")
def entry():
    return ENTRY.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def once(monkeypatch):
    """What the decisions give is computed once; no change here touches them."""
    kept = json.loads(ENTRY.read_text(encoding="utf-8"))["evaluation_results"]

    def make(name, model, given, created):
        again = make_result(name, model, given, created)
        return again | {"evaluation_results": kept}

    make_result = board.make_result
    monkeypatch.setattr(board, "measure_decisions", lambda rows: {})
    monkeypatch.setattr(board, "make_result", make)


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=list(CHANGES))
def test_a_hostile_entry_is_refused(change, message, entry, tmp_path):
    own = json.loads(entry)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(own), encoding="utf-8")
    board.main(["check", str(path)])  # it is fine before the change
    change(own)
    path.write_text(json.dumps(own), encoding="utf-8")
    assert re.search(message, check(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000 + "]" * 100_000, "not a result"),
        ('{"a":' * 30_000 + "1" + "}" * 30_000, "not a result"),
        ("[" * 300_000, "more than"),
        ('{"model_info": 1, "model_info": 2}', "a key is there twice"),
        ('{"model_info": NaN}', "NaN is no number"),
        ("9" * 5_000, "not a result"),
        ("null", "not a result"),
        ("[]", "not a result"),
        ("\ufeff{}", "not a result"),
        ("", "not a result"),
    ],
    ids=lambda text: text[:12],
)
def test_json_that_is_no_entry_is_one_line(text, message, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(text, encoding="utf-8")
    assert message in check(path)


def test_a_hostile_entry_never_reaches_the_page(entry, tmp_path, monkeypatch):
    own = json.loads(entry)
    CHANGES["HTML in the name"][0](own)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(own), encoding="utf-8")
    monkeypatch.setattr(board, "FOLDER", tmp_path)
    with pytest.raises(SystemExit, match=r"mine\.json: "):
        board.main(["page", str(path)])
    assert [one.name for one in tmp_path.glob("*.*")] == ["mine.json"]
