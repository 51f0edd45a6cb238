"""Find and load the weights of a model by its name.

A name is a packaged short name, or whatever the extension `model` of the list `loaders`
finds: a local folder, a local GGUF file or a hub id. Weights are safetensors or GGUF,
never pickles, and no code that comes with a model is run. Other extensions of the list
convert GGUF weights, and refuse what is no whole model that continues a text: its
configuration, and the loaded network.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paraguard_utils import paths, seams
from paraguard_utils.errors import ModelError
from paraguard_utils.models import weights

if TYPE_CHECKING:
    from transformers import (
        PretrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )

# The models that come as packages, by short name
PACKAGED_MODELS = {
    "smollm2-135m-instruct": weights.SMOLLM2_FILE,
    "qwen2.5-coder-0.5b-instruct": weights.QWEN_CODER_FILE,
    "qwen2.5-coder-1.5b-instruct": weights.QWEN_CODER_LARGER_FILE,
}


@dataclass(frozen=True)
class ModelSource:
    """A model's weights on this machine: transformers' folder or a GGUF file.

    The folder has transformers' layout. `name` begins system names, `argument` is what
    the model was resolved from. `weights_id` is upstream's SHA-256 (packaged, GGUF), a
    digest of the files that decide its answers (folder) or the commit (hub).
    """

    name: str
    weights_id: str
    path: Path
    argument: str


@dataclass(frozen=True)
class ModelReader(ModelSource):
    """A chat model's tokenizer and what keys are made of, without weights.

    `dtype` is the torch name of that of the weights.
    """

    dtype: str
    tokenizer: "PreTrainedTokenizerBase" = field(repr=False)


@dataclass(frozen=True)
class LoadedModel(ModelReader):
    """A loaded chat model."""

    network: "PreTrainedModel" = field(repr=False)


def packaged_model_name(name: str) -> str:
    """Return a packaged model's name as in system names, without its weights."""
    return slugify_model(Path(PACKAGED_MODELS[name].name).stem)


def resolve_model(name: str) -> ModelSource:
    """Find a model's weights by name, without loading them.

    A packaged model is found here, and a user's by the extension `model`. A missing or
    altered package raises `WeightsError`, an unknown name `ModelError`.
    """
    if name in PACKAGED_MODELS:
        packaged = PACKAGED_MODELS[name]
        path = weights.locate_weights(packaged)
        return ModelSource(packaged_model_name(name), packaged.sha256, path, name)
    source: ModelSource = seams.load_extension("loaders", "model")(name)
    return source


def check_device(device: str) -> None:
    """Raise `ModelError` if torch cannot use a device, before anything is loaded."""
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        raise ModelError(
            f"device {device!r} cannot be used: {first_error_line(error)}; use cpu"
        ) from error


def load_reader(
    source: ModelSource, dtype: str = "float32", without_template: str = "error"
) -> ModelReader:
    """Load a resolved model's tokenizer only.

    Parameters and errors are those of `load_model`.
    """
    from transformers import AutoTokenizer

    folder = seams.load_extension("loaders", "gguf")(source)
    seams.load_extension("loaders", "model_configuration")(source, folder)
    tokenizer = load_part(AutoTokenizer, folder, f"model {source.name}: its tokenizer")
    if not tokenizer.chat_template:
        if without_template != "plain":
            raise ModelError(
                f"model {source.name} has no chat template; use its instruction-tuned"
                " version, add a chat_template.jinja to its folder, or pass"
                " -p without_template=plain"
            )
        template = paths.DATA / "plain_template.jinja"
        tokenizer.chat_template = template.read_text(encoding="utf-8")
    return ModelReader(
        source.name, source.weights_id, folder, source.argument, dtype, tokenizer
    )


def load_part(auto: Any, folder: Path, what: str, **options: Any) -> Any:
    """Load one part of a model by a class of transformers, without foreign code.

    `what` begins the message of the `ModelError` if that cannot be.
    """
    try:
        return auto.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **options
        )
    # The library raises many kinds: a wrong field of a configuration is one of its own
    except Exception as error:
        raise ModelError(
            f"{what} cannot be loaded: {first_error_line(error)}"
        ) from error


def load_model(
    source: ModelSource,
    dtype: str = "float32",
    device: str = "cpu",
    without_template: str = "error",
    config: "PretrainedConfig | None" = None,
) -> LoadedModel:
    """Load a resolved model for inference.

    `dtype` is "float32" or "bfloat16", `device` "cpu", "cuda", "cuda:1", ... A model
    without a chat template gets `data/plain_template.jinja` if `without_template` is
    "plain". `config` is taken instead of the folder's own. No chat template, or a
    tokenizer or weights that transformers cannot load without running foreign code,
    raise `ModelError`.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # missing tensors are an error of ours
    reader = load_reader(source, dtype, without_template)
    network, loaded = load_part(
        AutoModelForCausalLM,
        reader.path,
        f"model {source.name}: its weights",
        dtype=getattr(torch, dtype),
        use_safetensors=True,
        config=config,
        output_loading_info=True,
    )
    network.eval().to(device)
    check_network = seams.load_extension("loaders", "model_network")
    check_network(f"model {source.name}", network, loaded["missing_keys"])
    return LoadedModel(**vars(reader), network=network)


def slugify_model(name: str) -> str:
    """Return a model's name as in system names: lower case, and never `--`."""
    # A GGUF's quantization: Model.Q4_1 becomes model-q4_1
    name = re.sub(r"\.(?=i?q\d)", "-", name.lower())
    name = re.sub(r"[^a-z0-9._-]+", "-", name)
    return re.sub(r"-{2,}", "-", name).strip("-.")


def first_error_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    message = str(error).strip() or type(error).__name__
    first = message.splitlines()[0].rstrip()
    # A line that ends in a colon says nothing without what it announces
    return " ".join(message.split()) if first.endswith(":") else first
