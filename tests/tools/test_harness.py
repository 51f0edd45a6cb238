"""ParaGuard inside Inspect and lm-evaluation-harness: the packaged model gets the
labels of the record.
"""

import re

import numpy as np
import pandas as pd
import pytest
from test_live import has_model

from paraguard_lab.core.disagreement import disagreement_parts
from paraguard_tools.harness import LM_EVAL
from paraguard_tools.harness.requests import measure_decisions, read_requests
from paraguard_utils import paths, registry, stores
from paraguard_utils.core import disagreement
from paraguard_utils.core.decisions import as_refused
from paraguard_utils.models import loading

SYSTEM = "smollm2-135m-instruct-q4_1--safety"
ASKED = 6
"""Requests that the model is really asked."""

real = pytest.mark.skipif(
    not has_model(), reason="the default model's weights package is not installed"
)


@pytest.fixture(scope="module")
def recorded(recorded_corpus):
    """The recorded answers of the packaged model, with what was asked."""
    labels = stores.Store("recorded").read("labels", "paraguard_mini", SYSTEM)
    return labels.merge(
        recorded_corpus[["prompt_id", "text", "cluster_id"]],
        on="prompt_id",
        validate="1:1",
    )


@pytest.fixture
def folder(monkeypatch):
    """The packaged model as a folder; nothing is fetched."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return loading.convert_gguf(loading.resolve_model("smollm2-135m-instruct"))


def test_what_is_measured_of_recorded_labels(recorded):
    requests = read_requests()
    assert (
        requests["text"].tolist() == recorded["text"].tolist()
        and not requests["harmful"].any()
    )
    found = measure_decisions(requests.assign(label=recorded["label"].to_numpy()))
    refused = as_refused(recorded["label"].to_numpy(object), blocked=True)
    assert found["frr"] == pytest.approx(refused.mean())
    decided = disagreement.count_decisions(refused, recorded["cluster_id"])
    assert found["dr"] == pytest.approx(
        disagreement_parts(decided["n"], decided["rejected"])[2]
    )
    assert found["dr_low"] < found["dr"] < found["dr_high"]


def test_harmful_twins_are_told_apart_and_nothing_decided_is_nan():
    twins = read_requests(
        paths.DATA / "corpus" / "paraguard_mini.csv",
        paths.DATA / "corpus" / "paraguard_twins.csv",
    )
    assert (
        twins["harmful"].sum() == 1200
        and twins.loc[twins["harmful"], "cluster"].isin(twins["cluster"][:1200]).all()
    )
    labels = np.where(twins["harmful"], "reject", "accept")
    found = measure_decisions(twins.assign(label=labels))
    assert (found["harmful_refused"], found["frr"]) == (1, 0)
    unknown = measure_decisions(twins.assign(label="unparsed"))
    assert set(unknown) == set(found) and np.isnan(list(unknown.values())).all()


def test_the_task_of_lm_eval_names_metrics_that_are_measured():
    text = (LM_EVAL / "paraguard.yaml").read_text(encoding="utf-8")
    metrics = re.findall(r"metric: (\w+), aggregation: !function tasks\.(\w+)", text)
    assert len(metrics) == 9 and all(one == other for one, other in metrics)
    assert {one for one, _ in metrics} <= set(
        measure_decisions(read_requests().assign(label="accept"))
    )


@pytest.mark.slow
def test_inspect_measures_recorded_answers_as_the_audit_does(recorded, tmp_path):
    pytest.importorskip("inspect_ai")
    from inspect_ai import eval as evaluate
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from paraguard_tools.harness.inspect_task import paraguard

    said = dict(zip(recorded["text"], recorded["response"], strict=True))

    def answer(messages, *_):
        output = ModelOutput.from_content("mockllm/model", said[messages[-1].text])
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    model = get_model("mockllm/model", custom_outputs=answer)
    (log,) = evaluate(
        paraguard(labeller="cues"), model=model, display="none", log_dir=str(tmp_path)
    )
    assert log.status == "success" and len(log.samples) == 1200
    labels = [sample.scores["refused"].answer for sample in log.samples]
    expected = measure_decisions(read_requests().assign(label=labels))
    assert {
        name: one.value for name, one in log.results.scores[0].metrics.items()
    } == pytest.approx(expected)
    assert (pd.Series(labels) == recorded["label"]).mean() > 0.99


@pytest.mark.slow
@real
def test_inspect_asks_the_packaged_model_what_02_asked(recorded, folder, tmp_path):
    pytest.importorskip("inspect_ai")
    from inspect_ai import eval as evaluate
    from inspect_ai.model import get_model

    from paraguard_tools.harness.inspect_task import paraguard

    model = get_model(
        "hf/local",
        model_path=str(folder),
        tokenizer_path=str(folder),
        do_sample=False,
        device="cpu",
        batch_size=ASKED,
    )
    task = paraguard(instruction="safety")
    (log,) = evaluate(
        task, model=model, limit=ASKED, display="none", log_dir=str(tmp_path)
    )
    assert log.status == "success", log.error
    same_as_recorded(
        [sample.output.completion for sample in log.samples],
        [sample.scores["refused"].answer for sample in log.samples],
        recorded,
    )


@pytest.mark.slow
@real
def test_lm_eval_asks_the_packaged_model_what_02_asked(recorded, folder):
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={folder},dtype=float32",
        tasks=["paraguard"],
        task_manager=TaskManager(include_path=str(LM_EVAL), include_defaults=False),
        limit=ASKED,
        batch_size=ASKED,
        device="cpu",
        apply_chat_template=True,
        system_instruction=registry.read_system_prompt("safety"),
        log_samples=True,
    )
    samples = found["samples"]["paraguard"]
    same_as_recorded(
        [sample["resps"][0][0] for sample in samples],
        [sample["frr"][0] for sample in samples],
        recorded,
    )
    refused = as_refused([sample["frr"][0] for sample in samples], blocked=True)
    assert found["results"]["paraguard"]["frr,none"] == pytest.approx(refused.mean())


def same_as_recorded(answers, labels, recorded):
    """All labels are those of the record, and all answers but for one that rounding may
    turn.
    """
    assert labels == recorded["label"].head(ASKED).tolist()
    assert (
        sum(
            a.strip() == b.strip()
            for a, b in zip(answers, recorded["response"], strict=False)
        )
        >= ASKED - 1
    )
