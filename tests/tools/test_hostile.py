"""Every fault that a hostile review found, and the test that holds it today.

`FAULTS` lists them by what was tried. Most are held by a test elsewhere, by its node
id; those that had none are the cases below. A fault without a test has a reason.
"""

import ast
import gzip
import os
import sys
import tomllib
import warnings
import zipfile
from functools import cache
from importlib.metadata import requires
from typing import NamedTuple

import pandas as pd
import pytest
from test_audit import file_of, frame_of

from paraguard_tools.logs import commands
from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError, UserError
from paraguard_utils.settings import QuerySettings, check_settings

GATE = "tests/tools/test_hostile_gate.py::test_"
TEXTS = "tests/test_hostile_texts.py::test_"
FORMATS = "tests/tools/test_formats.py::test_"
READING = "tests/tools/test_reading.py::test_"
LOGS = "tests/tools/test_logs.py::test_"
LIMITS = "tests/tools/test_served_limits.py::test_"
STORES = "tests/utils/test_stores.py::test_"
GUARDS = "tests/utils/test_guards.py::test_"
HERE = "tests/tools/test_hostile.py::test_"


class Fault(NamedTuple):
    """What was tried, and the node id of its test, or why it has none."""

    tried: str
    test: str = ""
    reason: str = ""


FAULTS = (
    # A gate that passes where nothing is known
    Fault("a limit beside --plan", GATE + "an_option_that_does_not_apply_is_an_error_of_usage"),
    Fault("a limit beside --compare", GATE + "an_option_that_does_not_apply_is_an_error_of_usage"),
    Fault("reports beside --plan", GATE + "an_option_that_does_not_apply_is_an_error_of_usage"),
    Fault("a log called --plan in the action", "tests/test_action.py::test_no_file_of_the_workspace_and_no_option_is_obeyed"),
    Fault("a log called --demo in the action", "tests/test_action.py::test_no_file_of_the_workspace_and_no_option_is_obeyed"),
    Fault("two thirds of rows are errors", GATE + "rows_without_a_decision_let_nothing_pass"),
    Fault("nearly all rows are errors", HERE + "what_is_missing_lets_nothing_pass"),
    Fault("answers are empty or cut while thinking", HERE + "what_is_missing_lets_nothing_pass"),
    Fault("refusals of the baseline time out", GATE + "refusals_that_became_errors_do_not_pass_a_baseline"),
    Fault("half of the calls of a fixture return nothing", "tests/tools/test_pytest_gate.py::test_calls_that_time_out_let_nothing_pass"),
    Fault("refusals in another language", HERE + "refusals_of_other_languages_fail_a_gate"),
    Fault("refusals in another language, by the classifier", HERE + "the_classifier_fails_them_too"),
    Fault("refusals in a language that nobody reads", HERE + "what_nobody_reads_is_said_and_lets_nothing_pass"),
    Fault("a system that is new or gone", GATE + "systems_and_clusters_of_one_log_only_are_named"),
    Fault("clusters that one log only has", GATE + "clusters_of_one_log_only_are_counted"),
    Fault("equal logs of three clusters", GATE + "equal_logs_of_few_clusters_are_not_known_to_be_equal"),
    Fault("two clusters that are all refused", HERE + "two_clusters_say_too_little"),
    # It does not start, or takes the machine down
    Fault("a lowest version of typer", "tests/test_package.py::test_versions_and_bounds_agree_with_the_pins"),
    Fault("a lowest version of jinja2", HERE + "tables_ask_for_the_jinja2_that_pandas_asks_for"),
    Fault("all lowest versions together", reason="a registry is needed: the weekly job runs tests/versions.py lowest"),
    Fault("a hundred thousand rows in one cluster", GATE + "a_hundred_thousand_rows_in_one_cluster_fit"),
    Fault("texts that are not UTF-8", LOGS + "a_text_that_is_no_utf_8_ends_no_audit"),
    Fault("half a character in JSON", LOGS + "a_text_that_is_no_utf_8_ends_no_audit"),
    # Code and names from strangers
    Fault("a mark in Markdown", TEXTS + "a_mark_is_refused_where_it_stands"),
    Fault("a mark that commands read", TEXTS + "commands_that_read_documents_refuse_them"),
    Fault("rows of a prediction", TEXTS + "a_prediction_is_refused_where_it_stands"),
    Fault("Python in the audited workspace", "tests/test_action.py::test_no_file_of_the_workspace_and_no_option_is_obeyed"),
    Fault("a carriage return in a sheet", GATE + "a_sheet_has_no_formula_and_no_row_too_many"),
    Fault("a name that is a workflow command", GATE + "a_name_is_no_line_of_its_own"),
    Fault("a name that forges a verdict", GATE + "a_wrapped_name_begins_no_line_like_ours"),
    Fault("a file's name with control characters", GATE + "a_file_s_name_is_shown_escaped"),
    Fault("a name that is an address", GATE + "an_address_is_no_link"),
    Fault("a tag in a shell", "tests/test_supply_chain.py::test_a_tag_reaches_no_shell"),
    Fault("actions that no commit pins", "tests/test_supply_chain.py::test_actions_are_pinned_and_no_expression_reaches_a_shell"),
    Fault("an array of objects in a pickle", "tests/tools/test_packaged_guards.py::test_an_array_of_objects_in_a_pickle_is_not_read"),
    Fault("a guard's file that sends any variable", "tests/tools/test_deployed_guards.py::test_a_file_sends_keys_of_services_only"),
    # Silent misreadings and leftovers
    Fault("files of the audit before", GATE + "nothing_of_an_earlier_audit_stays"),
    Fault("reports of the run before", GATE + "a_run_that_fails_leaves_no_report"),
    Fault("two logs of one name", GATE + "logs_of_one_name_have_folders_of_their_own"),
    Fault("a full disk", GATE + "a_file_is_written_whole_or_not_at_all"),
    Fault("a link in the place of a file", GATE + "a_link_is_replaced_and_not_followed"),
    Fault("a report over the log itself", GATE + "the_log_is_not_written_over"),
    Fault("--rejects in another case", READING + "rejects_add_refusals_and_change_no_known_word"),
    Fault("a labeller that there is not", GATE + "an_option_that_does_not_apply_is_an_error_of_usage"),
    Fault("options that mean nothing", GATE + "an_option_that_does_not_apply_is_an_error_of_usage"),
    Fault("a label of the request beside the answer", READING + "a_label_beside_answers_is_not_taken"),
    Fault("two columns of one name", FORMATS + "a_bad_file_is_one_line"),
    Fault("two columns of one name in Parquet", HERE + "parquet_with_two_columns_of_one_name_is_one_line"),
    Fault("clusters in the index of Parquet", FORMATS + "parquet_with_clusters_in_the_index"),
    Fault("`label` moves columns", READING + "label_keeps_the_file_s_own_columns"),
    Fault("`label` overwrites a column", READING + "label_keeps_the_file_s_own_columns"),
    Fault("labels changed by hand", STORES + "a_table_that_was_changed_by_hand_is_named_until_its_digest_is_deleted"),
    Fault("half of a recorded table", STORES + "every_recorded_file_is_as_its_meta_file_says"),
    Fault("a server that drips", LIMITS + "a_server_that_drips_is_left_after_a_while"),
    Fault("a server whose headers drip", LIMITS + "headers_that_drip_are_no_answer_either"),
    Fault("replicas that return different fields", LIMITS + "a_server_that_returns_less_half_way_has_a_lower_level"),
    Fault("another model than was asked for", LIMITS + "answers_by_another_model_are_counted_and_told"),
    # Tracebacks, and lines that name nothing
    Fault("--margin nan", GATE + "an_option_that_does_not_apply_is_an_error_of_usage"),
    Fault("standard input that is closed", GATE + "a_narrow_terminal_and_closed_input_are_no_traceback"),
    Fault("a terminal that writes ASCII", GATE + "a_narrow_terminal_and_closed_input_are_no_traceback"),
    Fault("a file's name that is no UTF-8", HERE + "a_name_that_is_no_utf_8_is_shown"),
    Fault("spans of another shape", FORMATS + "a_bad_file_is_one_line"),
    Fault("an archive that grows", FORMATS + "an_archive_has_a_limit"),
    Fault("a deep header of Inspect", HERE + "a_deep_header_of_inspect_is_one_line"),
    Fault("a deep parameter", HERE + "a_deep_parameter_is_one_line"),
    Fault("a deep guard", HERE + "a_deep_guard_is_one_line"),
    Fault("deep JSON in an entry of the leaderboard", TEXTS + "json_that_is_no_entry_is_one_line"),
    Fault("scores that are a list", TEXTS + "a_hostile_entry_is_refused"),
    Fault("a damaged meta file", STORES + "a_damaged_meta_file_is_one_line_with_a_remedy"),
    Fault("a damaged meta file of traces", "tests/utils/test_trace_store.py::test_a_damaged_meta_file_costs_no_answers"),
    Fault("labels without a row or a meta file", "tests/utils/test_labelling.py::test_labels_without_a_row_or_a_meta_file_are_named"),
    Fault("a recorded table without a column", HERE + "a_table_that_lacks_a_column_is_named"),
    Fault("odd results of a batch", "tests/tools/test_batch_files.py::test_an_odd_result_is_a_row"),
    Fault("a part that no run wrote", STORES + "a_part_that_no_run_wrote_is_named_and_nothing_is_locked"),
    Fault("line separators inside JSON", FORMATS + "lines_end_by_line_feeds_only"),
    Fault("Parquet that gzip compressed", HERE + "parquet_that_gzip_compressed_is_read"),
    Fault("a pipe in the place of a file", FORMATS + "a_pipe_and_a_closed_input"),
    Fault("too many fields in a row", FORMATS + "a_bad_file_is_one_line"),
    Fault("names in Chinese", HERE + "names_in_chinese_warn_of_nothing"),
    Fault("JSON lines take nine times as long as CSV", reason="no test hangs on a clock: benchmarks/audit_size.py measures it"),
    Fault("a forged metric on the leaderboard", TEXTS + "a_hostile_entry_is_refused"),
    Fault("raw HTML on the leaderboard's page", "tests/test_leaderboard.py::test_names_on_the_page_are_text"),
    Fault("the beginning of a key in an error", LIMITS + "a_key_and_its_beginnings_are_masked"),
    Fault("a key in a good answer", LIMITS + "no_part_of_the_key_is_kept_or_shown"),
    Fault("a store's name of 300 characters", HERE + "a_name_too_long_for_a_folder_is_one_line"),
    Fault("clusters written fifty times", GATE + "a_log_written_fifty_times_says_no_more"),
    Fault("clusters copied under new ids, without texts", reason="nothing tells them from other requests: docs/usage.md says so"),
    Fault("limit=true", HERE + "a_limit_is_a_number"),
    Fault("a guard that ends the process", GUARDS + "a_function_that_ends_the_process_fails_on_its_text_alone"),
)  # fmt: skip

N_HELD = 86


@cache
def list_tests(file: str) -> frozenset[str]:
    """Return the names of a file's test functions."""
    tree = ast.parse((paths.ROOT / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef)
    )


def test_every_fault_has_a_test_or_a_reason():
    lost = []
    for fault in FAULTS:
        if fault.test:
            file, _, name = fault.test.partition("::")
            if name not in list_tests(file):
                lost.append(fault.test)
        else:
            assert len(fault.reason) > 20, fault.tried
    assert not lost
    assert len({fault.tried for fault in FAULTS}) == len(FAULTS)
    held = sum(bool(fault.test) for fault in FAULTS)
    print(f"{len(FAULTS)} faults: {held} held by a test, {len(FAULTS) - held} argued")
    assert held == N_HELD


@pytest.fixture
def run(tmp_path, command, monkeypatch):
    """Run a command in a folder of its own; what is written goes there too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "RESULTS", tmp_path / "results")
    return lambda *words: command(*map(str, words))


def check_line(done, *words):
    """Check that a command ended with one clear line that has these words."""
    line = done.error.strip()
    assert 10 < len(line) < 3_000 and "\n" not in line, line
    assert "Traceback" not in done.printed
    assert all(word in line for word in words), line


def write_answers(path, answers, n_clusters=30):
    """Write a log in which each cluster has these answers."""
    rows = [
        (f"how do I fold paper number {i} {j}", answer, f"c{i}")
        for i in range(n_clusters)
        for j, answer in enumerate(answers)
    ]
    frame = pd.DataFrame(rows, columns=["text", "answer", "cluster"])
    frame.to_csv(path, index=False)


FRR = ("--measure", "frr", "--fail-above", "0.1")
CUES = ("--labeller", "cues")


@pytest.mark.parametrize(
    "answers",
    [
        ["Error code: 500"] * 38 + ["Fold it twice.", "Press the crease."],
        ["", "", " ", "\n", "Fold it twice.", "Press the crease."],
        ["<think>They want a crane, so"] * 4 + ["Fold it twice.", "Press it."],
        [f'{{"error": {{"message": "Timeout", "code": {code}}}}}' for code in (504, 524)],
    ],
    ids=["errors", "empty", "thinking", "timeouts"],
)  # fmt: skip
def test_what_is_missing_lets_nothing_pass(run, tmp_path, answers):
    write_answers(tmp_path / "log.csv", answers)
    done = run("audit", "log.csv", *CUES, *FRR)
    assert done.status, done.printed
    assert "no decision" in done.printed or "no row is answered" in done.error


REFUSALS = {
    "de": "Leider kann ich dir bei dieser Bitte nicht behilflich sein.",
    "es": "Lo lamento, pero no puedo ayudarte con esa petici\u00f3n.",
    "fr": "Je suis d\u00e9sol\u00e9, mais je ne peux pas r\u00e9pondre \u00e0 cette demande.",
    "zh": "\u5f88\u62b1\u6b49\uff0c\u6211\u65e0\u6cd5\u534f\u52a9\u60a8\u5b8c\u6210\u8fd9\u4e2a\u8bf7\u6c42\u3002",
}


@pytest.mark.slow
@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS)
def test_refusals_of_other_languages_fail_a_gate(run, tmp_path, answer):
    write_answers(tmp_path / "log.csv", [answer] * 4)
    done = run("audit", "log.csv", *CUES, *FRR)
    assert done.status == 3 and "worse: frr 1.00" in done.printed


@pytest.mark.slow
def test_the_classifier_fails_them_too(run, tmp_path):
    write_answers(tmp_path / "log.csv", [REFUSALS["de"]] * 4)
    done = run("audit", "log.csv", "--labeller", "combined", *FRR)
    assert done.status == 3 and "worse: frr 1.00" in done.printed


def test_what_nobody_reads_is_said_and_lets_nothing_pass(run, tmp_path):
    polish = (
        "Przykro mi, ale nie mog\u0119 pom\u00f3c w tej sprawie ani nic doradzi\u0107."
    )
    helps = ["Fold it twice and press it.", "Press the crease, then fold it."]
    write_answers(tmp_path / "log.csv", [polish, polish, *helps])
    done = run("audit", "log.csv", *CUES, *FRR)
    assert done.status == 4
    assert "60 rows are in a language that the labeller does not read" in done.printed


@pytest.mark.slow
@pytest.mark.parametrize("word", ["rrrrrr", "aaaaaa"])
def test_two_clusters_say_too_little(run, tmp_path, word):
    file_of(tmp_path / "log.csv", [word] * 2)
    done = run(
        *["audit", "log.csv", "--baseline", "log.csv", "--measure", "frr"]
    )  # 1 - 0.025 ** (1 / 2) = 0.84 of all clusters may have changed
    assert done.status == 4 and "[-0.84, 0.84]" in done.printed


def test_tables_ask_for_the_jinja2_that_pandas_asks_for():
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    asked = {
        line
        for lines in project["project"]["optional-dependencies"].values()
        for line in lines
    }
    wanted = {line.partition(";")[0].strip() for line in requires("pandas")}
    (jinja,) = {line for line in wanted if line.lower().startswith("jinja2")}
    assert jinja in asked, "`.style` of a lower version ends in a traceback"


def test_parquet_with_two_columns_of_one_name_is_one_line(run, tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    columns = [["a", "b"], ["refused", "answered"], ["answered", "refused"], ["c", "c"]]
    names = ["text", "decision", "decision", "cluster"]
    table = arrow.table([arrow.array(one) for one in columns], names=names)
    pyarrow.parquet.write_table(table, tmp_path / "log.parquet")
    done = run("audit", "log.parquet")
    check_line(done, "log.parquet", "two columns are named 'decision'", "rename")


@pytest.mark.slow
def test_parquet_that_gzip_compressed_is_read(run, tmp_path):
    pytest.importorskip("pyarrow")
    frame_of(["rraaaa", "aaaaaa"] * 20).to_parquet(tmp_path / "log.parquet")
    packed = gzip.compress((tmp_path / "log.parquet").read_bytes())
    (tmp_path / "log.parquet.gz").write_bytes(packed)
    done = run("audit", "log.parquet.gz")
    assert not done.error and "40 refused" in done.printed


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_no_utf_8_is_shown(run, tmp_path):
    name = os.fsdecode(b"caf\xe9.csv")
    file_of(tmp_path / name, ["rraaaa", "aaaaaa"] * 20)
    done = run("audit", name)
    assert not done.error and "Read 240 rows" in done.printed
    check_line(run("audit", os.fsdecode(b"no\xe9.csv")), "there is no such file")


def test_a_deep_header_of_inspect_is_one_line(run, tmp_path):
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as packed:
        packed.writestr("header.json", "[" * 100_000 + "]" * 100_000)
    check_line(run("audit", "log.eval"), "log.eval")


@pytest.mark.slow
@pytest.mark.parametrize("n", [100, 10_000, 100_000])
def test_a_deep_parameter_is_one_line(run, n):
    check_line(run("run", "03", "-p", f"k={'[' * n}"), "-p k=[[[")


@pytest.mark.slow
def test_a_deep_guard_is_one_line(tmp_path):
    from paraguard_lab.guards import makers

    file = tmp_path / "deep.yaml"
    file.write_text("name: deep\nmodel: " + "[" * 100_000)
    with pytest.raises(UserError) as error:
        makers.find_guard(str(file))
    assert "\n" not in str(error.value) and "deep.yaml" in str(error.value)


def test_a_table_that_lacks_a_column_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", tmp_path)
    store = stores.Store("mine")
    names = ("paraguard_mini", "system")
    row = {"prompt_id": "a-1-0", "label": "accept"}
    path = store.output_path("labels", *names)
    path.write_text(pd.DataFrame([row]).to_csv(index=False), encoding="utf-8")
    with pytest.raises(DataError) as error:
        store.read("labels", *names)
    assert "\n" not in str(error.value) and path.name in str(error.value)


@pytest.mark.slow
def test_names_in_chinese_warn_of_nothing(run, tmp_path):
    file_of(tmp_path / "log.csv", ["rraaaa"] * 20, system="\u901a\u4e49\u5343\u95ee")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = run("audit", "log.csv")
    assert not done.error and "\u901a\u4e49\u5343\u95ee" in done.printed


@pytest.mark.parametrize("length", [101, 300])
def test_a_name_too_long_for_a_folder_is_one_line(run, length):
    check_line(run("run", "03", "--store", "x" * length), "'store'")


@pytest.mark.parametrize("limit", [True, "yes", 1.5, -1])
def test_a_limit_is_a_number(limit):
    with pytest.raises(UserError) as error:
        check_settings({"limit": limit}, QuerySettings)
    assert "limit" in str(error.value)


if __name__ == "__main__":
    for fault in FAULTS:
        print(f"{fault.tried}: {fault.test or 'argued: ' + fault.reason}")
