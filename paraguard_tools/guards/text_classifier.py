"""Classify texts by a model with a classifier's head, such as a rater of risk."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paraguard_lab.core.control_strings import (
    defuse_control_strings,
    find_control_strings,
)
from paraguard_utils.errors import ModelError
from paraguard_utils.models.loading import ModelSource, load_part

if TYPE_CHECKING:
    from transformers import (
        PretrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )


def count_positions(
    network: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase"
) -> int:
    """Return how many tokens a model reads.

    That is the least that its tokenizer and its configuration say.
    """
    config = network.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None) or sys.maxsize
    if "roberta" in config.model_type:
        # Its positions begin behind that of padding
        positions -= (config.pad_token_id or 0) + 1
    return min(positions, tokenizer.model_max_length)


def join_split_words(tokenizer: "PreTrainedTokenizerBase", text: str) -> str:
    """Return a text with a space only before tokens that followed white space.

    The tokens are those of the text without any white space: words that were split
    letter by letter become words again.
    """
    places = [i for i, char in enumerate(text) if not char.isspace()]
    letters = "".join(text[i] for i in places)
    encoded = tokenizer(letters, add_special_tokens=False, return_offsets_mapping=True)
    joined = ""
    for start, end in encoded["offset_mapping"]:
        if end > start:
            has_space_before = text[max(places[start] - 1, 0)].isspace()
            joined += " " * has_space_before + letters[start:end]
    return joined


class TextClassifier:
    """A text classifier, which reads control tokens inside a text as plain text.

    Parameters
    ----------
    source : ModelSource
    batch : int
        Texts that are read at once.
    device : str
    independent : bool, optional
        Whether labels are independent of one another rather than exclusive. By default
        the model's configuration decides.
    respace : bool
        Whether a text first goes through `join_split_words`.

    Attributes
    ----------
    labels : list of str
    cut : set of str
        The texts so far of which it read the beginning only.

    Raises
    ------
    ModelError
        As `loading.load_model`, and if weights lack a classifier's head, which the
        library would draw at random.
    """

    def __init__(
        self,
        source: ModelSource,
        batch: int,
        device: str,
        independent: bool | None = None,
        respace: bool = False,
    ) -> None:
        from transformers import AutoTokenizer

        what = f"classifier {source.name}"
        _check_head(source, what)
        self.tokenizer = load_part(AutoTokenizer, source.path, what)
        if self.tokenizer.pad_token is None:
            # Causal models are published so with a classifier's head
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.network = _load_network(source, what).eval().to(device)
        config = self.network.config
        config.pad_token_id = self.tokenizer.pad_token_id
        self.batch = batch
        self.respace = respace
        self.independent = independent
        if independent is None:
            self.independent = _has_independent_labels(config)
        self.controls = find_control_strings(self.tokenizer)
        self.room = count_positions(self.network, self.tokenizer)
        self.labels = [config.id2label[i] for i in range(config.num_labels)]
        self.cut: set[str] = set()

    def classify(self, texts: Sequence[str]) -> np.ndarray:
        """Return probabilities, shape (texts, labels).

        They are sigmoids if labels are independent, and else a softmax.
        """
        batches = [np.empty((0, len(self.labels)))]
        for start in range(0, len(texts), self.batch):
            batches.append(self._classify_batch(texts[start : start + self.batch]))
        return np.concatenate(batches)

    def _classify_batch(self, texts: Sequence[str]) -> np.ndarray:
        import torch

        prepared = [self._prepare(text) for text in texts]
        whole = self.tokenizer(prepared, verbose=False)["input_ids"]
        for text, token_ids in zip(texts, whole, strict=True):
            if len(token_ids) > self.room:
                self.cut.add(text)
        inputs = self.tokenizer(
            prepared,
            padding=True,
            truncation=True,
            max_length=self.room,
            return_tensors="pt",
        )
        with torch.inference_mode():
            logits = self.network(**inputs.to(self.network.device)).logits
        logits = logits.cpu().double()
        if self.independent:
            return logits.sigmoid().numpy()
        return logits.softmax(-1).numpy()

    def _prepare(self, text: str) -> str:
        if self.respace:
            text = join_split_words(self.tokenizer, text)
        return defuse_control_strings(text, self.controls)


def _check_head(source: ModelSource, what: str) -> None:
    """Raise `ModelError` if a model's weights are not those of a text classifier."""
    from transformers import AutoConfig

    config = load_part(AutoConfig, source.path, what)
    architectures = config.architectures or ["an architecture that is not named"]
    if not any(name.endswith("ForSequenceClassification") for name in architectures):
        raise ModelError(
            f"{what} cannot be loaded: its weights are of {', '.join(architectures)},"
            " not of a text classifier, whose head would be drawn at random; an entry"
            " of your own says how to ask a model that answers in words"
        )


def _load_network(source: ModelSource, what: str) -> "PreTrainedModel":
    """Load a classifier's weights; raise `ModelError` if some are missing."""
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # the library reports at length on what is missing
    try:
        network, report = load_part(
            AutoModelForSequenceClassification,
            source.path,
            what,
            use_safetensors=True,
            output_loading_info=True,
        )
    finally:
        logging.set_verbosity(verbosity)
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            f"{what} cannot be loaded: {len(missing)} of its weights are not in the"
            f" folder, {missing[0]} first, and would be drawn at random; copy it again"
        )
    return network


def _has_independent_labels(config: "PretrainedConfig") -> bool:
    is_multiple = config.problem_type == "multi_label_classification"
    return config.num_labels == 1 or is_multiple
