"""Refuse weights of a user that are of no whole model that continues a text.

Each check comes before the step that it spares: that of the files as a name is resolved
(`own_models`), the others as the model is loaded, by entry points of the group
`paraguard.loaders`. All raise `ModelError`.
"""

import contextlib
import inspect
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paraguard_utils.errors import ModelError
from paraguard_utils.models.loading import ModelSource, first_error_line, load_part
from paraguard_utils.text import replace_control

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

TOKENIZER_FILES = ("tokenizer.json", "*.model", "vocab.*", "tekken.json", "*.tiktoken")
"""Of which every tokenizer has one at least."""

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILE = "adapter_model.safetensors"

MERGE_BY_PEFT = (
    "by peft's AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload()"
    ".save_pretrained(MERGED), and give the merged folder"
)
"""What to do with an adapter that is not loaded here."""

_NAMED_TENSORS = 3  # in an error about many
_GGUF_SHARD = re.compile(r"-\d{5}-of-(\d{5})$")


def is_adapter(folder: Path) -> bool:
    """Return whether a folder has an adapter (LoRA), and no whole model."""
    is_whole = (folder / "config.json").is_file()
    return (folder / ADAPTER_CONFIG).is_file() and not is_whole


def check_model_files(path: Path) -> None:
    """Refuse a part of a GGUF file, an adapter, and a folder without safetensors."""
    if path.is_dir():
        _check_folder(path)
    elif path.suffix == ".gguf":
        _check_gguf(path)


def _check_folder(folder: Path) -> None:
    if is_adapter(folder):
        base = _read_base(folder / ADAPTER_CONFIG)
        raise ModelError(
            f"model folder {folder} is an adapter of {base}; merge it first,"
            f" {MERGE_BY_PEFT}"
        )
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"model folder {folder} holds no .safetensors weights; other formats are"
            " not loaded"
        )


def _read_base(adapter: Path) -> str:
    """Return the name of the model that an adapter's configuration is of."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        base = json.loads(adapter.read_text("utf-8")).get("base_model_name_or_path")
        if base:
            return replace_control(str(base))
    return "another model"


def _check_gguf(path: Path) -> None:
    from gguf import GGUFReader

    named = _GGUF_SHARD.search(path.stem)
    shards = int(named[1]) if named else 1
    with contextlib.suppress(Exception):  # of a damaged file, reading it says so
        counted = GGUFReader(path).get_field("split.count")
        shards = int(counted.contents()) if counted else shards
    if shards > 1:
        raise ModelError(
            f"{path} is one of {shards} parts of a model; put them together first, for"
            f" example with llama.cpp: llama-gguf-split --merge {path.name} whole.gguf"
        )


def check_model_configuration(source: ModelSource, folder: Path) -> None:
    """Refuse an architecture that continues no text, and a folder without tokenizer."""
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_MASKED_LM_MAPPING,
        AutoConfig,
    )

    what = f"model {source.name}"
    config = load_part(AutoConfig, folder, f"{what}: its configuration")
    can_decode = getattr(config, "is_decoder", False)
    if config.is_encoder_decoder:
        problem = "is a sequence-to-sequence model"
    elif type(config) in MODEL_FOR_MASKED_LM_MAPPING and not can_decode:
        problem = "is an encoder"
    elif type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        problem = "is no model of text alone that this version of transformers loads"
    else:
        problem = ""
    if problem:
        raise ModelError(
            f"{what} ({config.model_type}) {problem}; only models that continue a text"
            " can be queried"
        )
    if not any(list(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise ModelError(
            f"{what} has no tokenizer; copy tokenizer.json and tokenizer_config.json of"
            " the model that it was made from into its folder"
        )


def check_model_state(config: "PretrainedConfig") -> None:
    """Refuse a model that cannot be queried in padded batches (`keeps_other_state`)."""
    if keeps_other_state(config):
        raise ModelError(
            f"a model of type {config.model_type} keeps a state other than keys and"
            " values, so that it cannot be queried in padded batches; 02 queries it one"
            " prompt at a time, and nothing else does"
        )


def keeps_other_state(config: "PretrainedConfig") -> bool:
    """Return whether a model keeps anything but keys and values of earlier tokens."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache
    from transformers.cache_utils import (
        DummyLayer,
        DynamicLayer,
        DynamicSlidingWindowLayer,
    )

    network: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if "past_key_values" not in inspect.signature(network.forward).parameters:
        return True
    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    return not kinds <= {DynamicLayer, DynamicSlidingWindowLayer, DummyLayer}


def check_model_network(
    what: str, network: "PreTrainedModel", missing: Collection[str] = ()
) -> None:
    """Refuse a network that lacks tensors, reads no text, or looks ahead.

    In the last a later token changes what was predicted before it. `what` begins the
    message, and `missing` are the tensors that were not in the weights, which were
    drawn at random.
    """
    if missing:
        named = ", ".join(sorted(missing)[:_NAMED_TENSORS])
        raise ModelError(
            f"{what} lacks {len(missing)} of the tensors of its architecture, such as"
            f" {named}; it is a part of a model, or one with another head: get all"
            " its files"
        )
    import torch

    # Two texts of three tokens, different in the last one
    ids = torch.tensor([[0, 1, 2], [0, 1, 3]], device=network.device)
    known = inspect.signature(network.forward).parameters
    options = {"use_cache": False} if "use_cache" in known else {}
    try:
        with torch.inference_mode():
            logits = network(input_ids=ids, **options).logits
    except (TypeError, ValueError):  # its configuration asks for more; querying says it
        return
    except Exception as error:
        raise ModelError(
            f"{what} cannot read a text: {first_error_line(error)}"
        ) from error
    first, second = logits[:, :2].float()
    tolerance = torch.finfo(network.dtype).eps ** 0.5 * float(first.std())
    if float((first - second).abs().max()) > tolerance:
        raise ModelError(
            f"{what} reads a text in both directions, as encoders do; only models"
            " that continue a text can be queried"
        )
