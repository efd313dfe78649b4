import json
import logging

import pytest

from streamgen.errors import ConfigError, ModelLoadError
from streamgen.loader.generation import GenerationConfig, read_generation_config, resolve_generation
from streamgen.models.config import GenerationDefaults


def written(folder, values):
    folder.mkdir(exist_ok=True)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(values))
    return path


def test_end_tokens_as_a_number_a_list_or_not_at_all(tmp_path):
    for given, expected in ((2, (2,)), ([3, 2, 3], (3, 2)), (None, ()), ([], ())):
        path = written(tmp_path, {"eos_token_id": given, "bos_token_id": 1})
        assert read_generation_config(path) == GenerationConfig(expected, 1)
    assert read_generation_config(written(tmp_path, {})) == GenerationConfig()


def test_sampling_defaults(tmp_path):
    values = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "max_new_tokens": 99}
    config = read_generation_config(written(tmp_path, values))
    assert config.defaults == GenerationDefaults(temperature=0.6, top_p=0.95, top_k=20, min_p=0.0, max_tokens=99)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 3},
        {"temperature": "1"},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": 2.5},
        {"top_k": -2},
        {"min_p": 2},
    ],
)
def test_a_default_that_no_request_could_have_is_refused(tmp_path, values):
    with pytest.raises(ModelLoadError, match=f"generation_config.json: {next(iter(values))}"):
        read_generation_config(written(tmp_path, values))


def test_a_setting_that_is_not_applied_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        read_generation_config(written(tmp_path, {"repetition_penalty": 1.0, "num_beams": 1}))
        assert not caplog.records
        read_generation_config(written(tmp_path, {"repetition_penalty": 1.05}))
    assert "repetition_penalty=1.05 is not applied" in caplog.text


def test_the_flag_chooses_whose_defaults(tmp_path):
    own = GenerationConfig((2, 3), 1, GenerationDefaults(temperature=0.6))
    assert resolve_generation("auto", own) == own
    assert resolve_generation("vllm", own) == GenerationConfig((2, 3), 1)
    written(tmp_path / "other", {"top_k": 5})
    other = resolve_generation(str(tmp_path / "other"), own)
    assert other == GenerationConfig((2, 3), 1, GenerationDefaults(top_k=5))
    written(tmp_path / "other", {"eos_token_id": 9, "bos_token_id": 0})
    assert resolve_generation(str(tmp_path / "other"), own) == GenerationConfig((9,), 0)
    with pytest.raises(ConfigError, match="--generation-config must be auto, vllm or a folder"):
        resolve_generation(str(tmp_path), own)
