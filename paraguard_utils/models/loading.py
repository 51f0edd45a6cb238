"""Find and load the weights of a model by its name.

A name is a packaged short name, a local folder, a local GGUF file or a hub id. Weights
are safetensors or GGUF, never pickles, and no code that comes with a model is run. GGUF
weights are dequantized once into a safetensors cache.
"""

import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paraguard_utils import paths
from paraguard_utils.errors import ModelError
from paraguard_utils.models import weights
from paraguard_utils.models.prompting import (
    defuse_control_strings,
    find_control_strings,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PACKAGED_MODELS = {  # the models that come as packages, by short name
    "smollm2-135m-instruct": weights.SMOLLM2_FILE,
    "qwen2.5-coder-0.5b-instruct": weights.QWEN_CODER_FILE,
    "qwen2.5-coder-1.5b-instruct": weights.QWEN_CODER_LARGER_FILE,
}

IDENTITY_FILES = (
    "*.safetensors",
    "*.json",
    "*.jinja",
    "*.model",
    "merges.txt",
    "vocab.txt",
)  # what decides answers


@dataclass(frozen=True)
class ModelSource:
    """Where a model's weights lie, a folder in transformers' layout or a GGUF file, and
    what they are called.
    """

    name: str  # the beginning of system names
    # Upstream's SHA-256 (packaged, GGUF), a digest of `IDENTITY_FILES` (folder) or the
    # commit (hub)
    weights_id: str
    path: Path
    argument: str  # what it was resolved from


@dataclass(frozen=True)
class ModelReader(ModelSource):
    """A chat model's tokenizer and what keys are made of, without weights.

    `dtype` is the torch name of theirs.
    """

    dtype: str
    tokenizer: "PreTrainedTokenizerBase" = field(repr=False)


@dataclass(frozen=True)
class LoadedModel(ModelReader):
    """A loaded chat model."""

    network: "PreTrainedModel" = field(repr=False)


def packaged_model_name(name: str) -> str:
    """Return a packaged model's name as in system names, without looking for its
    weights.
    """
    return slugify_model(Path(PACKAGED_MODELS[name].name).stem)


def resolve_model(name: str) -> ModelSource:
    """Find a model's weights by name, without loading them.

    The module's docstring says what names there are.

    Any other, or a folder without safetensors, raises `ModelError`, a missing or
    altered package `WeightsError`.
    """
    if name in PACKAGED_MODELS:
        path = weights.locate_weights(PACKAGED_MODELS[name])
        return ModelSource(
            packaged_model_name(name), PACKAGED_MODELS[name].sha256, path, name
        )
    path = Path(name).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        digest = weights.hash_file(path)
        return ModelSource(
            f"{slugify_model(path.stem)}-{digest[:8]}", digest, path, name
        )
    if path.is_dir():
        digest = _folder_digest(path)
        return ModelSource(
            f"{slugify_model(folder_model_id(path).replace('/', '_'))}-{digest[:8]}",
            digest,
            path,
            name,
        )
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith((".", "~")):
        from huggingface_hub import snapshot_download

        try:
            folder = Path(
                snapshot_download(name, allow_patterns=list(IDENTITY_FILES))
            )  # named by its commit
        except Exception as error:  # the hub raises many kinds: offline, unknown, gated
            raise ModelError(
                f"hub model {name} cannot be fetched ({first_error_line(error)}); pass"
                " a local folder"
            ) from error
        return ModelSource(
            slugify_model(name.replace("/", "_")), folder.name, folder, name
        )
    raise ModelError(
        f"model {name!r} is neither a packaged name ({', '.join(PACKAGED_MODELS)}), nor"
        " an existing folder or .gguf file, nor a hub id such as owner/model"
    )


def folder_model_id(folder: Path) -> str:
    """Return the name of a model's folder.

    For a hub's snapshot, which is named by its commit, the hub id.
    """
    folder = folder.resolve()
    cached = [part for part in folder.parts if part.startswith("models--")]
    return (
        cached[-1].removeprefix("models--").replace("--", "/")
        if cached
        else folder.name
    )


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

    tokenizer = _from_folder(
        AutoTokenizer, convert_gguf(source), f"model {source.name}: its tokenizer"
    )
    if not tokenizer.chat_template:
        if without_template != "plain":
            raise ModelError(
                f"model {source.name} has no chat template; use its instruction-tuned"
                " version, add a chat_template.jinja to its folder, or pass"
                " without_template=plain"
            )
        tokenizer.chat_template = (paths.DATA / "plain_template.jinja").read_text(
            encoding="utf-8"
        )
    return ModelReader(**vars(source), dtype=dtype, tokenizer=tokenizer)


def _from_folder(auto: Any, folder: Path, what: str, **more: Any) -> Any:
    """Load one part of a model, without running foreign code.

    `what` begins the error if that cannot be.
    """
    try:
        return auto.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **more
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
    packed: bool = True,
) -> LoadedModel:
    """Load a resolved model for inference.

    `dtype` is "float32" or "bfloat16", `device` "cpu", "cuda", "cuda:1", ... A model
    without a chat template gets `data/plain_template.jinja` if `without_template` is
    "plain". With `packed` the weights are laid out for the CPU's matrix kernels if
    possible (`cpu.pack_linear_layers`). No chat template, or a tokenizer or weights
    that transformers cannot load without running foreign code, raise `ModelError`.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    from paraguard_utils.models.cpu import pack_linear_layers

    logging.disable_progress_bar()
    source = replace(source, path=convert_gguf(source))
    reader = load_reader(source, dtype, without_template)
    config = _from_folder(
        AutoConfig, source.path, f"model {source.name}: its configuration"
    )
    text_part = config.get_text_config()
    if (
        getattr(text_part, "attention_chunk_size", 0) is None
    ):  # so Llama Guard 4 is published, and cannot be asked
        text_part.attention_chunk_size = type(text_part)().attention_chunk_size
    how = {"dtype": getattr(torch, dtype), "use_safetensors": True, "config": config}
    network = _from_folder(
        AutoModelForCausalLM, source.path, f"model {source.name}: its weights", **how
    )
    network.eval().to(device)
    if packed:
        pack_linear_layers(network)
    return LoadedModel(**vars(reader), network=network)


def count_positions(
    network: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase"
) -> int:
    """Return how many tokens a model reads: the least that its tokenizer and its
    configuration say.
    """
    config = network.config.get_text_config()
    held = getattr(config, "max_position_embeddings", None) or sys.maxsize
    held -= (
        (config.pad_token_id or 0) + 1 if "roberta" in config.model_type else 0
    )  # its places begin behind padding's
    return min(held, tokenizer.model_max_length)


def join_split_words(tokenizer: "PreTrainedTokenizerBase", text: str) -> str:
    """Return a text whose white space stands where a token of the text without any
    begins, and nowhere else.
    """
    places = [i for i, char in enumerate(text) if not char.isspace()]
    bare = "".join(text[i] for i in places)
    found = tokenizer(bare, add_special_tokens=False, return_offsets_mapping=True)[
        "offset_mapping"
    ]
    found = [(start, end) for start, end in found if end > start]
    return "".join(
        " " * text[max(places[start] - 1, 0)].isspace() + bare[start:end]
        for start, end in found
    )


class TextClassifier:
    """A text classifier, which reads the string of a control token inside a text as
    text.

    `labels` stand alone if they are `independent`; with None the model's configuration
    decides. With `respace` a text goes through `join_split_words`. `cut` are the texts
    so far of which it read the beginning only. Errors are those of `load_model`;
    weights without a classifier's head are one too, since the library would draw a head
    at random.
    """

    def __init__(
        self,
        source: ModelSource,
        batch: int,
        device: str,
        independent: bool | None = None,
        respace: bool = False,
    ) -> None:
        from transformers import (
            AutoConfig,
            AutoModelForSequenceClassification,
            AutoTokenizer,
        )
        from transformers.utils import logging

        place = (source.path, f"classifier {source.name}")
        kinds = _from_folder(AutoConfig, *place).architectures or [
            "an architecture that is not named"
        ]
        if not any(kind.endswith("ForSequenceClassification") for kind in kinds):
            raise ModelError(
                f"{place[1]} cannot be loaded: its weights are of {', '.join(kinds)},"
                " not of a text classifier, whose head would be drawn at random; an"
                " entry of your own says how to ask a model that answers in words"
            )
        self.tokenizer, self.batch, self.respace = (
            _from_folder(AutoTokenizer, *place),
            batch,
            respace,
        )
        verbosity = logging.get_verbosity()
        # The library reports at length on what is missing
        logging.set_verbosity_error()
        try:
            self.network, about = _from_folder(
                AutoModelForSequenceClassification,
                *place,
                use_safetensors=True,
                output_loading_info=True,
            )
        finally:
            logging.set_verbosity(verbosity)
        if lacking := sorted(about["missing_keys"]):
            raise ModelError(
                f"{place[1]} cannot be loaded: {len(lacking)} of its weights are not in"
                f" the folder, {lacking[0]} first, and would be drawn at random; copy"
                " it again"
            )
        config = self.network.eval().to(device).config
        own = (
            config.num_labels == 1
            or config.problem_type == "multi_label_classification"
        )
        self.independent = own if independent is None else independent
        if (
            self.tokenizer.pad_token is None
        ):  # so are causal models with a classifier's head published
            self.tokenizer.pad_token = self.tokenizer.eos_token
        config.pad_token_id = self.tokenizer.pad_token_id
        self.controls, self.room = (
            find_control_strings(self.tokenizer),
            count_positions(self.network, self.tokenizer),
        )
        self.labels, self.cut = (
            [config.id2label[i] for i in range(config.num_labels)],
            set[str](),
        )

    def classify(self, texts: Sequence[str]) -> np.ndarray:
        """Return probabilities, shape (texts, labels): sigmoids if labels are
        independent, else a softmax.
        """
        import torch

        rows = [torch.empty((0, len(self.labels)), dtype=torch.float64)]
        for start in range(0, len(texts), self.batch):
            part = texts[start : start + self.batch]
            read = [
                join_split_words(self.tokenizer, text) if self.respace else text
                for text in part
            ]
            read = [defuse_control_strings(text, self.controls) for text in read]
            lengths = map(len, self.tokenizer(read, verbose=False)["input_ids"])
            self.cut.update(
                text
                for text, length in zip(part, lengths, strict=True)
                if length > self.room
            )
            inputs = self.tokenizer(
                read,
                padding=True,
                truncation=True,
                max_length=self.room,
                return_tensors="pt",
            )
            with torch.inference_mode():
                logits = (
                    self.network(**inputs.to(self.network.device)).logits.cpu().double()
                )
            rows.append(logits.sigmoid() if self.independent else logits.softmax(-1))
        return torch.cat(rows).numpy()


def slugify_model(name: str) -> str:
    """Return a model's name as in system names: lower case, and never `--`."""
    name = re.sub(
        r"\.(?=i?q\d)", "-", name.lower()
    )  # a GGUF's quantization: Model.Q4_1 -> model-q4_1
    return re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9._-]+", "-", name)).strip("-.")


def first_error_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _folder_digest(folder: Path) -> str:
    files = sorted(
        {file for pattern in IDENTITY_FILES for file in folder.glob(pattern)}
    )
    if not any(file.suffix == ".safetensors" for file in files):
        raise ModelError(
            f"model folder {folder} holds no .safetensors weights; other formats are"
            " not loaded"
        )
    return hashlib.sha256(
        "\n".join(f"{file.name} {weights.hash_file(file)}" for file in files).encode()
    ).hexdigest()


def convert_gguf(source: ModelSource) -> Path:
    """Return a source's folder in transformers' layout, dequantizing a GGUF file into
    the cache the first time.

    A folder that was changed since, by the digest in it, is made again; an unreadable
    file raises `ModelError`.
    """
    if source.path.suffix != ".gguf":
        return source.path
    folder = paths.CACHE / "models" / source.weights_id[:16]
    record = folder / "content.sha256"
    if folder.is_dir():
        with contextlib.suppress(OSError, ModelError):
            if record.read_text(encoding="utf-8") == _folder_digest(folder):
                return folder
        kept = paths.display_path(folder)
        print(
            f"{kept} cannot be shown to be what was written there; it is made again",
            file=sys.stderr,
        )
        shutil.rmtree(folder)
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    origin, file = source.path.parent, source.path.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(origin, gguf_file=file)
        network = AutoModelForCausalLM.from_pretrained(
            origin,
            gguf_file=file,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
    except Exception as error:  # a damaged file may raise anything
        raise ModelError(
            f"{source.path}: cannot be read as GGUF ({first_error_line(error)}); copy"
            " it again, or see whether transformers knows its architecture"
        ) from error
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as place:
            part = Path(place) / folder.name
            network.save_pretrained(
                part, max_shard_size="500MB"
            )  # a shard's memory is free once its layers are packed
            tokenizer.save_pretrained(part)
            (part / record.name).write_text(_folder_digest(part), encoding="utf-8")
            os.replace(part, folder)
    except (OSError, SafetensorError) as error:
        if not folder.is_dir():  # another process may have finished first
            raise ModelError(
                f"the converted weights of {source.name} cannot be written to"
                f" {paths.display_path(folder.parent)} ({first_error_line(error)});"
                " free some space, or move the cache with PARAGUARD_CACHE"
            ) from error
    return folder
