"""An adapter is queried through its base, and a line names both if it cannot be."""

import json
import shutil
import sys

import families
import pytest
import tiny

from paraguard_tools.servers import adapters
from paraguard_utils.errors import ModelError
from paraguard_utils.models import loading, prompting
from paraguard_utils.models.prompting import Workload
from paraguard_utils.settings import QueryOptions

peft = pytest.importorskip("peft", reason="no adapter can be made without peft")
torch = tiny.torch

TOKENS = 8


def write_adapter(folder, base_folder, named, targets=("q_proj", "v_proj"), **more):
    """Write an adapter of a base that changes its answers, as peft saves it."""
    network = loading.load_model(loading.resolve_model(str(base_folder))).network
    config = peft.LoraConfig(target_modules=list(targets), r=4, **more)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(network, config)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.5)
    adapted.peft_config["default"].base_model_name_or_path = str(named)
    adapted.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("models") / "Base")


@pytest.fixture
def adapter(tmp_path, base):
    return write_adapter(tmp_path / "Mine", base, base)


def options_of(folder):
    return QueryOptions(model=str(folder), system_prompts=["safety"])


def answer(source, folder):
    model = source.open(options_of(folder))
    context = model.context("Be kind.", prompting.Decoding(TOKENS))
    (traces,) = model.answers(Workload(families.make_prompts(4)), context)
    return model.model, traces


@pytest.mark.slow
def test_answers_are_those_of_the_merged_model(adapter, base, tmp_path):
    assert adapters.takes(options_of(adapter)) and not adapters.takes(options_of(base))
    (source,) = adapters.resolve(options_of(adapter))
    assert source.name.startswith("mine-") and source.argument == str(adapter)
    _, traces = answer(source, adapter)
    plain = loading.load_model(loading.resolve_model(str(base))).network
    merged = peft.PeftModel.from_pretrained(plain, str(adapter)).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    shutil.copy(base / "tokenizer.json", tmp_path / "merged")
    shutil.copy(base / "tokenizer_config.json", tmp_path / "merged")
    for extra in base.glob("*.jinja"):
        shutil.copy(extra, tmp_path / "merged")
    whole = loading.load_model(loading.resolve_model(str(tmp_path / "merged")))
    untouched = loading.load_model(loading.resolve_model(str(base)))
    own = [
        [
            families.generate(one.network, one.tokenizer, ids, TOKENS)
            for ids in traces["token_ids"]
        ]
        for one in (whole, untouched)
    ]
    assert traces["response"].tolist() == own[0] != own[1]


def test_other_weights_are_another_model(adapter, base, tmp_path):
    (first,) = adapters.resolve(options_of(adapter))
    other = write_adapter(tmp_path / "o" / "Mine", base, base, targets=("q_proj",))
    (second,) = adapters.resolve(options_of(other))
    assert first.weights_id != second.weights_id and first.name != second.name
    untouched = loading.resolve_model(str(base))
    assert first.weights_id != untouched.weights_id


@pytest.mark.parametrize("named", ["/nowhere/base", "owner/base\x1b[2J"])
def test_a_base_that_is_not_at_hand_is_named(tmp_path, base, named, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = write_adapter(tmp_path / "Mine", base, named)
    with pytest.raises(ModelError) as error:
        adapters.resolve(options_of(folder))
    said = str(error.value)
    assert str(folder) in said and named.partition("\x1b")[0] in said
    assert "not at hand" in said and "merge it" in said
    assert "\n" not in said and "\x1b" not in said


def test_without_peft_a_line_names_adapter_and_base(adapter, base, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError) as error:
        adapters.resolve(options_of(adapter))
    assert str(adapter) in str(error.value) and str(base) in str(error.value)
    assert "pip install peft" in str(error.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "names no base"),
        ('{"base_model_name_or_path": 3}', "names no base"),
        ("[" * 100_000, "no configuration of an adapter"),
        ("[]", "no configuration of an adapter"),
        ("\udcff", "no configuration of an adapter"),
    ],
)
def test_a_bad_configuration_is_one_line(adapter, content, problem):
    file = adapter / "adapter_config.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError, match=problem) as error:
        adapters.resolve(options_of(adapter))
    assert "\n" not in str(error.value)


def test_pickled_weights_are_not_loaded(adapter):
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(ModelError, match="has no adapter_model"):
        adapters.resolve(options_of(adapter))


@pytest.mark.slow
@pytest.mark.parametrize("change", ["another width", "other layers", "half of it"])
def test_an_adapter_of_another_model_is_refused(adapter, base, tmp_path, change):
    from safetensors.torch import load_file, save_file

    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    if change == "another width":
        tensors = {name: one.repeat(2, 2) for name, one in tensors.items()}
    elif change == "other layers":
        tensors = {
            name.replace("layers.", "layers.9"): one for name, one in tensors.items()
        }
    else:
        tensors = dict(list(tensors.items())[::2])
    save_file(tensors, file)
    (source,) = adapters.resolve(options_of(adapter))
    with pytest.raises(ModelError, match="does not fit its base") as error:
        source.open(options_of(adapter))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_the_adapters_own_chat_template_is_taken(adapter, base):
    (source,) = adapters.resolve(options_of(adapter))
    own = loading.load_reader(loading.resolve_model(str(base))).tokenizer
    own.chat_template = tiny.CHATML.replace("<|im_end|>\n", "<|im_end|>")
    own.save_pretrained(adapter)
    model, _ = answer(source, adapter)
    assert model.tokenizer.chat_template == own.chat_template
    own.add_tokens([f"<extra {n}>" for n in range(400)])
    own.save_pretrained(adapter)
    with pytest.raises(ModelError, match="more tokens than its base"):
        source.open(options_of(adapter))


@pytest.mark.slow
def test_an_adapter_that_cannot_be_merged_is_refused(adapter, base):
    file = adapter / "adapter_config.json"
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    network = loading.load_model(loading.resolve_model(str(base))).network
    prompted = peft.get_peft_model(network, config)
    prompted.peft_config["default"].base_model_name_or_path = str(base)
    prompted.save_pretrained(adapter)
    assert json.loads(file.read_text())["peft_type"] == "PROMPT_TUNING"
    (source,) = adapters.resolve(options_of(adapter))
    with pytest.raises(ModelError, match="does not fit its base"):
        source.open(options_of(adapter))
