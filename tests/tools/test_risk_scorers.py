"""What may take the place of the frozen risk scorer: guards and text classifiers."""

import pytest
import tiny
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from paraguard_utils.corpus import risk
from paraguard_utils.errors import ModelError, SettingsError
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
