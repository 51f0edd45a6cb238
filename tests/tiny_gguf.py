"""A tiny randomly initialised Llama as a GGUF file."""

import json

import gguf
import numpy as np
import tiny

WIDTH, HIDDEN, LAYERS = 32, 64, 2
TEMPLATE = "<|im_start|>{{ messages[-1]['content'] }}<|im_end|>"


def shapes(vocabulary):
    """Return the shape of every tensor, by its name in GGUF."""
    found = {"token_embd.weight": (vocabulary, WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        parts = {
            "attn_norm": (WIDTH,),
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (WIDTH, WIDTH),
            "attn_v": (WIDTH, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (HIDDEN, WIDTH),
            "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }
        for name, shape in parts.items():
            found[f"blk.{layer}.{name}.weight"] = shape
    return found


def write(path, template=TEMPLATE, without=(), splits=0):
    """Write the file, without some tensors and with `split.count` if asked."""
    own = tiny.tokenizer()
    words = own.convert_ids_to_tokens(range(len(own)))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(1024)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    merges = json.loads(own.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_token_types([3 if word.startswith("<|") else 1 for word in words])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    if template:
        writer.add_chat_template(template)
    if splits:
        writer.add_uint16("split.count", splits)
    drawn = np.random.default_rng(0)
    for name, shape in shapes(len(words)).items():
        if name not in without:
            writer.add_tensor(name, drawn.normal(0, 0.3, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
