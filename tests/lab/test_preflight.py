"""What a run announces before the first prompt."""

import papermill
import pytest
import tiny

from paraguard_lab import preflight, run
from paraguard_lab.settings import RunSettings


def describe(numbers=("02", "05", "07"), **given):
    """Return the line of a run of these notebooks with these parameters."""
    parameters = {}
    for path in run.list_notebooks(*numbers):
        about = papermill.inspect_notebook(path)
        own = {name: value for name, value in given.items() if name in about}
        parameters[run.number_of(path)] = preflight.read_defaults(about) | own
    named = {"store": "mine", "corpus": "paraguard_mini", "model": "m"} | given
    return preflight.describe_queries(RunSettings.pick(named), parameters)


def test_prompts_twins_guards_and_remedies_are_announced(results):
    # 1,200 prompts of the corpus and 1,200 twins, each under three system prompts
    line = describe()
    assert "3,600 harmless and 3,600 harmful prompts" in line
    assert "05 has recorded scores of" in line and "07 queries rewordings" in line


def test_fewer_system_prompts_are_fewer_prompts(results):
    line = describe(system_prompts=["none", "safety"], twins_system_prompts=["safety"])
    assert "2,400 harmless and 1,200 harmful prompts" in line


def test_a_try_asks_no_twins(results):
    line = describe(("02",), limit=7)
    assert "21 harmless prompts" in line and "harmful" not in line


def test_a_guard_of_ones_own_is_named(results):
    line = describe(("05",), guard="my_guard:score")
    assert "runs 1 on all prompts (my_guard:score)" in line


def test_the_record_queries_nothing():
    named = RunSettings(store="recorded", corpus="paraguard_mini")
    assert preflight.describe_queries(named, {"02": {}}) == ""


def test_minutes_grow_with_the_weights(results, tmp_path):
    recorded = preflight._seconds_of_prompt
    # The record has 0.3 to 0.5 s a prompt for 0.135 billion parameters, and 1.7 for
    # 1.5, on two cores
    assert 0.2 < recorded(0.135) < 0.6
    assert 1.2 < recorded(1.544) < 2.5
    assert recorded(7.0) > 4 * recorded(1.0)
    folder = tiny.write(tmp_path / "tiny")
    line = describe(("02",), model=str(folder))
    seconds = 7200 * recorded(0)
    assert f"about {seconds / 60:,.0f} minutes on two processor cores" in line


@pytest.mark.parametrize("given", [{"device": "cuda"}, {"base_url": "http://x/v1"}])
def test_minutes_of_other_machines_are_not_known(results, given):
    line = describe(("02",), **given)
    assert "minutes" not in line and "progress bar" in line


def test_folders_keep_their_dtype_in_mind(tmp_path):
    assert preflight._read_dtype(tiny.write(tmp_path / "tiny")) == "float32"
    assert preflight._read_dtype(tmp_path / "gone") == ""
