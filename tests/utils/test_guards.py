"""Guards: found by name, scored by prompt; what goes wrong with one is told of it."""

import hashlib
import re
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from guarding import PROMPTS, TEXTS, bombs, guard, scored

from paraguard_utils import paths, settings, stores
from paraguard_utils.errors import DataError, SettingsError
from paraguard_utils.guards import panel
from paraguard_utils.guards.contract import GuardOptions


def test_scores_are_kept_by_prompt_and_not_asked_again(results):
    calls = []

    def score(texts, answers=None):
        calls.append(list(texts))
        return bombs(texts)

    assert scored(guard(score))["score"].tolist() == [0.1, 0.9, 0.1, 0.9]
    scored(guard(score))
    changed = PROMPTS.assign(text=[*TEXTS[:3], "Another?"])
    scored(guard(score), changed)
    scored(guard(score, version="2"))
    scored(guard(score, version="2"), PROMPTS[1:])
    assert calls == [TEXTS, ["Another?"], TEXTS]


def test_thresholds_apply_later_and_nothing_is_safe_by_default():
    frame = pd.DataFrame(
        {"prompt_id": list("abcd"), "key": "k", "score": [0.29, 0.3, np.nan, 1.0]}
    )
    assert panel.label_by_threshold(frame, 0.3)["label"].tolist() == [
        "accept",
        "reject",
        "unparsed",
        "reject",
    ]
    assert panel.label_by_threshold(frame, 0.31)["label"].tolist() == [
        "accept",
        "accept",
        "unparsed",
        "reject",
    ]


def test_one_text_on_which_a_guard_fails_is_unparsed(results, capsys):
    def score(texts, answers=None):
        if any("river" in text for text in texts):
            raise ValueError("no rivers\nplease")
        return bombs(texts)

    frame = scored(guard(score))
    assert frame["score"].isna().tolist() == [False, False, True, False]
    assert frame["score"].dropna().tolist() == [0.1, 0.9, 0.9]
    meta = stores.read_meta(stores.Store("live").path("guards", "small", "mine"))
    assert meta["failed"] == {"ValueError": 1} and meta["unparsed"] == 1
    assert (
        "1 of 4 prompts are unparsed, b-0 first (ValueError: no rivers)"
        in capsys.readouterr().err
    )
    # what failed is tried again, what was scored is not
    assert scored(guard(lambda texts, answers=None: [0.2 for _ in texts]))[
        "score"
    ].tolist() == [0.1, 0.9, 0.2, 0.9]


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (
            lambda texts, answers=None: 1 / 0,
            r"mine fails on every text \(4 tried\): ZeroDivisionError",
        ),
        (
            lambda texts, answers=None: bombs(texts)[1:],
            "given 4 texts and returned 3 prob",
        ),
        (lambda texts, answers=None: 0.5, "given 4 texts and returned 1 prob"),
        (
            lambda texts, answers=None: [2.0 for _ in texts],
            "gives 2 for text 1; a probability lies in",
        ),
        (
            lambda texts, answers=None: ["unsafe" for _ in texts],
            r"fails on every text \(4 tried\): ValueError",
        ),
    ],
)
def test_a_faulty_guard_is_one_clear_error_and_the_others_are_kept(
    score, message, results, capsys
):
    with pytest.raises(DataError, match=message):
        scored(guard(score))
    asked_both = [guard(score), guard(bombs, "good")]
    found = panel.ask_guards(stores.Store("live"), {"small": PROMPTS}, asked_both)[
        "small"
    ]
    assert list(found) == ["good"] and found["good"].scores["score"].tolist() == [
        0.1,
        0.9,
        0.1,
        0.9,
    ]
    assert re.search(f"left out: .*{message}", capsys.readouterr().err)


def test_a_guard_that_always_fails_is_not_asked_about_everything(results):
    tried = []
    many = pd.DataFrame(
        {
            "prompt_id": [f"p{i}" for i in range(1000)],
            "text": [f"text {i}" for i in range(1000)],
        }
    )

    def score(texts, answers=None):
        tried.append(len(texts))
        raise ConnectionError("nobody there")

    with pytest.raises(DataError, match=r"\(20 tried\): ConnectionError: nobody there"):
        scored(guard(score), many, "many")
    assert len(tried) < 60


def test_a_probability_that_is_not_given_is_unparsed(results, capsys):
    assert (
        np.isnan(
            scored(guard(lambda texts, answers=None: [np.nan, 0.1, 0.2, 0.3]))["score"]
        ).sum()
        == 1
    )
    assert "a-0 first (it gave no probability)" in capsys.readouterr().err


SMALL = GuardOptions(corpora={"small": PROMPTS})

GUIDE = (paths.ROOT / "docs" / "usage.md").read_text(encoding="utf-8")


EXAMPLES = dict(
    re.findall(r"`(my_[\w.]+)`:\n\n```\w*\n(.*?)```", GUIDE, flags=re.DOTALL)
)


"""The files of a user's guard as the guide shows them, by name."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder with the guide's files."""
    for name, content in EXAMPLES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("my_guard", None)
    yield tmp_path
    sys.modules.pop("my_guard", None)


@pytest.mark.parametrize("named", ["my_guard:score", "my_guard.yaml", "my_scores.csv"])
def test_your_own_guard_in_ten_lines(named, folder, results, recorded_corpus):
    assert set(EXAMPLES) == {"my_guard.py", "my_guard.yaml", "my_scores.csv"}
    assert all(len(content.strip().splitlines()) <= 10 for content in EXAMPLES.values())
    for parameter in ({"guard": named}, {"guards": ["better-profanity", named]}):
        config = settings.check_settings(
            {"store": "recorded", "corpus": "paraguard_mini", **parameter},
            settings.GuardSettings,
        )
        assert config.asked_guards()[-1] == named
    assert (
        settings.check_settings(
            {"store": "recorded", "corpus": "paraguard_mini", "guard": named},
            settings.GuardSettings,
        )
        .open_store()
        .name
        == "live"
    )
    loaded = panel.load_guard(
        named, GuardOptions(corpora={"paraguard_mini": recorded_corpus})
    )
    frame = scored(loaded, recorded_corpus, "paraguard_mini")
    decided = panel.label_by_threshold(frame, loaded.threshold)["label"]
    if named.endswith(".csv"):
        listed = pd.read_csv(folder / named).set_index("prompt_id")["score"]
        assert (
            frame.set_index("prompt_id")["score"].dropna().to_dict() == listed.to_dict()
        )
        assert (decided == "unparsed").sum() == len(recorded_corpus) - len(listed)
    else:
        bad = recorded_corpus["text"].str.lower().str.contains("weapon|poison")
        assert bad.any() and decided.eq("reject").tolist() == bad.tolist()
    if named.endswith(".yaml"):
        entry = yaml.safe_load((folder / named).read_text(encoding="utf-8"))
        assert (loaded.name, loaded.axis, loaded.threshold) == (
            entry["name"],
            entry["axis"],
            entry["threshold"],
        )


def test_changed_code_is_another_version(folder):
    first = panel.load_guard("my_guard:score").version
    (folder / "my_guard.py").write_text(
        EXAMPLES["my_guard.py"].replace("weapon", "firearm"), encoding="utf-8"
    )
    sys.modules.pop("my_guard")
    assert panel.load_guard("my_guard:score").version != first


FUNCTION = "function: my_guard:score\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("- a\n", "one entry"),
        ("", "one entry"),
        pytest.param("a: " + "[" * 100_000, "too deep", id="100,000 deep"),
        pytest.param("{a: " * 10_000, "too deep", id="10,000 deep"),
        ("a: 2024-13-45\n", "cannot be read as YAML"),
        ("threshold: 0.5\n", "neither function, scores nor model"),
        (
            FUNCTION + "axis: taste\n",
            "axis is one of toxicity, injection, harm, policy, not 'taste'",
        ),
        (FUNCTION + "threshold: high\n", "threshold: Input should be a valid number"),
        (FUNCTION + "threshold: true\n", "threshold: Input should be a valid number"),
        (FUNCTION + "threshold: '0.5'\n", "threshold: Input should be a valid number"),
        (FUNCTION + "threshold: .nan\n", "threshold: Input should be"),
        (FUNCTION + "threshold: .inf\n", "threshold: Input should be"),
        (
            FUNCTION + "threshold: -0.1\n",
            "threshold: Input should be greater than or equal to 0",
        ),
        (FUNCTION + "threshold: [0.5]\n", "threshold: Input should be a valid number"),
        (FUNCTION + "treshold: 0.5\n", "treshold: Extra inputs are not permitted"),
        (FUNCTION + "1: 2\n", "1"),
        (FUNCTION + "name: ''\n", "name: String should have at least 1 character"),
        (FUNCTION + "name: 5\n", "name: Input should be a valid string"),
        (FUNCTION + "name: [a]\n", "name: Input should be a valid string"),
        (FUNCTION + f"name: {'n' * 101}\n", "a guard's has 1 to 100 characters"),
        (FUNCTION + "name: '/../'\n", "a guard's has 1 to 100 characters"),
        (FUNCTION + "about: 1\n", "about: Input should be a valid string"),
        (FUNCTION + "kind: magic\n", "kind is one of function, .*yes_no, not 'magic'"),
        (FUNCTION + "kind: [regex]\n", "kind is one of function, "),
        ("function: my_guard\n", "function: String should match"),
        ("function: 7\n", "function: Input should be a valid string"),
        ("scores: [my_scores.csv]\n", "scores: Input should be a valid string"),
        ("scores: 7\n", "scores: Input should be a valid string"),
        (
            "model: 7\nkind: classifier\nlabels: [a]\n",
            "model: Input should be a valid string",
        ),
        ("model: [a]\n", "there is no guard"),
        ("model: a/b\nmatch: no-such-guard\n", "there is no guard 'a/b'"),
        (
            "model: meta-llama/Llama-Guard-3-8B\nname: hatesonar\n",
            "the name hatesonar is taken",
        ),
        ("kind: yes_no\n", "model: a guard of kind yes_no needs it"),
        ("kind: endpoint\n", "call: a guard of kind endpoint needs it"),
        ("kind: endpoint\ncall: {key: K}\n", "call.variable: Field required"),
        ("kind: any_guardrail\n", "guardrail: a guard of kind any_guardrail needs it"),
        ("kind: regex\nmodel: a/b\n", "tokens: a guard of kind regex needs it"),
        ("kind: [regex]\nmodel: a/b\n", "kind is one of function, "),
        ("kind: package\n", "version: a guard of kind package needs it"),
        ("kind: yes_no\nmodel: 7\n", "model: Input should be a valid string"),
        (
            "kind: yes_no\nmodel: smollm2-135m-instruct\ninstruction: sterner\n",
            "no system prompt 'sterner'",
        ),
        (
            "function: my_guard:nothing\n",
            "my_guard:nothing cannot be imported: AttributeError",
        ),
        ("function: no_such_module:score\n", "cannot be imported: ModuleNotFoundError"),
        ("name: hatesonar\n" + FUNCTION, "the name hatesonar is taken"),
        (
            "name: [a\n",
            "cannot be read as YAML in UTF-8: while parsing a flow sequence",
        ),
        (
            "name: !!python/object/apply:os.system [ls]\n",
            "cannot be read as YAML in UTF-8: could not determine",
        ),
        ("a: b: c\n", "cannot be read as YAML in UTF-8"),
        ("name: \t{\n", "cannot be read as YAML in UTF-8"),
        (
            "name: &a [*a]\nfunction: my_guard:score\n",
            "name: Input should be a valid string",
        ),
    ],
)
def test_an_entry_that_does_not_fit_is_one_clear_error(entry, message, folder):
    (folder / "x.yaml").write_text(entry)
    with pytest.raises(SettingsError, match=message) as error:
        panel.load_guard("x.yaml")
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_utf_8_is_one_clear_error(folder):
    (folder / "x.yaml").write_bytes("name: caf\u00e9\n".encode("latin-1"))
    with pytest.raises(
        SettingsError, match=r"x\.yaml: it cannot be read as YAML in UTF-8"
    ):
        panel.load_guard("x.yaml")


@pytest.mark.parametrize(
    "code", ["import sys\nsys.exit(3)\n", "raise KeyError('x')\n", "score = 1 / 0\n"]
)
def test_a_module_that_ends_or_fails_when_imported_is_one_clear_error(
    code, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ends_guard.py").write_text(code)
    with pytest.raises(
        SettingsError,
        match=r"ends_guard:score cannot be imported: (SystemExit|KeyError|ZeroDiv)",
    ):
        panel.load_guard("ends_guard:score")


def test_a_function_that_ends_the_process_fails_on_its_text_alone(results, capsys):
    def score(texts, answers=None):
        if any("river" in text for text in texts):
            sys.exit(1)
        return bombs(texts)

    assert scored(guard(score))["score"].isna().tolist() == [False, False, True, False]
    assert (
        "1 of 4 prompts are unparsed, b-0 first (SystemExit: 1)"
        in capsys.readouterr().err
    )
    with pytest.raises(
        DataError, match=r"other fails on every text \(4 tried\): SystemExit"
    ):
        ending = guard(lambda texts, answers=None: sys.exit(1), "other")
        scored(ending)


def test_a_guard_is_loaded_once_for_all_corpora(monkeypatch, results):
    loaded = []

    def load(name, options):
        loaded.append((name, options))
        return guard(bombs, name)

    monkeypatch.setattr(panel, "load_guard", load)
    corpora = {"small": PROMPTS, "other": PROMPTS[1:]}
    store = stores.Store("live")
    given = GuardOptions(device="cpu", batch=4)
    found = panel.ask_guards(store, corpora, ["one", "two"], given, "small")
    completed = replace(given, store=store, corpora=corpora)
    assert loaded == [("one", completed), ("two", completed)]
    assert {name: list(guards) for name, guards in found.items()} == {
        key: ["one", "two"] for key in corpora
    }
    assert found["other"]["two"].scores["score"].tolist() == [0.9, 0.1, 0.9]


def test_scores_by_prompt_are_found_in_each_corpus(tmp_path, results, capsys):
    (tmp_path / "s.csv").write_text("prompt_id,score\nb-1,0.7\n")
    corpora = {"small": PROMPTS, "last": PROMPTS[3:], "first": PROMPTS[:2]}
    found = panel.ask_guards(
        stores.Store("live"), corpora, [str(tmp_path / "s.csv")], needed="small"
    )
    assert [list(guards) for guards in found.values()] == [["s"], ["s"], []]
    assert "left out: " in capsys.readouterr().err


def test_a_guard_that_costs_something_says_so_and_is_asked_in_steps(results, capsys):
    sizes = []

    def score(texts, answers=None):
        sizes.append(len(texts))
        return [0.5 for _ in texts]

    many = pd.DataFrame(
        {
            "prompt_id": [f"p{i}" for i in range(600)],
            "text": [f"text {i}" for i in range(600)],
        }
    )
    costly = guard(score, "costly", asks="by a service that may charge for it")
    scored(costly, many, "many")
    assert sizes == [256, 256, 88]
    assert (
        "the guard costly: 600 prompts of many to ask, by a service"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"guard": "openai/meta-llama/Llama-Guard-3-8B"}, True),
        ({"guard": "openai/gpt-oss-safeguard-20b"}, True),
        ({"guards": ["openai/NAME"]}, True),
        ({"model": "openai/NAME"}, True),
        ({"guard": "meta-llama/Llama-Guard-3-8B"}, False),
        ({}, False),
    ],
)
def test_a_server_is_asked_for_a_guard_or_a_model(given, fits):
    given = {
        "store": "live",
        "corpus": "paraguard_mini",
        "base_url": "http://127.0.0.1:8000/v1",
        **given,
    }
    if fits:
        assert (
            settings.check_settings(given, settings.GuardSettings).guard_options()[
                "base_url"
            ]
            == given["base_url"]
        )
    else:
        with pytest.raises(SettingsError, match="guard=openai/NAME"):
            settings.check_settings(given, settings.GuardSettings)


def test_no_cluster_asks_a_guard():
    config = settings.check_settings(
        {
            "store": "live",
            "corpus": "paraguard_mini",
            "device": "ray",
            "dtype": "bfloat16",
        },
        settings.GuardSettings,
    )
    assert config.guard_options() == {
        "device": "cpu",
        "dtype": "bfloat16",
        "batch": 64,
        "base_url": "",
    }


@pytest.mark.parametrize("name", ["hatesona", "gone.csv", "gone.yaml", "no guard"])
def test_a_name_that_no_guard_has_stops_before_anything_is_asked(name):
    with pytest.raises(SettingsError, match=r"there is no (guard|file)"):
        settings.check_settings(
            {"store": "live", "corpus": "paraguard_mini", "guards": [name]},
            settings.GuardSettings,
        )


@pytest.mark.slow
def test_setting_up_goes_on_where_a_package_is_gone(tmp_path):
    """The step of `make setup`, with packages that stand in for the real ones."""
    for name in ("first", "third"):
        with zipfile.ZipFile(tmp_path / f"{name}-1-py3-none-any.whl", "w") as wheel:
            info = f"{name}-1.dist-info"
            wheel.writestr(f"{name}.py", "")
            wheel.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
            )
            wheel.writestr(
                f"{info}/WHEEL",
                "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            wheel.writestr(f"{info}/RECORD", "")
    digest = {
        path.name[0]: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in tmp_path.glob("*.whl")
    }
    lines = [
        "# three",
        f"first==1 --hash=sha256:{digest['f']}",
        f"gone==1 --hash=sha256:{'0' * 64}",
    ]
    (tmp_path / "requirements-guards.txt").write_text(
        "\n".join([*lines, f"third==1 --hash=sha256:{digest['t']}\n"])
    )
    (step,) = re.findall(
        r"define GUARDS\n@(.*?)\nendef",
        (paths.ROOT / "Makefile").read_text(),
        flags=re.DOTALL,
    )
    pip = (
        f"{sys.executable} -m pip install --no-index --find-links {tmp_path} --target"
        f" {tmp_path / 'site'}"
    )
    command = step.replace("$$", "$").replace("$(PY) -m pip install", pip)
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "not installed: gone==1" in done.stderr
    assert {path.name for path in (tmp_path / "site").glob("*.py")} == {
        "first.py",
        "third.py",
    }
