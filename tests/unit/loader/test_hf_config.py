"""config.json is compared with what transformers' own config classes make of it."""

import json

import pytest

from streamgen.errors import ModelLoadError
from streamgen.loader.hf_config import MAX_VOCAB, read_hf_config
from streamgen.models.config import RopeConfig
from streamgen_kernels.reference.sampling import MAX_VOCAB_SIZE

SHAPE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 512,
    "beta_fast": 16.0,
    "truncate": False,
}


def read(tmp_path, architecture="LlamaForCausalLM", **changes):
    values = {"architectures": [architecture], **SHAPE, **changes}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "absent"}))
    return read_hf_config(path)


def saved(tmp_path, model_type, **values):
    from transformers import AutoConfig

    config = AutoConfig.for_model(model_type, **SHAPE, **values)
    name = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[model_type]
    config.architectures = [name]
    config.save_pretrained(tmp_path)
    return config, read_hf_config(tmp_path / "config.json")


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"tie_word_embeddings": True, "max_position_embeddings": 777, "rms_norm_eps": 3e-6},
        {"attention_bias": True, "mlp_bias": True, "head_dim": 32, "bos_token_id": 7, "eos_token_id": [8, 9]},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}, "max_position_embeddings": 131072},
        {"rope_parameters": YARN | {"rope_theta": 1e6}, "max_position_embeddings": 2048},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 1e4}},
    ],
)
def test_what_transformers_saves_is_read_as_it_means_it(tmp_path, model_type, values):
    if model_type == "qwen2":
        values = {key: value for key, value in values.items() if key not in ("head_dim", "attention_bias")}
    theirs, ours = saved(tmp_path, model_type, **values)
    for name in ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings", "tie_word_embeddings"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert (ours.num_layers, ours.num_heads, ours.num_kv_heads) == (2, 4, 2)
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 16)
    assert ours.bos_token_id == theirs.bos_token_id
    ends = theirs.eos_token_id
    assert ours.eos_token_ids == (() if ends is None else tuple(ends) if isinstance(ends, list) else (ends,))
    assert ours.qkv_bias == (model_type == "qwen2" or theirs.attention_bias)
    assert ours.o_bias == (model_type != "qwen2" and theirs.attention_bias)
    assert ours.mlp_bias == (model_type == "llama" and theirs.mlp_bias)
    assert ours.qk_norm == (model_type == "qwen3")
    rope = theirs.rope_parameters
    assert (ours.rope.theta, ours.rope.type) == (rope["rope_theta"], rope["rope_type"])
    assert ours.rope.factor == rope.get("factor", 1.0)
    assert ours.rope.original_max_position_embeddings == rope.get("original_max_position_embeddings")
    assert ours.rope.beta_fast == rope.get("beta_fast", 32.0)
    assert ours.rope.truncate == rope.get("truncate", True)


@pytest.mark.parametrize("kind", ["rope_type", "type"])
def test_rope_scaling_from_before_transformers_5(tmp_path, kind):
    scaling = {kind: "linear", "factor": 4.0}
    assert read(tmp_path, rope_scaling=scaling, rope_theta=2e4).rope == RopeConfig(theta=2e4, type="linear", factor=4.0)
    assert read(tmp_path, rope_scaling=None, rope_theta=2e4).rope == RopeConfig(theta=2e4)
    old = {("rope_type" if key == "rope_type" else key): value for key, value in LLAMA3.items()}
    rope = read(tmp_path, rope_scaling=old, rope_theta=5e5, max_position_embeddings=131072).rope
    assert (rope.type, rope.theta, rope.original_max_position_embeddings) == ("llama3", 5e5, 8192)


def test_the_original_length_defaults_to_the_models(tmp_path):
    rope = {"rope_type": "yarn", "factor": 2.0}
    assert read(tmp_path, rope_parameters=rope, max_position_embeddings=64).rope.original_max_position_embeddings == 64
    beside = read(tmp_path, rope_parameters=rope, max_position_embeddings=64, original_max_position_embeddings=32)
    assert beside.rope.original_max_position_embeddings == 32
    no_factor = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 32}
    assert read(tmp_path, rope_parameters=no_factor, max_position_embeddings=64).rope.factor == 2.0


def test_defaults_of_an_old_short_config(tmp_path):
    config = read(tmp_path, num_key_value_heads="absent")
    assert (config.num_kv_heads, config.head_dim, config.max_position_embeddings) == (4, 16, 2048)
    assert (config.rms_norm_eps, config.tie_word_embeddings, config.eos_token_ids) == (1e-6, False, ())
    assert config.rope == RopeConfig()
    assert read(tmp_path, architectures=None, model_type="qwen3").head_dim == 128


def test_the_dtype_that_a_checkpoint_was_saved_in_changes_nothing(tmp_path):
    """--dtype alone chooses the numeric mode, and each tensor says for itself how it is stored."""
    plain = read(tmp_path)
    assert read(tmp_path, torch_dtype="bfloat16") == read(tmp_path, dtype="float16") == plain


@pytest.mark.parametrize(
    "changes, match",
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            "'MambaForCausalLM' is not supported. Supported: LlamaForCausalLM, Q",
        ),
        ({"architectures": ["LlamaModel"]}, "'LlamaModel' is not supported"),
        ({"architectures": None, "model_type": "gpt2"}, "'gpt2' is not supported"),
        ({"architectures": None}, "is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"vocab_size": "absent"}, "vocab_size is missing"),
        ({"hidden_size": 0}, "hidden_size must be a whole number"),
        ({"hidden_size": 64.5}, "hidden_size must be a whole number"),
        ({"hidden_size": "64"}, "hidden_size must be a finite number"),
        ({"hidden_size": True}, "hidden_size must be a finite number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be"),
        ({"vocab_size": 10**400}, "vocab_size must be"),
        ({"vocab_size": 2**18 + 1}, "vocab_size must be a whole number from 1 to 262144; it is 262145"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({"hidden_size": 66}, "no multiple|not a multiple"),
        ({"head_dim": 15}, "odd"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "true or false"),
        ({"eos_token_id": "2"}, "eos_token_id must be a token id"),
        ({"eos_token_id": [2, -1]}, "eos_token_id must be a token id"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope' is not supported; supported are default, linear"),
        ({"rope_scaling": {"type": "mrope"}}, "'mrope' is not supported"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ between layers"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ({"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}}, "must be less than"),
        ({"rope_parameters": {"rope_type": "linear", "factor": float("inf")}}, "factor must be"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"sliding_window": 128, "max_position_embeddings": 4096}, "sliding-window"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "'linear_attention' are not supported"),
    ],
)
def test_what_is_not_supported_is_refused_with_the_files_name(tmp_path, changes, match):
    with pytest.raises(ModelLoadError, match=match) as caught:
        read(tmp_path, **changes)
    assert "config.json" in caught.value.message


def test_the_largest_vocabulary_is_the_samplers(tmp_path):
    assert read(tmp_path, vocab_size=MAX_VOCAB_SIZE).vocab_size == MAX_VOCAB == MAX_VOCAB_SIZE


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_a_sliding_window_is_refused_only_where_it_is_in_use(tmp_path, architecture):
    unused = {"sliding_window": 128, "max_window_layers": 0, "max_position_embeddings": 4096}
    read(tmp_path, architecture, **unused, use_sliding_window=False)
    read(tmp_path, architecture, **unused | {"max_window_layers": 2}, use_sliding_window=True)
    read(tmp_path, architecture, **unused | {"sliding_window": 4096}, use_sliding_window=True)
    read(tmp_path, architecture, **unused, use_sliding_window=True, layer_types=["full_attention"] * 2)
    for more in ({}, {"layer_types": ["full_attention", "sliding_attention"]}):
        with pytest.raises(ModelLoadError, match="sliding-window"):
            read(tmp_path, architecture, **unused, use_sliding_window=True, **more)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 100_000])
def test_a_file_that_is_no_json_object(tmp_path, data):
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        read_hf_config(path)
