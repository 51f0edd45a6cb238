"""Tiny randomly initialised chat models, written to a folder in transformers' layout."""

import pytest

torch = pytest.importorskip("torch", reason="no model can run without torch")
from tokenizers import (  # noqa: E402
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import (  # noqa: E402
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedTokenizerFast,
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content']"
    " }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{%"
    " endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system turn') }}{%"
    " endif %}" + CHATML
)
INJECTS = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe Tiny.<|im_end|>\n{%"
    " endif %}" + CHATML
)
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
DATED = "<|im_start|>{{ strftime_now('%d %b %Y') }}\n" + CHATML


def tokenizer(words=(), special=(), size=320):
    """Return a byte-level tokenizer of some hundred tokens, trained on a few words."""
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|im_start|>", "<|im_end|>", *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        ["how do I kill a process", "user system assistant", *words] * 4, trainer
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
    )


def write(
    folder,
    template=CHATML,
    seed=0,
    family="llama",
    words=(),
    special=(),
    size=320,
    **more,
):
    """Write a two-layer model of a family, with its image part if it has one, and its
    tokenizer; return the folder.
    """
    torch.manual_seed(seed)
    own = tokenizer(words, special, size)
    if template:
        own.chat_template = template
    fields = {
        "vocab_size": size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "initializer_range": 0.3,
        **more,
    }
    if family in ("gemma3", "llama4"):
        config = AutoConfig.for_model(family, text_config=fields, vision_config=VISION)
        AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    else:
        AutoModelForCausalLM.from_config(
            AutoConfig.for_model(family, **fields)
        ).save_pretrained(folder)
    own.save_pretrained(folder)
    return folder
