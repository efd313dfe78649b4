import random
import struct
import tracemalloc

import gguf
import numpy as np
import pytest

from streamgen.errors import ModelLoadError
from streamgen.loader.gguf_file import GGUFFile
from tests.unit.loader.gguf_for_tests import Q, decoder_metadata, decoder_weights, header, text, write_gguf


@pytest.fixture
def small(tmp_path):
    metadata = decoder_metadata() | {"a.list": ["x", "žluť", ""], "a.numbers": [1, -2, 3], "a.flag": True, "a.f": 0.1}
    return write_gguf(tmp_path / "small.gguf", metadata, {"token_embd.weight": np.eye(4, dtype=np.float32)})


def written(tmp_path, data):
    path = tmp_path / "written.gguf"
    path.write_bytes(data)
    return path


def refused(tmp_path, data, match):
    path = written(tmp_path, data)
    with pytest.raises(ModelLoadError, match=match) as caught:
        GGUFFile(path)
    assert str(path) in caught.value.message


def test_metadata_and_tensors_are_what_the_gguf_package_reads(small):
    file, reader = GGUFFile(small), gguf.GGUFReader(small)
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        value = file.metadata[key]
        value = value.tolist() if isinstance(value, np.ndarray) else value
        assert value == (pytest.approx(field.contents()) if isinstance(value, float) else field.contents())
    (theirs,) = reader.tensors
    ours = file.tensors["token_embd.weight"]
    assert ours.shape == (4, 4)
    assert file.data(ours).tobytes() == theirs.data.tobytes()


def test_a_float32_is_the_decimal_that_was_written(small):
    assert GGUFFile(small).metadata["a.f"] == 0.1
    assert GGUFFile(small).metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-5


def test_tensor_bytes_are_shared_with_the_file_and_survive_its_closing(small):
    file = GGUFFile(small)
    data = file.data(file.tensors["token_embd.weight"])
    assert not data.flags.owndata
    file.close()
    assert data.view(np.float32).reshape(4, 4).tolist() == np.eye(4).tolist()


def test_every_truncation_is_refused(small, tmp_path):
    data = small.read_bytes()
    cuts = [*range(0, min(len(data), 700), 7), *range(700, len(data), 31), len(data) - 1]
    for cut in cuts:
        refused(tmp_path, data[:cut], "GGUF")


def test_flipped_bytes_give_a_file_or_an_error_and_no_large_allocation(small, tmp_path):
    data, rng = small.read_bytes(), random.Random(1)
    tracemalloc.start()
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 127, 255, rng.randrange(256)))
        try:
            file = GGUFFile(written(tmp_path, bytes(damaged)))
        except ModelLoadError:
            continue
        for tensor in file.tensors.values():
            file.data(tensor)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


@pytest.mark.parametrize(
    "data, match",
    [
        (b"", "magic"),
        (b"GGU", "magic"),
        (header(magic=b"GGJT"), "magic"),
        (header(version=1), "version is 1"),
        (header(version=99), "version is 99"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(num_tensors=2**63), "more than its"),
        (header(num_keys=2**64 - 1), "more than its"),
        (header(num_keys=1) + struct.pack("<Q", 2**64 - 1) + bytes(40), "ends within"),
        (header(num_keys=1) + text("k") + struct.pack("<I", 77) + bytes(40), "unknown type, 77"),
        (header(num_keys=1) + text("k") + struct.pack("<IIQ", 9, 8, 2**60) + bytes(40), "more than its"),
        (header(num_keys=1) + text("k") + struct.pack("<IIQ", 9, 6, 2**62) + bytes(40), "more than its"),
        (header(num_keys=1) + text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 20 + bytes(99), "too deep"),
        (header(num_keys=2) + (text("k") + struct.pack("<IB", 7, 1)) * 2, "twice"),
        (header(num_tensors=1) + text("t") + struct.pack("<I", 2**31) + bytes(99), "dimensions"),
        (header(num_tensors=1) + text("t") + struct.pack("<IQIQ", 1, 0, 0, 0) + bytes(99), "is empty"),
        (header(num_tensors=1) + text("t") + struct.pack("<IQIQ", 1, 2**62, 0, 0) + bytes(99), "cut off"),
        (header(num_tensors=1) + text("t") + struct.pack("<IQIQ", 1, 8, 0, 2**63) + bytes(99), "cut off"),
        (header(num_tensors=1) + text("t") + struct.pack("<IQIQ", 1, 8, 0, 1) + bytes(99), "cut off"),
        (header(num_tensors=1) + text("t") + struct.pack("<IQIQ", 1, 8, 12345, 0) + bytes(99), "unknown type, 12345"),
        (header(num_tensors=1) + text("t") + struct.pack("<IQIQ", 1, 33, 2, 0) + bytes(99), "no multiple of Q4_0's 32"),
        (header(num_tensors=2) + (text("t") + struct.pack("<IQIQ", 1, 8, 0, 0)) * 2 + bytes(99), "twice"),
        (header(num_keys=1) + text("general.alignment") + struct.pack("<II", 4, 3) + bytes(99), "alignment is 3"),
        (header(num_keys=1) + text("general.alignment") + struct.pack("<II", 4, 2**31) + bytes(99), "alignment"),
    ],
)
def test_what_the_file_says_is_checked_against_its_size(tmp_path, data, match):
    refused(tmp_path, data, match)


def test_a_folder_or_missing_file_is_an_error_too(tmp_path):
    for path in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(ModelLoadError, match="Cannot open"):
            GGUFFile(path)


def test_every_ggml_type_has_a_size():
    assert all(kind in gguf.GGML_QUANT_SIZES for kind in Q)


def test_a_whole_model_keeps_its_tensors_apart(tmp_path):
    weights = decoder_weights()
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", decoder_metadata(), weights))
    assert list(file.tensors) == list(weights)
    for name, value in weights.items():
        assert file.data(file.tensors[name]).tobytes() == value.tobytes()
