"""Parameters are checked once, and an error about one says what to do."""

import pytest

from paraguard_utils import seams, settings
from paraguard_utils.errors import SettingsError

STUDY = {"store": "recorded", "corpus": "paraguard_mini"}


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (
            settings.QuerySettings,
            {"modle": "x"},
            "no parameter 'modle'; did you mean 'model'",
        ),
        (settings.ScoringSettings, {"k": 0}, "parameter 'k'"),
        (settings.QuerySettings, {"dtype": "float16"}, "parameter 'dtype'"),
        (settings.ResultsSettings, {"store": "../escape"}, "parameter 'store'"),
        (
            settings.QuerySettings,
            {"system_prompts": ["saftey"]},
            "no system prompt 'saftey'",
        ),
        (settings.ScoringSettings, {"weight_ppl": 0.9}, "sum to 1"),
        (
            settings.QuerySettings,
            {"system_prompts": []},
            "'system_prompts': List should have at least 1 item",
        ),
        (
            settings.QuerySettings,
            {"system_prompts": "safety"},
            r"'system_prompts' is a list, not 'safety'; give it as -y"
            r" 'system_prompts: \[one, two\]'",
        ),
        (
            settings.ResultsSettings,
            {"store": "a b"},
            "parameter 'store': String should match pattern .*, not 'a b'",
        ),
        (
            settings.ResultsSettings,
            {"store": "s" * 101},
            "parameter 'store': String should have at most 100 characters",
        ),
        (
            settings.ResultsSettings,
            {"corpus": "../x"},
            "parameter 'corpus': String should match pattern",
        ),
        (
            settings.CorpusSettings,
            {"min_risk": 0.8, "max_risk": 0.2},
            "'min_risk': 0.8 lies above max_risk, 0.2",
        ),
        (settings.QuerySettings, {"shard": "3/2"}, "no part 3 of 2"),
        (settings.QuerySettings, {"stop": 0.5}, "parameter 'stop'"),
        (settings.CorpusSettings, {"candidates": "model:"}, "names no model"),
    ],
)
def test_bad_parameters_are_one_clear_error(model, given, message):
    with pytest.raises(SettingsError, match=message):
        settings.freeze(STUDY | given, model)


def test_a_parameter_of_another_notebook_is_refused():
    declared = {"__annotations__": {"store": str, "corpus": str}}
    with pytest.raises(SettingsError, match="no parameter 'k'"):
        settings.freeze(STUDY | declared | {"k": 10}, settings.ScoringSettings)


def test_naming_a_model_means_the_live_store():
    base = {"store": "recorded", "corpus": "c"}

    def store_of(**given):
        return settings.freeze(base | given, settings.QuerySettings).open_store()

    assert store_of().recorded
    assert store_of(model="m").name == "live"
    assert store_of(model="m", store="mine").name == "mine"


@pytest.mark.parametrize(
    ("model", "old", "new", "value"),
    [
        (settings.QuerySettings, "wrappers", "system_prompts", ["safety"]),
        (settings.QuerySettings, "twins_wrappers", "twins_system_prompts", ["safety"]),
        (settings.CohortSettings, "target", "system", "mine--safety"),
    ],
)
def test_old_names_are_read_with_a_warning(model, old, new, value, capsys):
    # As papermill injects it: the notebook's own default is there too.
    namespace = STUDY | {new: [] if isinstance(value, list) else "", old: value}
    frozen = settings.freeze(namespace, model)

    assert getattr(frozen, new) == value
    assert f"parameter {old!r} is called {new!r} now" in capsys.readouterr().err


def test_an_old_name_of_another_notebook_is_unknown():
    with pytest.raises(SettingsError, match="no parameter 'wrappers'"):
        settings.freeze(STUDY | {"wrappers": ["safety"]}, settings.CohortSettings)


def test_a_part_is_picked_from_all_parameters():
    parameters = STUDY | {"k": 7, "labeller": "cues", "guards": ["cue-list"]}
    part = settings.ScoreOptions.pick(parameters)

    assert part.scoring().k == 7
    assert part.labeller == "cues"


def test_a_notebook_ends_early_without_an_error(capsys):
    with pytest.raises(SystemExit) as ended:
        settings.end_notebook("half is done")

    assert ended.value.code == 0
    assert "half is done" in capsys.readouterr().err


def test_an_extension_that_is_not_installed_is_one_line():
    with pytest.raises(SettingsError, match=r"'nobody' to the list paraguard\.queries"):
        seams.load_extension("queries", "nobody")
