import json
import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from streamgen.config import ModelConfig
from streamgen.errors import ModelLoadError
from streamgen.loader import open_checkpoint
from streamgen.loader.safetensors_files import SafetensorsWeights
from tests.unit.loader.folder_for_tests import write_folder

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def tensors(*names):
    generator = torch.Generator().manual_seed(len(names))
    return {name: torch.randn(4, 8, generator=generator) for name in names}


def write_index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def sharded(folder):
    first, second = tensors("a", "b"), tensors("c")
    save_file(first, folder / ONE)
    save_file(second, folder / TWO)
    write_index(folder, {"a": ONE, "b": ONE, "c": TWO})
    return first | second


def same(weights, expected):
    read = dict(weights.tensors())
    assert len(weights) == len(read)
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[name], expected[name]) for name in expected)
    return True


def test_one_file(tmp_path):
    values = {name: value.to(torch.bfloat16) for name, value in tensors("x", "y").items()}
    save_file(values, tmp_path / "model.safetensors")
    weights = SafetensorsWeights(tmp_path)
    assert same(weights, values)
    assert next(weights.tensors())[1].dtype == torch.bfloat16


def test_several_files_with_an_index_and_without(tmp_path):
    expected = sharded(tmp_path)
    save_file(tensors("other"), tmp_path / "consolidated.safetensors")
    assert same(SafetensorsWeights(tmp_path), expected)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert same(SafetensorsWeights(tmp_path), expected)


def test_values_are_mapped_and_outlive_the_reader(tmp_path):
    expected = tensors("x")
    save_file(expected, tmp_path / "model.safetensors")
    weights = SafetensorsWeights(tmp_path)
    value = dict(weights.tensors())["x"]
    weights.close()
    assert torch.equal(value, expected["x"])


def test_a_missing_file_is_named(tmp_path):
    sharded(tmp_path)
    (tmp_path / TWO).unlink()
    with pytest.raises(ModelLoadError, match=rf"{TWO} is missing"):
        SafetensorsWeights(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelLoadError, match=f"lacks {TWO}"):
        SafetensorsWeights(tmp_path)


@pytest.mark.parametrize(
    "weight_map, wrong",
    [
        ({"a": ONE, "b": ONE, "c": TWO, "d": TWO}, "d"),
        ({"a": ONE, "c": TWO}, "b"),
        ({"a": ONE, "b": TWO, "c": TWO}, "b"),
    ],
)
def test_an_index_that_disagrees_with_its_files_names_the_tensor(tmp_path, weight_map, wrong):
    sharded(tmp_path)
    write_index(tmp_path, weight_map)
    with pytest.raises(ModelLoadError, match=f"has the tensor {wrong} in"):
        SafetensorsWeights(tmp_path)


def test_a_tensor_in_two_files_is_named(tmp_path):
    sharded(tmp_path)
    save_file(tensors("c", "b"), tmp_path / TWO)
    with pytest.raises(ModelLoadError, match="the tensor b is both in"):
        SafetensorsWeights(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "/etc/outside.safetensors",
        "a/../../outside.safetensors",
        "..\\outside.safetensors",
        "C:\\outside.safetensors",
        "\\\\host\\share\\x.safetensors",
        "model.bin",
        "nul\0.safetensors",
        7,
        None,
        "",
    ],
)
def test_an_index_cannot_lead_out_of_its_folder(tmp_path, name):
    save_file(tensors("a"), tmp_path / "outside.safetensors")
    folder = tmp_path / "model"
    folder.mkdir()
    write_index(folder, {"a": name})
    with pytest.raises(ModelLoadError, match="no safetensors file beside it"):
        SafetensorsWeights(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {}}])
def test_an_index_without_a_map(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match="no weight_map"):
        SafetensorsWeights(tmp_path)


def test_damaged_files_are_errors_that_name_them(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(tensors("x", "y"), path)
    whole = path.read_bytes()
    cuts = [whole[:n] for n in (0, 4, 8, 20, 60, len(whole) - 1)]
    lies = [
        b"\xff" * 8 + whole[8:],
        (2**40).to_bytes(8, "little") + whole[8:],
        whole.replace(b"F32", b"F3X"),
        whole + b"x",
    ]
    lies.append(whole.replace(b'"data_offsets":[0,', b'"data_offsets":[9,'))
    for data in cuts + lies:
        path.write_bytes(data)
        with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
            SafetensorsWeights(tmp_path)


def test_types_other_than_floats_are_named(tmp_path):
    for dtype, name in ((torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.bool, "BOOL")):
        save_file({"x": torch.zeros(4).to(dtype)}, tmp_path / "model.safetensors")
        with pytest.raises(ModelLoadError, match=f"tensor x is of type {name}.*F32"):
            SafetensorsWeights(tmp_path)


def test_folders_without_weights(tmp_path):
    with pytest.raises(ModelLoadError, match="has no weights"):
        SafetensorsWeights(tmp_path)
    save_file(tensors("lora_A"), tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelLoadError, match="an adapter, not a model"):
        SafetensorsWeights(tmp_path)


class Payload:
    """Unpickling this writes a file: the stand-in for whatever an attacker would run."""

    def __init__(self, proof):
        self.proof = proof

    def __reduce__(self):
        return (exec, (f"open({str(self.proof)!r}, 'w').close()",))


def torch_archive(path, payload):
    """The zip layout that torch.save writes."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", payload)
        archive.writestr("archive/version", "3\n")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "weights.ckpt", "model.pkl"])
@pytest.mark.parametrize("archive", [True, False])
def test_F8_pickled_weights_are_refused_and_never_unpickled(tmp_path, name, archive):
    folder, proof = write_folder(tmp_path / "model", weights=False), tmp_path / "proof"
    payload = pickle.dumps(Payload(proof))
    if archive:
        torch_archive(folder / name, payload)
    else:
        (folder / name).write_bytes(payload)
    for model in (folder, folder / name):
        with pytest.raises(ModelLoadError, match="never read here") as caught:
            open_checkpoint(ModelConfig(model=str(model)))
        assert "safetensors" in caught.value.message
        assert "save_pretrained" in caught.value.message
    assert not proof.exists()
    pickle.loads(payload)
    assert proof.exists(), "the payload would have worked"


def test_F8_a_pickle_under_another_name_is_never_unpickled(tmp_path):
    proof = tmp_path / "proof"
    payload = pickle.dumps(Payload(proof))
    for name in (
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ):
        folder = write_folder(tmp_path / name.replace(".", "_"))
        (folder / name).write_bytes(payload)
        with pytest.raises(ModelLoadError, match=name):
            open_checkpoint(ModelConfig(model=str(folder)))
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(payload)
    with pytest.raises(ModelLoadError, match="magic"):
        open_checkpoint(ModelConfig(model=str(gguf)))
    assert not proof.exists()


def test_F8_pickles_beside_safetensors_are_left_alone(tmp_path):
    folder, proof = write_folder(tmp_path / "model"), tmp_path / "proof"
    for name in ("training_args.bin", "optimizer.pt", "pytorch_model.bin"):
        (folder / name).write_bytes(pickle.dumps(Payload(proof)))
    checkpoint = open_checkpoint(ModelConfig(model=str(folder)))
    assert len(dict(checkpoint.tensors())) == checkpoint.num_tensors
    assert not proof.exists()


def test_F8_code_that_a_model_brings_along_is_never_run(tmp_path):
    folder, proof = write_folder(tmp_path / "model"), tmp_path / "proof"
    (folder / "tokenizer.json").unlink()
    (folder / "tokenization_own.py").write_text(f"open({str(proof)!r}, 'w').close()\nclass Own: ...\n")
    config = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["tokenization_own.Own", "tokenization_own.Own"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "vocab.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="tokenizer"):
        open_checkpoint(ModelConfig(model=str(folder)))
    assert not proof.exists()
