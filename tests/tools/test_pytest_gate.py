"""The fixture for tests of one's own chat function: the guide's example as written, in
a pytest of its own.
"""

import hashlib
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.core import until_sure
from paraguard_tools.harness.pytest_gate import Asked, Gate
from paraguard_tools.harness.requests import read_requests
from paraguard_utils import paths
from paraguard_utils.errors import DataError, SettingsError

SORRY = "I'm sorry, but I can't help with that."


def deal(text, share=0.5):
    """Refuse so large a share of texts."""
    return (
        SORRY
        if hashlib.sha256(text.encode()).digest()[0] < 256 * share
        else "Sure: dig a hole, and water it."
    )


@pytest.fixture(scope="module")
def own():
    """The gate over the installed corpus, with the cue list."""
    return Gate(labeller="cues")


@pytest.fixture
def by_meaning(own):
    """A chat function that decides nine of ten requests by their meaning: without any
    exception DR has no bounds.
    """
    of = own.requests.set_index("text")["cluster"]
    return lambda text: deal(text if deal(f"{text}?", 0.1) == SORRY else of[text])


@pytest.mark.slow
def test_asking_ends_when_it_is_sure(own, by_meaning, capsys):
    asked = []
    own.until_sure(lambda text: asked.append(text) or by_meaning(text), dr=0.8)
    line = capsys.readouterr().out
    # 100 refusals and 100 answers are needed: forty clusters of six at least
    assert (
        line.startswith("not worse after")
        and 240 <= len(asked) == len(set(asked)) < 600
    )
    assert f"{len(asked)} prompts: DR 0.1" in line
    with pytest.raises(pytest.fail.Exception, match=r"worse after \d+ of 200 clusters"):
        own.until_sure(deal, dr=0.8)


@pytest.mark.slow
def test_a_function_that_refuses_nothing_passes(own, capsys):
    own.until_sure(lambda text: "Sure: dig.", dr=0.8)
    line = capsys.readouterr().out
    assert line.startswith("not worse after 200 of 200 clusters, 1200 prompts")
    assert "0 refused, 1200 answered, 0 without a decision" in line
    assert "nan" not in line and "nothing was refused" in line
    with pytest.raises(pytest.fail.Exception, match="everything was refused"):
        own.until_sure(lambda text: SORRY, dr=0.8)


def test_a_function_that_returns_nothing_fails_early(own):
    asked = []
    with pytest.raises(pytest.fail.Exception, match="no answer came back") as failed:
        own.until_sure(lambda text: asked.append(text), dr=0.8)
    assert len(asked) == 60 and "60 without a decision" in str(failed.value)
    with pytest.raises(pytest.fail.Exception, match="none of 60 answers can be read"):
        own.ask(lambda text: None, clusters=10)


@pytest.mark.slow
def test_calls_that_time_out_let_nothing_pass(own):
    """Half of the calls, and then every thirtieth, return nothing."""

    def flaky(text):
        return None if deal(f"{text}!") == SORRY else "Sure: dig."

    with pytest.raises(pytest.fail.Exception, match="at most 5 % may be without"):
        own.until_sure(flaky, dr=0.8)
    with pytest.raises(pytest.fail.Exception, match="more than 5 %"):
        own.ask(flaky, clusters=60).at_most(frr=0.3)

    def seldom(text):
        return None if deal(f"{text}!", 1 / 30) == SORRY else "Sure: dig."

    with pytest.raises(pytest.fail.Exception, match="what has no decision may have"):
        own.until_sure(seldom, dr=0.8)
    own.ask(seldom).at_most(frr=0.1)


def test_a_limit_out_of_reach_says_what_the_corpus_can_give(own):
    asked = own.ask(lambda text: deal(text, 1 / 3), clusters=100)
    value, high = asked.table.loc[0, ["frr", "frr_high"]]
    # twice the clusters narrow the interval by the root of two
    reached = value + (high - value) / np.sqrt(2)
    with pytest.raises(pytest.fail.Exception) as failed:
        asked.at_most(frr=value + 0.002)
    assert f"at most {reached:.2f}, and nothing closer" in str(failed.value)


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), -0.1, 1.0, True])
def test_a_limit_that_lets_everything_pass_is_an_error(limit):
    table = pd.DataFrame([{"system": "s", "frr": 0, "frr_low": 0, "frr_high": 0}])
    with pytest.raises(SettingsError, match="lets everything pass"):
        Asked(table).at_most(frr=limit)


def test_a_third_of_refusals_at_random(own):
    asked = own.ask(lambda text: deal(text, 1 / 3), clusters=100)
    row = asked.table.iloc[0]
    # refused in one wording of six at least: 1 - (2/3)^6 = 0.91; answered within three
    # others: 1 - (1/3)^3 = 0.96
    assert row["frr"] == pytest.approx(1 / 3, abs=0.06) and row["n"] == 600
    assert row["refused_once"] == pytest.approx(0.91, abs=0.06)
    assert row["rephrased3"] == pytest.approx(0.96, abs=0.03)
    asked.at_most(frr=0.45)
    asked.at_least(rephrased3=0.85, refused_once=0.75)
    for judge, limits in (
        (asked.at_most, {"frr": 0.2}),
        (asked.at_least, {"frr": 0.45, "dr": 0.1}),
    ):
        with pytest.raises(pytest.fail.Exception, match="all rows: worse: frr"):
            judge(**limits)
    with pytest.raises(pytest.fail.Exception, match="all rows: too little to say: frr"):
        asked.at_most(frr=row["frr"])
    with pytest.raises(
        DataError, match=r"no measure 'odds'; there are dr, dr_few_words, .*frr"
    ):
        asked.at_most(odds=1)


def test_harmful_twins_stand_beside_their_clusters(tmp_path):
    for name, end in (("mine", ""), ("twins", "-twin")):
        rows = [
            {"text": f"{name} {i} {j}", "cluster_id": f"c-{i}{end}"}
            for i in range(40)
            for j in range(3)
        ]
        pd.DataFrame(rows).to_csv(tmp_path / f"{name}.csv", index=False)
    own = Gate(
        read_requests(tmp_path / "mine.csv", tmp_path / "twins.csv"), labeller="cues"
    )
    row = own.ask(lambda text: deal(text, 0.9 if "twins" in text else 0.1)).table.iloc[
        0
    ]
    assert row["n_harmful"] == 120 and row["harmful_refused"] > 0.8 > 0.2 > row["frr"]
    asked = []
    own.until_sure(lambda text: asked.append(text) or "Sure: dig.", dr=0.5)
    assert len(asked) == 120 and not [text for text in asked if "twins" in text], (
        "DR is of harmless requests"
    )
    (tmp_path / "bad.csv").write_text("prompt\nx\n")
    with pytest.raises(
        DataError, match=r"bad\.csv: cannot be read .* with text and cluster_id"
    ):
        read_requests(tmp_path / "bad.csv")


def test_what_has_no_interval_is_too_little_to_say():
    table = pd.DataFrame(
        {
            "system": ["s"],
            "dr": [0.2],
            "dr_low": [float("nan")],
            "dr_high": [float("nan")],
        }
    )
    for judge in (Asked(table).at_most, Asked(table).at_least):
        with pytest.raises(pytest.fail.Exception, match="too little to say"):
            judge(dr=0.5)


def test_a_verdict_tells_what_was_decided():
    rows = pd.DataFrame(
        {
            "cluster_id": [f"c{i // 6}" for i in range(1200)],
            "refused": [i % 2 for i in range(1200)],
        }
    )
    order = rows["cluster_id"].unique()
    found = until_sure.judge_until_sure(
        order, lambda some: rows[rows["cluster_id"].isin(some)], 0.5
    )
    # every cluster is half refused: 18 of 36 ordered pairs differ of 30 within, 0.6,
    # over 0.5: DR 1.2 and no spread
    assert (found.verdict, found.value, found.clusters, found.rows) == (
        "worse",
        pytest.approx(1.2, abs=0.01),
        40,
        240,
    )


CUES_ONLY = """
from dataclasses import replace
import pytest

@pytest.fixture(scope="session")
def paraguard_gate(paraguard_gate):
    return replace(paraguard_gate, labeller="cues")
"""
"""The classifier takes twenty seconds."""


@pytest.mark.slow
def test_the_example_of_the_guide_runs_as_written(tmp_path):
    guide = (paths.ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
    (example,) = re.findall(
        r"```python\n(def chat\(text\).*?)```", guide, flags=re.DOTALL
    )
    assert len([line for line in example.splitlines() if line]) <= 10
    (tmp_path / "test_mine.py").write_text(
        "import my_client\n\n" + example, encoding="utf-8"
    )
    (tmp_path / "conftest.py").write_text(CUES_ONLY)
    (tmp_path / "my_client.py").write_text(
        "def ask(text):\n    return 'Sure: dig.' if len(text) % 2 else None\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "2 failed" in done.stdout, done.stdout
    assert "without a decision" in done.stdout
