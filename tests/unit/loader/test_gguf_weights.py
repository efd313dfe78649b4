import numpy as np
import pytest
import torch

from streamgen.config import ModelConfig
from streamgen.errors import ModelLoadError
from streamgen.loader import open_checkpoint
from streamgen.loader.gguf_config import read_gguf_config
from streamgen.loader.gguf_file import GGUFFile
from streamgen.loader.gguf_weights import GGUFWeights
from tests.unit.loader.gguf_for_tests import (
    HEADS,
    HIDDEN,
    KV_HEADS,
    Q,
    bfloat16_bytes,
    decoder_metadata,
    decoder_weights,
    interleaved,
    write_gguf,
)

LAYER = "model.layers.0."
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.0.attn_norm.weight": LAYER + "input_layernorm.weight",
    "blk.0.ffn_norm.weight": LAYER + "post_attention_layernorm.weight",
    "blk.0.attn_q.weight": LAYER + "self_attn.q_proj.weight",
    "blk.0.attn_q.bias": LAYER + "self_attn.q_proj.bias",
    "blk.0.attn_k.weight": LAYER + "self_attn.k_proj.weight",
    "blk.0.attn_v.weight": LAYER + "self_attn.v_proj.weight",
    "blk.0.attn_output.weight": LAYER + "self_attn.o_proj.weight",
    "blk.0.attn_q_norm.weight": LAYER + "self_attn.q_norm.weight",
    "blk.0.attn_k_norm.weight": LAYER + "self_attn.k_norm.weight",
    "blk.0.ffn_gate.weight": LAYER + "mlp.gate_proj.weight",
    "blk.0.ffn_up.weight": LAYER + "mlp.up_proj.weight",
    "blk.0.ffn_down.weight": LAYER + "mlp.down_proj.weight",
}


def opened(path):
    file = GGUFFile(path)
    return GGUFWeights(file, read_gguf_config(file, bos_token_id=None, eos_token_ids=()))


def as_llama_cpp_has_it(weights):
    stored = dict(weights)
    for name, heads in (("attn_q", HEADS), ("attn_k", KV_HEADS)):
        for part in ("weight", "bias"):
            if (key := f"blk.0.{name}.{part}") in stored:
                stored[key] = interleaved(stored[key], heads)
    return stored


@pytest.mark.parametrize("qtype", [Q.F32, Q.F16, Q.Q8_0, Q.Q4_0, Q.Q5_1], ids=lambda kind: kind.name)
def test_llama_rows_come_back_in_hugging_faces_order(tmp_path, qtype):
    weights = decoder_weights() | {"blk.0.attn_q.bias": np.arange(HIDDEN, dtype=np.float32)}
    stored = as_llama_cpp_has_it(weights)
    read = dict(opened(write_gguf(tmp_path / "m.gguf", decoder_metadata(), stored, qtype=qtype)).tensors())
    # Quantizing by rows and reordering rows commute, so a file without the reordering says what is right.
    plain = write_gguf(tmp_path / "p.gguf", decoder_metadata("qwen2"), weights, arch="qwen2", qtype=qtype)
    expected = dict(opened(plain).tensors())
    assert read.keys() == expected.keys() == {NAMES[name] for name in weights}
    for name, value in expected.items():
        assert torch.equal(read[name], value), name
    loss = {Q.F32: 0.0, Q.F16: 1e-2, Q.Q8_0: 0.05}.get(qtype, 0.5)
    for name, value in weights.items():
        assert (read[NAMES[name]].float() - torch.from_numpy(value)).abs().max() <= loss, name


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_qwen_rows_are_left_alone(tmp_path, arch):
    weights = decoder_weights()
    if arch == "qwen3":
        weights |= {f"blk.0.attn_{part}_norm.weight": np.ones(16, dtype=np.float32) for part in "qk"}
    weights["output.weight"] = weights["token_embd.weight"] * 2
    path = write_gguf(tmp_path / "m.gguf", decoder_metadata(arch), weights, arch=arch)
    for name, value in opened(path).tensors():
        original = next(key for key, canonical in NAMES.items() if canonical == name)
        assert torch.equal(value, torch.from_numpy(weights[original]))


def test_floats_keep_their_dtype_and_blocks_become_float32(tmp_path):
    weights = decoder_weights()
    exact = np.round(weights["blk.0.attn_v.weight"] * 8) / 8
    weights["blk.0.attn_v.weight"] = (bfloat16_bytes(exact).view(np.uint8), Q.BF16)
    weights["blk.0.ffn_up.weight"] = weights["blk.0.ffn_up.weight"].astype(np.float16)
    path = write_gguf(tmp_path / "m.gguf", decoder_metadata("qwen2"), weights, arch="qwen2", qtype=Q.Q4_1)
    read = dict(opened(path).tensors())
    assert read[LAYER + "self_attn.v_proj.weight"].dtype == torch.bfloat16
    assert torch.equal(read[LAYER + "self_attn.v_proj.weight"].float(), torch.from_numpy(exact))
    assert read[LAYER + "mlp.up_proj.weight"].dtype == torch.float16
    assert read[LAYER + "mlp.down_proj.weight"].dtype == torch.float32


def test_tensors_outlive_the_closed_checkpoint(tmp_path):
    weights = opened(write_gguf(tmp_path / "m.gguf", decoder_metadata(), decoder_weights()))
    assert len(weights) == 11
    norm = dict(weights.tensors())["model.norm.weight"]
    weights.close()
    weights.close()
    assert torch.isfinite(norm).all()


def test_a_tensor_of_no_known_name_is_named(tmp_path):
    for name in ("blk.0.ffn_gate_inp.weight", "blk.01.attn_q.weight", "v.patch_embd.weight", "blk.0.attn_q.scale"):
        weights = decoder_weights() | {name: np.zeros(32, dtype=np.float32)}
        with pytest.raises(ModelLoadError, match=name):
            opened(write_gguf(tmp_path / "m.gguf", decoder_metadata(), weights))


@pytest.mark.parametrize("kind", [Q.Q2_K, Q.Q3_K, Q.IQ4_NL, Q.TQ1_0, Q.I8], ids=lambda kind: kind.name)
def test_a_type_that_is_not_supported_is_named_with_those_that_are(tmp_path, kind):
    import gguf

    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.zeros((4, 256 // block * size), dtype=np.int8 if kind == Q.I8 else np.uint8)
    weights = decoder_weights() | {"output.weight": (raw, kind)}
    with pytest.raises(ModelLoadError, match=rf"output.weight is of GGUF type {kind.name}.*Q4_K"):
        opened(write_gguf(tmp_path / "m.gguf", decoder_metadata(), weights))


def test_heads_that_do_not_fit_are_refused_before_reading(tmp_path):
    weights = decoder_weights()
    weights["blk.0.attn_k.weight"] = weights["blk.0.attn_k.weight"][:16]
    with pytest.raises(ModelLoadError, match=r"attn_k.weight has 16 rows, not 2 heads of 16"):
        opened(write_gguf(tmp_path / "m.gguf", decoder_metadata(), weights))


def test_a_cut_file_is_an_error_that_names_it(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", decoder_metadata(), decoder_weights())
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(ModelLoadError, match=r"m\.gguf.*cut off"):
        open_checkpoint(ModelConfig(model=str(path)))
