"""Promises of the project's files to each other."""

import ast
import csv
import hashlib
import re
import runpy
from pathlib import Path

import nbformat
import pandas as pd
import papermill
import pytest
import yaml
from processors import elsewhere
from recorded import report_new_columns

from paraguard_lab import run
from paraguard_lab.analysis import covariates
from paraguard_lab.report import figures as lab_figures
from paraguard_lab.report import numbers
from paraguard_tools.pages import handout
from paraguard_utils import paths, registry, settings, stores
from paraguard_utils.analysis import confusion, pipeline
from paraguard_utils.core.signals import PPL_INTERPRETATIONS
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling
from paraguard_utils.models import prompting, trace_store
from paraguard_utils.report import figures
from paraguard_utils.report.figures import style

RECORDED = stores.Store("recorded")
DEFAULT = "smollm2-135m-instruct-q4_1--safety"


def sampled_systems():
    """Return the published chat systems; a weekly run tries all of them, every other one
    the default system.
    """
    names = registry.published_systems("chat").index
    return [
        pytest.param(name, marks=() if name == DEFAULT else pytest.mark.weekly)
        for name in names
    ]


def pins(lines):
    names = (line.strip().lower().replace("_", "-") for line in lines)
    return {name for name in names if re.fullmatch(r"[\w-]+==[\w.]+", name)}


def test_environment_yml_and_lock_carry_the_same_pins():
    direct = pins((paths.ROOT / "requirements.txt").read_text().splitlines())
    environment = yaml.safe_load((paths.ROOT / "environment.yml").read_text())
    assert pins(environment["dependencies"][-1]["pip"]) == direct
    locked = pins((paths.ROOT / "requirements.lock").read_text().splitlines())
    assert direct <= locked


EVALUATING_NAMES = {"eval", "exec", "compile", "__import__"}
EVALUATING_METHODS = {"query", "read_pickle", "load_module", "exec_module"}


def list_evaluating_calls(code):
    """Return what code calls that could run a text: `eval` and its like, DataFrame's
    `query` and `eval` with an argument, pickles, and a shell.
    """
    found = []
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id=name) if name in EVALUATING_NAMES:
                found.append(name)
            case ast.Attribute(attr=name) if name in EVALUATING_METHODS:
                found.append(name)
            # a network's eval() has no argument
            case ast.Attribute(attr="eval") if node.args or node.keywords:
                found.append("eval")
            case ast.Attribute(value=ast.Name(id="pickle"), attr="load" | "loads"):
                found.append("pickle.load")
            case ast.Attribute(value=ast.Name(id="os"), attr="system" | "popen"):
                found.append("os.system")
        for keyword in node.keywords:
            if keyword.arg == "shell" and ast.unparse(keyword.value) != "False":
                found.append("shell")
    return found


@pytest.mark.slow
def test_no_code_evaluates_a_text():
    planted = {
        'frame.query("a > 1")': ["query"],
        "frame.eval(text)": ["eval"],
        "eval(text)": ["eval"],
        "pickle.load(file)": ["pickle.load"],
        "subprocess.run(line, shell=True)": ["shell"],
        "network.eval().to(device)": [],
        're.compile("a")': [],
    }
    assert {code: list_evaluating_calls(code) for code in planted} == planted
    folders = ("paraguard_utils", "paraguard_lab", "paraguard_tools")
    files = []
    for folder in (*folders, "leaderboard", "hub"):
        files += (paths.ROOT / folder).rglob("*.py")
    assert len(files) > 200
    calls = {
        path.relative_to(paths.ROOT).as_posix(): list_evaluating_calls(
            path.read_text(encoding="utf-8")
        )
        for path in files
    }
    assert {file: found for file, found in calls.items() if found} == {}


def test_every_section_that_a_docstring_cites_is_there():
    text = (paths.ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"^## (.*)$", text, flags=re.MULTILINE))
    cited = set()
    files = []
    for package in ("paraguard_utils", "paraguard_lab", "paraguard_tools"):
        files += (paths.ROOT / package).rglob("*.py")
    for path in files:
        for sections in re.findall(
            r"`docs/method\.md`, ([^)]*)\)", path.read_text(encoding="utf-8")
        ):
            cited |= {
                section.strip() for section in " ".join(sections.split()).split(";")
            }
    assert len(cited) >= 8 and cited <= headings


def test_every_cell_of_the_figure_map_resolves():
    with (paths.FIGURES / "FIGURE_MAP.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    named = set()
    for row in rows:
        for cell in (row["notebook"], row["figure"], *row["sources"].split(";")):
            assert (paths.ROOT / cell).exists(), cell
        stem = (paths.ROOT / row["figure"]).stem
        named.add(stem)
        for suffix in ("png", "pdf", "csv"):
            assert (paths.FIGURES / f"{stem}.{suffix}").is_file()
    drawn = {path.stem for path in paths.FIGURES.glob("*.png")}
    assert drawn == named


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled_systems())
def test_recorded_labels_follow_from_recorded_traces(name, recorded_corpus):
    traces = trace_store.read_traces(
        stores.CorpusFiles(RECORDED, "paraguard_mini"),
        name,
        recorded_corpus,
        prompting.Decoding(),
    )
    labels = RECORDED.read("labels", "paraguard_mini", name)
    too_few = traces.iloc[::10]  # the encoder reads some dozens a second
    again = labelling.label_answers(too_few, recorded_corpus).set_index("prompt_id")
    for column in ("label", "kind", "rule", "answer"):
        recorded = labels.set_index("prompt_id").loc[too_few["prompt_id"], column]
        assert recorded.fillna("").tolist() == again[column].fillna("").tolist(), column
    assert set(traces["finish_reason"]) <= {"stop", "length"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled_systems())
def test_recorded_scores_follow_from_recorded_traces(name, recorded_corpus, results):
    config = settings.freeze(
        {"store": "recorded", "corpus": "paraguard_mini"}, settings.AnalysisSettings
    )
    # made here, so that it writes below the test's own folder
    files = config.open_files()
    one = pipeline.score_systems(files, [name], config)[name]
    pairs = one.pairs
    old = RECORDED.read("pairs", "paraguard_mini", name)
    pd.testing.assert_frame_equal(
        pairs, old, check_dtype=False, rtol=0, atol=0.51 * 10.0**-pipeline.PAIR_DECIMALS
    )
    table = RECORDED.read("tables", "table1_systems")
    for interpretation in PPL_INTERPRETATIONS:
        row = confusion.system_row(one, interpretation)
        recorded = table[
            (table["system"] == name) & (table["interpretation"] == interpretation)
        ].iloc[0]
        for column, value in row.items():
            if isinstance(value, float | int) and column in recorded:
                assert recorded[column] == pytest.approx(
                    value, rel=1e-4, nan_ok=True
                ), column
        known = {*recorded.index, "reference"}
        report_new_columns("table1_systems", row, known)


def written(folder):
    """Score the system with the fewest refusals as 03 does; the hashes of what is
    written under a folder.
    """
    name = "smollm2-135m-instruct-q4_1--none"
    config = settings.freeze(
        {"store": "recorded", "corpus": "paraguard_mini"}, settings.AnalysisSettings
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "RESULTS", Path(folder))
        patch.delenv(style.NO_PDF, raising=False)
        files = config.open_files()
        store = files.store
        one = pipeline.score_systems(files, [name], config)[name]
        about = {name: covariates.ci_covariates(one)}
        correlations = covariates.correlate_covariates(about, one.clusters)
        store.write("tables", "ci_correlations", frame=correlations, meta={})
        drawn = lab_figures.plot_ci_correlates(correlations)
        patch.setattr(style, "display", lambda *_, **__: None)
        figures.publish_figure(store, "ci_correlates", drawn, correlations, {})
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
@pytest.mark.weekly  # every run of .ci/run is that of another processor
def test_what_is_written_does_not_depend_on_the_processor(tmp_path):
    own = written(tmp_path / "own")
    assert {
        "ci_correlations.csv",
        "ci_correlates.png",
        "ci_correlates.pdf",
        "smollm2-135m-instruct-q4_1--none.parquet",
    } <= set(own)
    assert elsewhere("test_project", "written", tmp_path / "other") == str(own)


@pytest.mark.slow
def test_the_record_can_be_scored_under_another_labeller(recorded_corpus):
    name = "smollm2-135m-instruct-q4_1--safety"
    given = {"store": "recorded", "corpus": "paraguard_mini"}
    usual, policy = (
        pipeline.read_systems(
            stores.CorpusFiles(RECORDED, "paraguard_mini"),
            [name],
            settings.freeze(given | {"labeller": labeller}, settings.AnalysisSettings),
        )[name].scores
        for labeller in ("combined", "policy")
    )
    kinds = RECORDED.read("labels", "paraguard_mini", name)["kind"].value_counts()
    assert (
        (policy["label"] == "reject").sum()
        == kinds["policy"]
        < (usual["label"] == "reject").sum()
    )
    assert (policy["label"] == "accept").sum() == (usual["label"] == "accept").sum()


def test_no_machine_path_in_recorded_files():
    for path in [
        *paths.DATA.rglob("*.json"),
        *paths.DATA.rglob("*.csv"),
        *paths.FIGURES.rglob("*.csv"),
    ]:
        assert str(paths.ROOT) not in path.read_text(encoding="utf-8"), path


@pytest.mark.slow
def test_the_recorded_numbers_follow_from_the_recorded_tables():
    pd.testing.assert_frame_equal(
        RECORDED.read("tables", numbers.NUMBERS_TABLE),
        numbers.collect_numbers(RECORDED),
    )


def test_prose_has_the_recorded_numbers():
    known = RECORDED.read("tables", numbers.NUMBERS_TABLE)
    readme = (paths.ROOT / "README.md").read_text(encoding="utf-8")
    assert "<!--=" in readme
    assert numbers.fill_numbers(readme, known) == readme


def test_every_number_has_one_name_that_a_document_uses():
    marks = numbers.read_number_marks()
    pages = [*numbers.DOCUMENTS, paths.ROOT / "hub" / "card.md"]
    pages += handout.ABSTRACT.parent.glob("*.md")
    used = set()
    for page in pages:
        used |= set(numbers.NUMBER_PLACE.findall(page.read_text(encoding="utf-8")))
    assert used == set(marks)
    assert len(set(marks.values())) == len(marks)


def test_the_readme_links_every_notebook_and_they_say_their_own_numbers():
    readme = (paths.ROOT / "README.md").read_text(encoding="utf-8")
    for path in run.list_notebooks():
        assert f"]({path.relative_to(paths.ROOT).as_posix()})" in readme
        cells = nbformat.read(path, as_version=4).cells
        prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
        assert not any("<!--=" in text for text in prose), path.name


def test_a_number_that_is_not_there_is_an_error():
    known = pd.DataFrame({"key": ["a.b"], "text": ["1.5"]})
    assert (
        numbers.fill_numbers("x <!--=a.b-->0<!--=--> y", known)
        == "x <!--=a.b-->1.5<!--=--> y"
    )
    with pytest.raises(DataError, match=r"no number 'a\.c'"):
        numbers.fill_numbers("x <!--=a.c-->0<!--=-->", known)


@pytest.mark.parametrize(
    "path", sorted((paths.ROOT / "params").glob("*.yaml")), ids=lambda path: path.stem
)
def test_parameter_files_fit_the_query_notebook(path):
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    declared = papermill.inspect_notebook(paths.NOTEBOOKS / "02_querying.ipynb")
    assert set(given) <= set(declared)
    settings.freeze(
        {"store": "recorded", "corpus": "paraguard_mini"} | given,
        settings.QuerySettings,
    )


@pytest.mark.slow
def test_planted_faults_fit_the_code():
    """`benchmarks/planted_faults.py` plants them; a fault whose place has changed would
    be none.
    """
    folder = paths.ROOT / "benchmarks"
    faults = runpy.run_path(str(folder / "planted_faults.py"))
    assert len(faults["FAULTS"]) >= 55
    for fault in faults["FAULTS"]:
        code = faults["find_module"](fault.symbol).read_text(encoding="utf-8")
        assert faults["planted"](fault, code) != code
        assert fault.symbol.partition(".")[0] in faults["TESTS"]
    assert pd.read_csv(folder / "planted_faults.csv")["caught_by"].notna().all()


def test_planted_faults_do_not_hang_on_layout():
    faults = runpy.run_path(str(paths.ROOT / "benchmarks" / "planted_faults.py"))
    fault = faults["Fault"]("m.f", 'g(x, "a")', 'g(x, "b")')
    code = "def f(x):\n    return g(  # why\n        x,\n        'a',\n    )\n"
    assert faults["planted"](fault, code) == 'def f(x):\n    return g(x, "b")\n'
