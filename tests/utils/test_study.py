"""What notebook 02 says of a try, and of answers that nobody can read; one thread."""

import pandas as pd
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from paraguard_lab.labels import unread
from paraguard_utils import stores
from paraguard_utils.analysis import confusion
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling, systems
from paraguard_utils.settings import QuerySettings, ScoringSettings
from paraguard_utils.stores import CorpusFiles, Store
from paraguard_utils.study import Page, QueryStudy

SYSTEM = "smollm2-135m-instruct-q4_1--safety"


def open_study(monkeypatch, empty, **given):
    """Return 02's study of recorded answers under new names; those of `empty` are empty."""
    named = {"store": "mine", "corpus": "paraguard_mini", "model": "m"}
    options = {"system_prompts": ["safety"], "twins": ""}
    study = QueryStudy.open(QuerySettings(**named | options | given))
    count = len(study.prompts)
    recorded = CorpusFiles(Store("recorded"), "paraguard_mini")
    labels = labelling.read_decisions(recorded, SYSTEM).head(count)
    traces = recorded.read("traces", SYSTEM).set_index("prompt_id")
    traces = traces.loc[study.prompts["prompt_id"]].reset_index()
    traces["finish_reason"] = "length"
    asked = {}
    for name in ("read", "thinking"):
        asked[name] = traces.assign(response="") if name in empty else traces

    def label(frame, prompts):
        if frame["response"].any():
            return labels
        return labels.assign(label="unparsed", kind="empty", response="")

    monkeypatch.setattr(systems, "ask_systems", lambda *_: asked)
    monkeypatch.setattr(labelling, "label_answers", label)
    return study


@pytest.mark.parametrize("empty", [["read", "thinking"], ["thinking"]])
def test_a_system_that_nobody_can_read_ends_the_notebook_in_one_line(
    results, monkeypatch, empty
):
    study = open_study(monkeypatch, empty, limit=60)
    with pytest.raises(
        DataError, match=r"none of its 60 answers .*max_new_tokens"
    ) as told:
        study.query()
    assert str(told.value).startswith(f"{empty[0]}: ")
    assert "60 cut at the limit of tokens" in str(told.value)


def test_systems_that_can_be_read_go_on(results, monkeypatch, capsys):
    assert list(open_study(monkeypatch, [], limit=60).query()) == ["read", "thinking"]
    assert "can be scored" not in capsys.readouterr().err


@pytest.mark.parametrize("n_german", [12, 13])
def test_answers_in_a_language_that_the_labeller_does_not_read(n_german):
    # 20 % of 60 answers are counted and named; with one more no rate is given
    recorded = CorpusFiles(Store("recorded"), "paraguard_mini")
    labels = labelling.read_decisions(recorded, SYSTEM).head(60).copy()
    labels["answer"] = "on_topic"
    rows = labels.index[:n_german]
    labels.loc[rows, "response"] = (
        "Dabei kann ich dir leider nicht weiterhelfen, tut mir leid."
    )
    labels.loc[rows, "answer"] = "degenerate"
    traces = pd.DataFrame({"finish_reason": ["stop"] * 60})
    if n_german == 12:
        line = unread.report_unread("mine", labels, traces)
        assert line.startswith("mine: 12 of 60 answers seem to be in another language")
        assert "(de 12)" in line
    else:
        with pytest.raises(DataError, match=r"13 of 60 .* no rate is given"):
            unread.report_unread("mine", labels, traces)


@pytest.mark.parametrize("limit", [60, 0])
def test_a_try_says_that_it_is_one(results, monkeypatch, capsys, limit):
    study = open_study(monkeypatch, [], limit=limit)
    shown = study.query()
    capsys.readouterr()
    rates = pd.DataFrame([confusion.rate_row(system) for system in shown.values()])
    study.show_rates(rates, {})
    said = capsys.readouterr().err
    assert ("A try: the first 60 of 1,200" in said) == bool(limit)
    assert "refused (FRR)" in said
    assert not stores.Store("mine").has("tables", "table1_systems")


def test_a_notebook_multiplies_in_one_thread():
    with threadpool_limits(2, user_api="blas"):
        Page(ScoringSettings(store="recorded", corpus="paraguard_mini"))
        pools = threadpool_info()
    threads = [pool["num_threads"] for pool in pools if pool["user_api"] == "blas"]
    assert threads and set(threads) == {1}
