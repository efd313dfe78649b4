from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from streamgen.errors import ModelLoadError
from streamgen.loader.hf_config import read_hf_config
from streamgen.models.int8_decoder import Int8Decoder
from streamgen.models.registry import build_model
from streamgen.models.rotation import RotatedWeights, Rotation, rotated_config, turn, turn_block
from streamgen.models.weights import ReadAhead, draw_weights, load_weights
from streamgen.quantization.numeric_mode import NumericMode
from streamgen_kernels.operators import get_operators
from tests.models.tiny import CPU, huggingface

NORM = "model.layers.1.input_layernorm.weight"


class Tensors:
    def __init__(self, tensors):
        self._tensors = list(tensors)
        self.num_tensors = len(self._tensors)

    def tensors(self):
        return iter(self._tensors)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    def read(case):
        folder = tmp_path_factory.mktemp(case)
        huggingface(case).config.architectures = [type(huggingface(case)).__name__]
        huggingface(case).config.save_pretrained(folder)
        return read_hf_config(folder / "config.json")

    return read


def weights(case):
    tied = huggingface(case).config.tie_word_embeddings
    return {
        name: tensor.detach().clone()
        for name, tensor in huggingface(case).state_dict().items()
        if not (tied and name == "lm_head.weight")
    }


def build(config, mode="float32"):
    return build_model(config, operators=get_operators("cpu"), mode=NumericMode(mode), device=CPU)


def test_a_missing_tensor_is_named(config):
    tensors = weights("llama")
    del tensors[NORM]
    with pytest.raises(ModelLoadError, match=f"lacks the tensor {NORM}"):
        load_weights(build(config("llama")), Tensors(tensors.items()))


@pytest.mark.parametrize("name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias", "extra"])
def test_a_surplus_tensor_is_named(config, name):
    tensors = {**weights("llama"), name: torch.zeros(3)}
    with pytest.raises(ModelLoadError, match=f"no place for the tensor {name}"):
        load_weights(build(config("llama")), Tensors(tensors.items()))


def test_a_tensor_of_the_wrong_shape_or_twice_is_named(config):
    with pytest.raises(ModelLoadError, match=rf"{NORM} has shape \(47,\)"):
        load_weights(build(config("llama")), Tensors([(NORM, torch.zeros(47))]))
    with pytest.raises(ModelLoadError, match=f"{NORM} twice"):
        load_weights(build(config("llama")), Tensors([(NORM, torch.zeros(48)), (NORM, torch.zeros(48))]))


def test_what_old_checkpoints_carry_for_nothing_is_ignored(config):
    tensors = weights("llama_tied")
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8), "lm_head.weight": torch.zeros(97, 48)}
    seen = []
    load_weights(
        build(config("llama_tied")), Tensors({**tensors, **extra}.items()), lambda *progress: seen.append(progress)
    )
    assert seen[-1][1:] == (len(tensors) + 2, len(tensors) + 2)


def load(mode, config, tensors):
    """The model in a mode, filled with (name, tensor) pairs as the engine does. Returns the progress reported."""
    seen = []
    if mode == "int8":
        model = Int8Decoder(rotated_config(config), max_model_len=64, threads=1)
        source = RotatedWeights(Tensors(tensors), config)
    else:
        model, source = build(config, mode), Tensors(tensors)
    try:
        load_weights(model, source, lambda *progress: seen.append(progress))
    finally:
        model.close()
    return seen


LAYER, BEYOND = "model.layers.1.", "model.layers.7."
LACKS, NO_PLACE = r"^The checkpoint lacks the tensor {}\.$", "^The model has no place for the tensor {};"
MISSHAPEN = r"^The tensor {} has shape \({}\); the config says \("
DAMAGES = {
    **{
        f"{name} {shape}": ({name: torch.ones(shape)}, MISSHAPEN.format(name, str(shape)[1:-1]))
        for name, shape in (
            (NORM, (1,)),
            (NORM, (40,)),
            (NORM, (48, 1)),
            (NORM, ()),
            ("model.norm.weight", (1,)),
            (f"{LAYER}post_attention_layernorm.weight", (47,)),
            (f"{LAYER}self_attn.q_norm.weight", (1,)),
            (f"{LAYER}self_attn.q_proj.weight", (96, 40)),
            (f"{LAYER}self_attn.q_proj.weight", (48,)),
            (f"{LAYER}self_attn.o_proj.weight", (48, 80)),
            (f"{LAYER}self_attn.o_proj.weight", (40, 96)),
            (f"{LAYER}mlp.up_proj.weight", (1, 48)),
            (f"{LAYER}mlp.down_proj.weight", (40, 80)),
            (f"{LAYER}mlp.down_proj.weight", (48, 72)),
            ("model.embed_tokens.weight", (97, 32)),
            ("model.embed_tokens.weight", (96, 48)),
            ("lm_head.weight", (97, 1)),
        )
    },
    **{
        f"no {name}": ({name: None}, LACKS.format(name))
        for name in (
            NORM,
            "model.norm.weight",
            f"{LAYER}post_attention_layernorm.weight",
            f"{LAYER}self_attn.k_norm.weight",
            f"{LAYER}self_attn.v_proj.weight",
            f"{LAYER}mlp.down_proj.weight",
            "model.embed_tokens.weight",
            "lm_head.weight",
        )
    },
    **{
        f"surplus {name}": ({name: torch.ones(shape)}, NO_PLACE.format(name))
        for name, shape in (
            (f"{BEYOND}input_layernorm.weight", (48,)),
            (f"{BEYOND}self_attn.q_proj.weight", (96, 48)),
            (f"{BEYOND}self_attn.o_proj.weight", (7,)),
            (f"{LAYER}mlp.up_proj.bias", (80,)),
            ("extra", ()),
        )
    },
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("norms_last", [False, True])
def test_a_damaged_checkpoint_is_refused_alike_in_each_mode(config, damage, norms_last):
    changes, match = DAMAGES[damage]
    shape, damaged = config("qwen3"), {**weights("qwen3"), **changes}
    tensors = [(name, values) for name, values in damaged.items() if values is not None]
    tensors.sort(key=lambda item: ("norm" in item[0]) == norms_last)
    texts = []
    for mode in ("float32", "int8"):
        with pytest.raises(ModelLoadError, match=match) as caught:
            load(mode, shape, tensors)
        texts.append(caught.value.message)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", [NORM, f"{LAYER}self_attn.q_proj.weight", "model.embed_tokens.weight"])
@pytest.mark.parametrize("mode", ["float32", "int8"])
def test_a_tensor_twice_is_refused_in_each_mode(config, mode, name):
    tensors = weights("qwen3")
    with pytest.raises(ModelLoadError, match=f"has the tensor {name} twice"):
        load(mode, config("qwen3"), [*tensors.items(), (name, tensors[name])])


@pytest.mark.parametrize("mode", ["float32", "int8"])
def test_a_tied_checkpoint_needs_no_head_and_its_own_is_ignored(config, mode):
    shape, tensors = config("llama_tied"), weights("llama_tied")
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8), "lm_head.weight": torch.zeros(3)}
    for given in (tensors, {**extra, **tensors}, {**tensors, **extra}):
        _, done, total = load(mode, shape, given.items())[-1]
        assert done == total
    without_norm = [item for item in tensors.items() if item[0] != "model.norm.weight"]
    with pytest.raises(ModelLoadError, match=LACKS.format("model.norm.weight")):
        load(mode, shape, without_norm)


def test_an_unknown_architecture_is_refused_with_the_list(config):
    with pytest.raises(ModelLoadError, match="LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"):
        build(replace(config("llama"), architecture="MambaForCausalLM"))
    with pytest.raises(ModelLoadError, match="qk_norm"):
        build(replace(config("qwen3"), qk_norm=False))


def test_drawn_weights_depend_on_the_seed_alone(config):
    models = [build(config("qwen3")) for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        draw_weights(model, seed)
    first, same, other = (model.blocks[0].down._method.weight for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("size", [1, 3, 48, 64, 576])
def test_a_rotation_is_orthogonal_and_lets_no_channel_stand_out(size):
    matrix = Rotation(size).apply(torch.eye(size))
    assert torch.allclose(matrix @ matrix.t(), torch.eye(size), atol=1e-5)
    assert matrix.abs().max() <= 1.5 / size**0.5


@pytest.mark.parametrize("size, block", [(80, 16), (1536, 512), (4864, 256), (8192, 1024), (7, 1)])
def test_a_turn_is_orthogonal_within_its_blocks(size, block):
    assert turn_block(size) == block
    x = torch.randn(3, size, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(turn(turn(x)), x, atol=1e-4)
    assert torch.allclose(turn(x).view(3, -1, block).norm(dim=-1), x.view(3, -1, block).norm(dim=-1), rtol=1e-4)


@pytest.mark.parametrize(
    "case", ["llama", "llama_tied", "llama_attention_bias", "llama_mlp_bias", "qwen2_tied", "qwen3"]
)
@pytest.mark.parametrize("norms_last", [False, True])
def test_the_rotated_model_is_the_same_model(config, case, norms_last):
    shape, tensors = config(case), weights(case)
    ordered = sorted(tensors.items(), key=lambda item: ("norm" in item[0]) == norms_last)
    plain, rotated = build(shape), build(rotated_config(shape))
    load_weights(plain, Tensors(ordered))
    source = RotatedWeights(Tensors(ordered), shape)
    turned_weights = dict(source.tensors())
    assert len(turned_weights) == source.num_tensors
    folded = {
        name for name in rotated.weight_slots() if name.endswith("layernorm.weight") or name == "model.norm.weight"
    }
    assert turned_weights.keys() == rotated.weight_slots().keys() - folded
    load_weights(rotated, Tensors({**turned_weights, **{name: torch.ones(48) for name in folded}}.items()))
    hidden = torch.randn(5, shape.hidden_size, generator=torch.Generator().manual_seed(0))
    turned = Rotation(shape.hidden_size).apply(hidden)
    assert torch.allclose(plain.logits(plain.norm.norm(hidden)), rotated.logits(rotated.norm.norm(turned)), atol=1e-4)
    for ours, theirs in zip(plain.blocks, rotated.blocks, strict=True):
        assert torch.allclose(
            ours.qkv.apply(ours.input_norm.norm(hidden)), theirs.qkv.apply(theirs.input_norm.norm(turned)), atol=1e-4
        )
        inner = torch.randn(5, shape.intermediate_size, generator=torch.Generator().manual_seed(1))
        assert torch.allclose(
            Rotation(shape.hidden_size).apply(ours.down.apply(inner)), theirs.down.apply(turn(inner)), atol=1e-4
        )


def test_reading_ahead_changes_neither_order_nor_errors():
    tensors = [(f"t{index}", torch.full((2,), float(index))) for index in range(7)]
    ahead = ReadAhead(Tensors(tensors), depth=3)
    assert ahead.num_tensors == 7
    assert [(name, values.tolist()) for name, values in ahead.tensors()] == [(n, v.tolist()) for n, v in tensors]

    class Damaged(Tensors):
        def tensors(self):
            yield from tensors[:2]
            raise ModelLoadError("the third is damaged")

    seen = []
    with pytest.raises(ModelLoadError, match="third"):
        seen.extend(ReadAhead(Damaged(tensors)).tensors())
    assert not any(thread.name.startswith("streamgen-weights") for thread in threading.enumerate())


def test_reading_ahead_stops_when_nobody_wants_more():
    read = []

    class Counted(Tensors):
        def tensors(self):
            for index in range(100):
                read.append(index)
                yield f"t{index}", torch.zeros(1)

    reading = ReadAhead(Counted([]), depth=2).tensors()
    next(reading)
    reading.close()
    assert len(read) <= 4
    assert not any(thread.name.startswith("streamgen-weights") for thread in threading.enumerate())
