"""Tiny models of many families, and the table in docs/usage.md of what becomes of them.

`python tests/families.py` writes the table anew; a weekly test compares it.
"""

import re
import shutil
import tempfile
from pathlib import Path

import pandas as pd
import tiny
import tiny_gguf
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    LlamaForSequenceClassification,
)

from paraguard_utils import paths
from paraguard_utils.errors import ModelError
from paraguard_utils.models import backends, prompting
from paraguard_utils.models.prompting import Workload
from paraguard_utils.settings import QueryOptions

torch = tiny.torch

USAGE = paths.ROOT / "docs" / "usage.md"
HEADER = "| a tiny model of the type | is queried |\n|---|---|\n"
PROMPTS = 8
TOKENS = 12

THINKING = tiny.CHATML + (
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking"
    " %}<think>\n\n</think>\n\n{% endif %}"
)
"""Opens an empty thought where no thinking is wanted, as Qwen 3 does."""

DROPS_SYSTEM = (
    "{% for m in messages if m['role'] != 'system' %}<|im_start|>{{ m['content']"
    " }}<|im_end|>{% endfor %}"
)
"""Has no place for a system turn, and says nothing, as the first Mistral."""

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
SMALL_HEADS = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 24}
STATE_SIZES = {"state_size": 8}
LINEAR_HEADS = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

STATEFUL = {
    "Mamba": ("mamba", STATE_SIZES),
    "Jamba": (
        "jamba",
        {
            "num_experts": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "LFM2": ("lfm2", {"layer_types": ["conv", "full_attention"]}),
    "Qwen3-Next": (
        "qwen3_next",
        {
            "head_dim": 8,
            "num_experts": 4,
            "shared_expert_intermediate_size": 16,
            "layer_types": ["linear_attention", "full_attention"],
            **EXPERTS,
            **LINEAR_HEADS,
        },
    ),
    "Mamba 2": (
        "mamba2",
        {**STATE_SIZES, "head_dim": 8, "num_heads": 8, "n_groups": 1},
    ),
    "RWKV": ("rwkv", {"attention_hidden_size": 32}),
    "GPT (the first)": ("openai-gpt", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
}
"""Types that keep another state than keys and values, or nothing, and their sizes."""

CACHED = {
    "Llama": ("llama", {}),
    "Qwen 2": ("qwen2", {}),
    "Qwen 3, with a thinking template": (
        "qwen3",
        {"head_dim": 8, "template": THINKING},
    ),
    "Gemma 2, whose template rejects a system turn, with a sliding window": (
        "gemma2",
        {**SMALL_HEADS, "template": tiny.NO_SYSTEM},
    ),
    "Gemma 3": ("gemma3_text", SMALL_HEADS),
    "Gemma 3 with images": ("gemma3", {}),
    "Mistral, whose template drops a system turn": (
        "mistral",
        {"template": DROPS_SYSTEM},
    ),
    "Phi-3": ("phi3", {}),
    "OLMo 2": ("olmo2", {}),
    "BLOOM": ("bloom", {"n_head": 4, "n_layer": 2}),
    "Mixtral": ("mixtral", {"num_local_experts": 4}),
    "Qwen3-MoE": ("qwen3_moe", {"head_dim": 8, "num_experts": 4, **EXPERTS}),
    "GPT-OSS": (
        "gpt_oss",
        {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "DeepSeek-V3": (
        "deepseek_v3",
        {
            "num_key_value_heads": 4,
            "kv_lora_rank": 8,
            "q_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 8,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            **EXPERTS,
        },
    ),
    "GPT-2, without a template": ("gpt2", {"template": None}),
    "OPT, without a template": (
        "opt",
        {"ffn_dim": 48, "word_embed_proj_dim": 32, "template": None},
    ),
}
"""Types that keep keys and values, and their sizes."""


def write_known(family, more):
    """Return a function that writes a model into a folder."""
    return lambda folder: tiny.write(folder, family=family, **more)


def rewrite(change):
    """Return a function that writes a Llama and then changes its folder."""

    def write(folder):
        change(tiny.write(folder))
        return folder

    return write


def put_other(auto, family, **sizes):
    """Return a change that puts another model into a folder."""

    def change(folder):
        config = AutoConfig.for_model(family, vocab_size=320, **sizes)
        auto.from_config(config).save_pretrained(folder)

    return change


def make_adapter(folder, named="owner/base"):
    """Replace a model's folder by that of an adapter of it."""
    import peft

    base = AutoModelForCausalLM.from_pretrained(folder)
    config = peft.LoraConfig(target_modules=["q_proj"])
    adapted = peft.get_peft_model(base, config)
    adapted.peft_config["default"].base_model_name_or_path = str(named)
    shutil.rmtree(folder)
    adapted.save_pretrained(folder)


def make_adapter_beside(folder):
    """Do so, and keep the model beside the folder."""
    base = folder.with_name(f"{folder.name}-base")
    shutil.copytree(folder, base)
    make_adapter(folder, base)


def put_classifier(folder):
    """Put a classifier's head into the place of the model's own."""
    config = AutoConfig.from_pretrained(folder)
    LlamaForSequenceClassification(config).save_pretrained(folder)


def lose_shard(folder):
    """Save weights in several files, and lose one."""
    network = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    network.save_pretrained(folder, max_shard_size="20KB")
    max(folder.glob("model-*.safetensors")).unlink()


def pickle_weights(folder):
    """Leave weights of the older format alone."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def describe_only(folder):
    """Leave a model that reads images as well, whose class has no text-only form."""
    AutoConfig.for_model("qwen2_vl").save_pretrained(folder)


def remove_tokenizer(folder):
    """Leave the weights alone."""
    for file in folder.glob("tokenizer*"):
        file.unlink()


def write_gguf(name="model.gguf", **more):
    """Return a function that writes a GGUF file."""

    def write(folder):
        folder.mkdir()
        return tiny_gguf.write(folder / name, **more)

    return write


T5 = put_other(
    AutoModelForSeq2SeqLM, "t5", d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8
)
BERT = put_other(
    AutoModelForMaskedLM,
    "bert",
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
)
XLNET = put_other(
    AutoModelForCausalLM, "xlnet", d_model=16, n_layer=1, n_head=2, d_inner=16
)

OTHERS = {
    "T5": rewrite(T5),
    "BERT": rewrite(BERT),
    "XLNet": rewrite(XLNET),
    "Qwen2-VL": rewrite(describe_only),
    "Llama with a classifier's head": rewrite(put_classifier),
    "Llama, of which one file of weights is missing": rewrite(lose_shard),
    "Llama as `.bin` only": rewrite(pickle_weights),
    "Llama without a tokenizer": rewrite(remove_tokenizer),
    "Llama's adapter (LoRA)": rewrite(make_adapter_beside),
    "Llama's adapter (LoRA), without its base": rewrite(make_adapter),
    "Llama as GGUF": write_gguf(),
    "Llama as GGUF, without a template": write_gguf(template=""),
    "Llama as GGUF, one part by its name": write_gguf("model-00001-of-00003.gguf"),
    "Llama as GGUF, one part by `split.count`": write_gguf(splits=3),
    "Llama as GGUF, without a tensor": write_gguf(without=["blk.1.ffn_up.weight"]),
}
"""What is not a whole decoder in transformers' layout."""

FAMILIES = {
    **{name: write_known(*known) for name, known in (CACHED | STATEFUL).items()},
    **OTHERS,
}
"""From a name to a function that writes a model into a folder and returns its path."""


def make_prompts(count):
    """Return prompts of different lengths."""
    texts = [f"how do I {'kill a process ' * (n % 5)}{n}" for n in range(count)]
    ids = [f"p{n}" for n in range(count)]
    return pd.DataFrame({"prompt_id": ids, "text": texts})


def generate(network, tokenizer, token_ids, tokens):
    """Return the answer of transformers' own greedy generation."""
    ids = torch.tensor([list(token_ids)])
    with torch.inference_mode():
        answer = network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
        )
    return tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True).strip()


def query(path, without_template="error"):
    """Query a model; return in words how, after comparing with transformers' own."""
    options = QueryOptions(
        model=str(path), system_prompts=["safety"], without_template=without_template
    )
    (source,) = backends.resolve_backends(options)
    model = source.open(options)
    context = model.context("Be kind.", prompting.Decoding(TOKENS))
    prompts = make_prompts(PROMPTS)
    traces = pd.concat(model.answers(Workload(prompts), context))
    for row in traces.itertuples():
        own = generate(model.model.network, model.tokenizer, row.token_ids, TOKENS)
        assert row.response == own, f"{path}: {row.response!r} is not {own!r}"
    is_stateful = "engine" in model.facts(traces)
    return "one prompt at a time" if is_stateful else "in batches"


def describe(path):
    """Return what becomes of a model, as a cell of the table."""
    try:
        return query(path)
    except ModelError as error:
        line = str(error).replace(str(path), path.name)
        line = re.sub(r"-[0-9a-f]{8}\b", "", line)
        assert "\n" not in line
    if "without_template=plain" in line:
        return f"{query(path, 'plain')}, with `-p without_template=plain`"
    return f"no: {line}"


def make_table(folder):
    """Return the table, of models that are written into a folder."""
    paths.CACHE = folder / "cache"
    rows = []
    for number, (name, write) in enumerate(FAMILIES.items()):
        place = folder / str(number) / "X"
        place.parent.mkdir()
        rows.append(f"| {name} | {describe(write(place))} |\n")
    return HEADER + "".join(rows)


def read_table():
    """Return the table that docs/usage.md has."""
    text = USAGE.read_text(encoding="utf-8")
    start = text.index(HEADER)
    return text[start : text.index("\n\n", start) + 1]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        made = make_table(Path(temporary))
    text = USAGE.read_text(encoding="utf-8").replace(read_table(), made)
    USAGE.write_text(text, encoding="utf-8")
