"""Query a model through an adapter (LoRA): its folder, merged into the base's weights.

The folder names its base, a local folder or a hub id. peft loads the adapter, and
merges it in memory; nothing is written.
"""

import hashlib
import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paraguard_lab.models import own_models
from paraguard_lab.models.families import (
    ADAPTER_CONFIG,
    ADAPTER_FILE,
    MERGE_BY_PEFT,
    is_adapter,
)
from paraguard_utils.errors import ModelError
from paraguard_utils.models import backends, loading, weights
from paraguard_utils.settings import RAY_DEVICE, QueryOptions
from paraguard_utils.text import replace_control

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_MERGE = f"or merge it elsewhere, {MERGE_BY_PEFT}"
# What peft only warns of: an adapter of another model, or a part of one
_MISFITS = ("adapter keys", "unexpected keys", "missing keys")


def takes(options: QueryOptions) -> bool:
    """Return whether the parameters name an adapter's folder on this machine."""
    if not options.model or options.base_url or options.device == RAY_DEVICE:
        return False
    return is_adapter(Path(options.model).expanduser())


def resolve(options: QueryOptions) -> list[backends.BackendSource]:
    """Find an adapter and its base.

    `ModelError`, which names both, if the base is not at hand or peft not installed.
    """
    folder = Path(str(options.model)).expanduser()
    name = _read_base(folder)
    what = f"model folder {options.model} is an adapter of {replace_control(name)}"
    if not (folder / ADAPTER_FILE).is_file():
        raise ModelError(f"{what}, but has no {ADAPTER_FILE}; get all its files")
    try:
        import peft  # noqa: F401
    except ImportError:
        raise ModelError(f"{what}; pip install peft to load it, {_MERGE}") from None
    try:
        base = loading.resolve_model(name)
    except ModelError as error:
        why = "neither a folder here nor a hub model that can be fetched"
        if Path(name).expanduser().exists():
            why = str(error)
        raise ModelError(
            f"{what}, which is not at hand ({why}); get it, {_MERGE}"
        ) from None
    files = [folder / ADAPTER_CONFIG, folder / ADAPTER_FILE]
    digests = [base.weights_id, *map(weights.hash_file, files)]
    digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    slug = loading.slugify_model(own_models.folder_model_id(folder).replace("/", "_"))
    return [
        AdapterSource(
            name=f"{slug}-{digest[:8]}",
            weights_id=digest,
            path=base.path,
            argument=str(options.model),
            dtype=options.dtype,
            adapter=folder,
        )
    ]


def _read_base(folder: Path) -> str:
    """Return the base that an adapter's configuration names."""
    file = folder / ADAPTER_CONFIG
    try:
        base = json.loads(file.read_text("utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"{file} is no configuration of an adapter"
            f" ({loading.first_error_line(error)}); get it again"
        ) from None
    if not base or not isinstance(base, str):
        raise ModelError(
            f"{file} names no base; write the base's folder or hub id as"
            " base_model_name_or_path"
        )
    return base


@dataclass(frozen=True)
class AdapterSource(backends.LocalSource):
    """An adapter in a folder, and its base, whose weights are at `path`."""

    adapter: Path

    def load(self, options: QueryOptions) -> loading.LoadedModel:
        """Return the base with the adapter merged into it, on the device."""
        loading.check_device(options.device)
        template = options.without_template
        tokenizer = self._load_own_tokenizer()
        if tokenizer is not None and tokenizer.chat_template:
            template = "plain"  # the base needs none
        base = loading.load_model(self, self.dtype, options.device, template)
        network = self._merge(base.network)
        if tokenizer is None or not tokenizer.chat_template:
            return replace(base, network=network)
        embeddings = network.get_input_embeddings().get_parameter("weight")
        if len(tokenizer) > len(embeddings):
            raise ModelError(
                f"model {self.name}: the adapter's tokenizer has more tokens than its"
                f" base; {_MERGE.removeprefix('or ')}"
            )
        return replace(base, network=network, tokenizer=tokenizer)

    def _load_own_tokenizer(self) -> "PreTrainedTokenizerBase | None":
        """Return the adapter's own tokenizer; None if its folder has none."""
        if not (self.adapter / "tokenizer_config.json").is_file():
            return None
        from transformers import AutoTokenizer

        what = f"model {self.name}: the adapter's tokenizer"
        tokenizer: PreTrainedTokenizerBase = loading.load_part(
            AutoTokenizer, self.adapter, what
        )
        return tokenizer

    def _merge(self, network: "PreTrainedModel") -> "PreTrainedModel":
        """Return a base with the adapter in its weights."""
        from peft import PeftModel

        what = f"model {self.name}: the adapter in {self.adapter}"
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                adapted: Any = PeftModel.from_pretrained(
                    network, str(self.adapter), use_safetensors=True
                )
                merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
            except Exception as error:  # of many kinds, by what does not fit
                raise ModelError(
                    f"{what} does not fit its base"
                    f" ({loading.first_error_line(error)}); get both again"
                ) from error
        for warning in told:
            said = str(warning.message)
            if any(words in said.lower() for words in _MISFITS):
                raise ModelError(
                    f"{what} does not fit its base"
                    f" ({said.splitlines()[0][:200]}); get both again"
                )
        return merged.eval()
