"""The committed notebooks: executed, in order, clean; and what they do with bad
parameters.
"""

import ast

import nbformat
import papermill
import pytest
from asking import code_cells, run_here

from paraguard_lab import run
from paraguard_lab.settings import NOTEBOOK_SETTINGS
from paraguard_utils import paths
from paraguard_utils.errors import SettingsError, UserError

NOTEBOOKS = run.list_notebooks()
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_notebooks():
    assert [path.stem[:2] for path in NOTEBOOKS] == [
        *(f"0{number}" for number in range(9)),
        *(f"A{number}" for number in range(6)),
    ]


@each_notebook
def test_executed_in_order_without_errors(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [output.output_type for cell in cells for output in cell.outputs]
    assert "error" not in kinds
    # a stripped notebook would pass nbval without being compared
    assert cells[-1].outputs


def settings_of(path):
    return NOTEBOOK_SETTINGS[run.number_of(path)]


@each_notebook
def test_parameters_come_first_and_are_literals(path):
    first = code_cells(path)[0]
    assert first.metadata.tags == ["parameters"]
    for statement in ast.parse(first.source).body:
        assert isinstance(statement, ast.AnnAssign)
        ast.literal_eval(statement.value)
    declared = papermill.inspect_notebook(path)
    names = [statement.target.id for statement in ast.parse(first.source).body]
    assert list(declared) == names
    assert all(about["help"] for about in declared.values()), (
        "every parameter has a help text"
    )
    assert set(names) <= set(settings_of(path).model_fields)


@each_notebook
def test_clean_and_readable(path):
    notebook = nbformat.read(path, as_version=4)
    assert (
        set(notebook.metadata) == {"kernelspec"}
        and notebook.metadata.kernelspec.name == "python3"
    )
    assert path.stat().st_size < 1_000_000
    text = path.read_text(encoding="utf-8")
    assert (
        str(paths.ROOT) not in text
        and "/home/" not in text
        and "application/vnd.jupyter.widget" not in text
    )
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags"}
        for output in cell.get("outputs", []):
            assert output.get("name") != "stderr"
    for cell in code_cells(path):
        tree = ast.parse(cell.source)
        assert not any(
            isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)
            for node in ast.walk(tree)
        )


@each_notebook
def test_defaults_agree_with_the_settings(path):
    for name, about in papermill.inspect_notebook(path).items():
        field = settings_of(path).model_fields[name]
        chosen = (path.stem, name) == ("07_remedies", "twins")  # by the store
        if not field.is_required() and not chosen and field.default not in ("", []):
            assert ast.literal_eval(about["default"]) == field.default, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "given", "message"),
    [
        (
            ["9"],
            {},
            "there is no notebook '9'; there are 00_results, 01_corpus_building, ",
        ),
        (["02"], {"k": 3}, "no notebook of 02_querying has a parameter 'k'"),
        ([], {"system_prompt": ["none"]}, "did you mean 'system_prompts'"),
        ([], {"system_prompts": "none"}, "'system_prompts' is a list"),
    ],
)
def test_a_bad_request_stops_before_any_notebook_runs(
    wanted, given, message, monkeypatch
):
    monkeypatch.setattr(
        run, "execute_notebook", lambda *_: pytest.fail("a notebook was run")
    )
    with pytest.raises(SettingsError, match=message):
        run.run_notebooks(wanted, given)


@pytest.mark.slow
def test_notebooks_get_the_parameters_they_have_in_order(monkeypatch, results):
    ran = []
    monkeypatch.setattr(
        run,
        "execute_notebook",
        lambda notebook, output, given, *_: ran.append((notebook.stem, given)),
    )
    run.run_notebooks((), {"model": "m", "max_new_tokens": 8, "labeller": "policy"})
    order = [stem[:2] for stem, _ in ran]
    numbers = ["02", "A0", "03", "04", "05", "A4", "A5", "06", "07", "A1", "A3", "00"]
    assert order == numbers
    given = dict(zip(order, (parameters for _, parameters in ran), strict=True))
    every = {"model": "m", "store": "live"}
    assert given["02"] == every | {"max_new_tokens": 8}
    assert given["03"] == every | {"labeller": "policy"}
    assert given["05"] == every


@pytest.mark.slow
def test_a_notebook_that_fails_ends_the_run(monkeypatch, results):
    ran = []

    def fails(notebook, *_):
        ran.append(notebook.stem[:2])
        if len(ran) == 2:
            raise UserError("A0_asked_again stopped")

    monkeypatch.setattr(run, "execute_notebook", fails)
    with pytest.raises(UserError, match="A0_asked_again stopped"):
        run.run_notebooks((), {"model": "m"})
    assert ran == ["02", "A0"]


@pytest.mark.slow
def test_an_unknown_system_is_one_clear_error(results):
    with pytest.raises(
        UserError, match="there is no system 'nobody' in this store; there are qwen"
    ) as caught:
        run_here("04_cohort_analysis", system="nobody", resamples=100)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.slow
def test_an_unknown_reference_is_one_clear_error(results):
    with pytest.raises(
        UserError, match="there is no system 'nobody' in this store; there are smollm2"
    ) as caught:
        run_here("05_guard_comparison", reference="nobody", resamples=100)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.slow
@pytest.mark.weekly
def test_cohorts_can_be_drawn_from_the_record_under_another_labeller(results):
    run_here("04_cohort_analysis", labeller="policy", resamples=100)


CORPUS = "prompt_id,cluster_id,variant,strategy,text,source,category,topical,similarity,overlap,risk\n"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"modle": "x"}, "this notebook has no parameter 'modle'"),
        ({"model": "no-such-model"}, "model 'no-such-model' is neither"),
        ({"corpus": "nothing"}, "nothing.csv is not in the"),
        ({"corpus": "empty"}, "empty.csv: there are no rows"),
        ({"corpus": "short"}, "short.csv: column 'risk' is missing"),
        ({"corpus": "blank"}, r"blank.csv: row 2 \(a-0\), column text: is blank"),
    ],
)
def test_02_stops_with_one_line_before_any_model_is_loaded(
    parameters, message, monkeypatch, tmp_path
):
    store = f"test-{tmp_path.name}"
    folder = paths.RESULTS / store / "corpus"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "empty.csv").write_text(CORPUS)
    (folder / "short.csv").write_text(
        CORPUS.replace(",risk", "") + "a-0,a,0,seed,text,test,hate,yes,1,1\n"
    )
    (folder / "blank.csv").write_text(CORPUS + "a-0,a,0,seed,,test,hate,yes,1,1,0.5\n")
    # a model that could be loaded would need this cache
    monkeypatch.setenv("PARAGUARD_CACHE", str(tmp_path / "cache"))
    try:
        with pytest.raises(UserError, match=message) as caught:
            run_here("02_querying", store=store, **parameters)
        assert len(str(caught.value).splitlines()) == 1
        assert not (tmp_path / "cache").exists()
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        folder.parent.rmdir()
