"""What may take the place of the frozen risk scorer: guards and text classifiers."""

import hashlib

import pytest
import tiny
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from paraguard_utils.corpus import risk
from paraguard_utils.errors import DataError, ModelError, SettingsError
from paraguard_utils.guards import panel
from paraguard_utils.models import encoder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A tiny classifier of two labels in a folder."""
    folder = tiny.write(tmp_path_factory.mktemp("models") / "tiny")
    labels = {"id2label": {0: "fine", 1: "toxic"}, "label2id": {"fine": 0, "toxic": 1}}
    network = AutoModelForSequenceClassification.from_pretrained(folder, **labels)
    network.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_guard_or_a_classifier_can_take_its_place(classifier):
    texts = ["Which bread goes with soup?", "you are a fucking idiot", "a " * 40]
    guard = risk.load_risk_scorer("better-profanity")
    assert (
        guard.score(texts, encoder.encode_texts).tolist()
        == panel.load_guard("better-profanity").score(texts)
        == [0, 1, 0]
    )
    toxic, fine = (
        risk.load_risk_scorer(f"{classifier}#{label}") for label in ("toxic", "fine")
    )
    found = toxic.score(texts, encoder.encode_texts)
    assert found.shape == (3,) and found + fine.score(
        texts, encoder.encode_texts
    ) == pytest.approx(1)
    assert toxic.identity.startswith("tiny-") and "#toxic " in toxic.identity
    # padding beside longer texts changes nothing
    assert found[0] == pytest.approx(
        toxic.score(texts[:1], encoder.encode_texts)[0], abs=1e-5
    )
    network = AutoModelForSequenceClassification.from_pretrained(classifier)
    inputs = AutoTokenizer.from_pretrained(classifier)(texts[1], return_tensors="pt")
    assert found[1] == pytest.approx(
        network(**inputs).logits.softmax(-1)[0, 1].item(), abs=1e-5
    )


def test_a_label_or_a_classifier_that_is_not_there_is_one_clear_error(
    classifier, tmp_path
):
    with pytest.raises(SettingsError, match="has no label 'harm'; it has fine, toxic"):
        risk.load_risk_scorer(f"{classifier}#harm")
    with pytest.raises(ModelError, match="is neither"):
        risk.load_risk_scorer(f"{tmp_path / 'nothing'}#toxic")


OWN_SCORER = """
def by_length(texts):
    return [min(len(text) / 100, 1.0) for text in texts]

def wrong(texts):
    return [2.0 for text in texts]

def missing(texts):
    return [float("nan") for text in texts]
"""


def test_a_function_can_take_its_place(tmp_path, monkeypatch):
    file = tmp_path / "own_risk.py"
    file.write_text(OWN_SCORER)
    monkeypatch.syspath_prepend(tmp_path)
    scorer = risk.load_risk_scorer("own_risk:by_length")
    assert scorer.score(["a" * 30, "a" * 400], encoder.encode_texts).tolist() == [
        0.3,
        1.0,
    ]
    name, digest = scorer.identity.split()
    assert name == "own_risk:by_length"
    assert hashlib.sha256(file.read_bytes()).hexdigest().startswith(digest)
    with pytest.raises(DataError, match="own_risk:wrong gives 2 for text 1"):
        risk.load_risk_scorer("own_risk:wrong").score(["a"], encoder.encode_texts)
    with pytest.raises(DataError, match="own_risk:missing gives no risk for text 1"):
        risk.load_risk_scorer("own_risk:missing").score(["a"], encoder.encode_texts)
    with pytest.raises(SettingsError, match="the guard own_risk:other cannot"):
        risk.load_risk_scorer("own_risk:other")
