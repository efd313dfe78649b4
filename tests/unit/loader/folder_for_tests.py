"""A tiny Hugging Face folder."""

import json
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "tie_word_embeddings": True,
}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def byte_tokenizer() -> tokenizers.Tokenizer:
    """One token a byte, one of two bytes in place of 0xC0 (which no text has), and three special ones."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens[tokens.index("\u00c0")] = "zq"
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [("z", "q")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<bos>", "<eos>", "<pad>"])
    return backend


def write_folder(folder: Path, *, weights: bool = True, tokenizer: bool = True, **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    if weights:
        save_file({"model.norm.weight": torch.ones(16)}, folder / "model.safetensors")
    if tokenizer:
        byte_tokenizer().save(str(folder / "tokenizer.json"))
        special = {"bos_token": "<bos>", "eos_token": {"content": "<eos>"}, "chat_template": TEMPLATE}
        (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder
