"""What the command line accepts, refuses, and says."""

import json
import os
import socket
import subprocess
import sys

import pytest

from streamgen import cli
from streamgen.commands.flags import flags_of
from streamgen.commands.foreign import ALIASES, FOREIGN
from streamgen.commands.options import COMMANDS, Bench, Chat, Complete, Serve, Version
from streamgen.commands.parse import parse
from streamgen.commands.serve import serve as run_serve
from streamgen.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, ServerConfig
from streamgen.errors import ConfigError

KNOWN_TO_VLLM_USERS = """
    --host --port --uds --config --served-model-name --api-key --root-path --allowed-origins --allowed-methods
    --allowed-headers --ssl-keyfile --ssl-certfile --tokenizer --revision --dtype --max-model-len --quantization
    --load-format --download-dir --trust-remote-code --hf-overrides --generation-config --seed
    --gpu-memory-utilization --kv-cache-dtype --kv-cache-memory-bytes --num-gpu-blocks-override --block-size
    --enable-prefix-caching --max-num-seqs --max-num-batched-tokens --enable-chunked-prefill --scheduling-policy
    --stream-interval --max-num-queued-reqs --max-num-queued-tokens --tensor-parallel-size --pipeline-parallel-size
    --data-parallel-size --enable-expert-parallel --distributed-executor-backend --enforce-eager
    --speculative-config --enable-lora --chat-template --chat-template-content-format --response-role
    --enable-auto-tool-choice --tool-call-parser --reasoning-parser --enable-log-requests --disable-log-stats
    --uvicorn-log-level --enable-request-id-headers --enable-force-include-usage --sse-keep-alive-interval
    --shutdown-timeout --otlp-traces-endpoint
"""


def serve(*argv: str) -> Serve:
    command = parse(["serve", *argv])
    assert isinstance(command, Serve)
    return command


def refused(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(argv)
    return caught.value.message


def test_defaults_are_the_dataclasses() -> None:
    assert serve() == Serve(engine=EngineConfig(), server=ServerConfig())


def test_every_kind_of_flag() -> None:
    command = serve(
        *("some/model", "--dtype", "float32", "--max-model-len=512", "--no-enable-prefix-caching"),
        *("--gpu-memory-utilization", ".5", "--api-key", "one", "--api-key=--two", "--enforce-eager", "--seed", "-3"),
        *("--allowed-origins", '["https://a.example", "*"]', "--scheduling-policy", "priority"),
    )
    assert command == Serve(
        engine=EngineConfig(
            model=ModelConfig(model="some/model", dtype="float32", max_model_len=512, seed=-3),
            cache=CacheConfig(enable_prefix_caching=False, gpu_memory_utilization=0.5),
            scheduler=SchedulerConfig(scheduling_policy="priority"),
            enforce_eager=True,
        ),
        server=ServerConfig(api_key=("one", "--two"), allowed_origins=("https://a.example", "*")),
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["m", "--max_model_len", "512"],
        ["--max-model-len", "512", "m"],
        ["--model", "m", "--max-model-len", "512"],
        ["--max-model-len", "9", "--max-model-len", "512", "--", "m"],
        ["--model=m", "--max-model-len=0.5K"],
        ["m", "--model", "m", "--max_model-len=512"],
    ],
)
def test_ways_to_say_the_same(argv: list[str]) -> None:
    assert serve(*argv).engine.model == ModelConfig(model="m", max_model_len=512)


@pytest.mark.parametrize(
    "text,value", [("4k", 4000), ("4K", 4096), ("25.6k", 25600), ("1m", 10**6), ("2G", 2**31), ("128", 128)]
)
def test_numbers_may_have_units(text: str, value: int) -> None:
    assert serve("--max-num-batched-tokens", text).engine.scheduler.max_num_batched_tokens == value


@pytest.mark.parametrize(
    "argv",
    [
        "m --served-model-name a b",
        "m --served-model-name a --served-model-name b",
        "--model m --served-model-name a b --port 1",
        "--served-model-name a m --served-model-name b",
        "--served-model-name=a --served-model-name b -- m",
    ],
)
def test_a_flag_with_several_values(argv: str) -> None:
    model = serve(*argv.split()).engine.model
    assert model.served_model_name == ("a", "b")
    assert model.model == "m"


def test_auto_is_the_default_of_an_optional_flag() -> None:
    assert serve("--max-model-len", "auto").engine.model.max_model_len is None
    assert serve("--dtype", "auto").engine.model.dtype == "auto"


@pytest.mark.parametrize(
    "argv",
    [
        "-tp 1",
        "--tensor_parallel_size=1",
        "-q none",
        "--enable-chunked-prefill",
        "--no-enable-lora",
        "--kv-cache-dtype auto",
        "--stream-interval 1",
        "--disable-log-stats",
        "--response-role assistant",
        "--swap-space 0",
        "--no-trust-remote-code",
    ],
)
def test_what_happens_anyway_may_be_asked_for(argv: str) -> None:
    assert serve(*argv.split()) == serve()


@pytest.mark.parametrize(
    "argv,says",
    [
        ("-tp 2", "--tensor-parallel-size 2: a model on more than one GPU is not supported yet"),
        ("--tensor-parallel-size=2", "not supported yet"),
        ("-q awq", "--quantization awq: quantized weight formats are not supported yet"),
        ('--speculative-config {"model":"x"}', "speculative decoding is not supported yet"),
        ("--enable-lora", "LoRA adapters are not supported yet"),
        ("--swap-space 4", "means nothing here"),
        ("--no-enable-chunked-prefill", "--no-enable-chunked-prefill: chunked prefill cannot be switched off"),
        ("--trust-remote-code", "code from a checkpoint is never run"),
        ("--uvicorn-log-level debug", "--log-level"),
        ("--frobnicate 1", "Unknown flag --frobnicate"),
        ("--max-model-length 1", "Did you mean --max-model-len?"),
        ("-z", "Unknown flag -z"),
        ("a b", "Unexpected argument 'b'"),
        ("a --port 1 b", "Unexpected argument 'b'"),
        ("m --served-model-name=a b", "Unexpected argument 'b'"),
        ("a --model b", "given twice"),
        ("--port", "--port needs a value"),
        ("--port --host x", "--port needs a value"),
        ("--enforce-eager=yes", "takes no value"),
        ("--port 65536", "--port must be between 0 and 65535"),
        ("--max-num-seqs 0", "--max-num-seqs must be at least 1"),
        ("--gpu-memory-utilization nan", "--gpu-memory-utilization must be between"),
        ("--max-num-batched-tokens 8", "less than --max-num-seqs"),
        ("--root-path llm", "must begin with a slash"),
        ("--allowed-origins example.com", "such as https://example.com"),
        ("--max-model-len 0", "at least 1"),
        ("--max-model-len 99999999999999999999", "between 1 and 9223372036854775807"),
        ("--allowed-origins https://a.example/app", "such as https://example.com"),
        ("--served-model-name=", "--served-model-name must not be empty"),
        ("--max-model-len 1.5K", None),
        ("--max-model-len 1.0001k", "no whole number"),
    ],
)
def test_what_is_refused(argv: str, says: str | None) -> None:
    if says is None:
        assert serve(*argv.split()).engine.model.max_model_len == 1536
    else:
        assert says in refused("serve", *argv.split())


def test_an_unknown_command_is_refused() -> None:
    assert "no command 'sevre'" in refused("sevre")


@pytest.mark.parametrize("argv", ["serve --port eighty", "serve --dtype float3", "bench", "bench speed"])
def test_wrong_types_exit_with_2_and_name_the_flag(argv: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(argv.split())
    assert caught.value.code == 2
    explained = capsys.readouterr().err
    assert any(name in explained for name in ("--port", "--dtype", "--mode"))


def test_known_flags_are_ours_or_answered() -> None:
    ours = flags_of(Serve)
    assert [name for name in KNOWN_TO_VLLM_USERS.split() if name[2:] not in {*ours, *FOREIGN, "config"}] == []
    assert not set(ours) & set(FOREIGN)
    assert all(alias.removeprefix("--") in FOREIGN for alias in ALIASES.values())
    assert all(flag.reason.endswith(".") for flag in FOREIGN.values())


def test_yaml_gives_what_flags_do_not(tmp_path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        "model: m\nport: 9000\nmax_model_len: 4K\napi-key: [a, b]\nenable-prefix-caching: false\n"
        "tensor-parallel-size: 1\nenable-lora: false\ntokenizer: null\nhf-overrides: {}\nserved-model-name: x\n"
    )
    command = serve("--config", str(path), "--port", "1", "--api-key", "c")
    assert command == Serve(
        engine=EngineConfig(
            model=ModelConfig(model="m", max_model_len=4096, served_model_name=("x",)),
            cache=CacheConfig(enable_prefix_caching=False),
        ),
        server=ServerConfig(port=1, api_key=("c",)),
    )
    assert serve("n", f"--config={path}", "--max-model-len", "auto").engine.model.model == "n"
    assert serve("n", f"--config={path}", "--max-model-len", "auto").engine.model.max_model_len is None


@pytest.mark.parametrize(
    "text,says",
    [
        ("prot: 1", "unknown key 'prot'. Did you mean port?"),
        ("[1, 2]", "must hold flags and their values"),
        ("just words", "must hold flags and their values"),
        ("a: b: c", "is no YAML"),
        ("port: [1]", "port cannot be [1]"),
        ("port: {a: 1}", "port cannot be {'a': 1}"),
        ("port: true", "port cannot be True"),
        ("enforce-eager: 'yes'", "enforce-eager must be true or false"),
        ("tensor-parallel-size: 2", "--tensor-parallel-size 2"),
        ("enable-lora: true", "--enable-lora: LoRA"),
        ("speculative-config: {model: x}", "speculative decoding"),
        ("max-model-len: 1\nmax_model_len: 2", "given twice"),
        ("!!python/object/apply:os.system ['true']", "is no YAML"),
    ],
)
def test_yaml_that_is_refused(tmp_path, text: str, says: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    message = refused("serve", "--config", str(path))
    assert says in message
    assert str(path) in message
    assert "\n" not in message


def test_yaml_that_is_not_there(tmp_path) -> None:
    assert "No such file" in refused("serve", "--config", str(tmp_path / "no.yaml"))
    assert "may be given once" in refused("serve", "--config", "a", "--config", "b")


def test_the_other_commands() -> None:
    assert parse(["version"]) == parse(["--version"]) == Version()
    assert parse(["chat", "--url", "http://x", "--system", "Be brief."]) == Chat(url="http://x", system="Be brief.")
    assert parse(["complete", "Once upon"]) == Complete(prompt="Once upon")
    assert parse(["complete"]) == parse(["complete", "-"]) == Complete()
    command = parse(["bench", "latency", "m", "--batch-size", "4"])
    assert command == Bench(mode="latency", batch_size=4, engine=EngineConfig(model=ModelConfig(model="m")))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_each_flag_and_its_meaning(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse([name, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert [flag for flag in flags_of(COMMANDS[name]) if f"--{flag}" not in text] == []


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse([])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


def test_main_prints_one_line_and_returns_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--enable-lora"]) == 1
    assert capsys.readouterr().err == "streamgen: --enable-lora: LoRA adapters are not supported yet.\n"


def test_version_prints_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.startswith("streamgen ")


def test_the_command_line_is_light() -> None:
    """The port must be bound before anything heavy is imported."""
    code = (
        "import sys, json; import streamgen.cli, streamgen.commands.parse, streamgen.commands.serve;"
        "streamgen.commands.parse.parse(['serve']);"
        "print(json.dumps([m for m in ('torch', 'triton', 'transformers', 'starlette') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert json.loads(done.stdout) == []


def test_serving_lets_the_event_loop_take_over_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    intervals = []

    async def note(sockets: list[socket.socket], *_: object) -> None:
        intervals.append(sys.getswitchinterval())
        for one in sockets:
            one.close()

    monkeypatch.setattr("streamgen.commands.serve._serve", note)
    monkeypatch.setattr("streamgen.commands.serve._leave_thread_behind", lambda _status: None)
    monkeypatch.setattr("streamgen.observability.logging.configure_logging", lambda *_, **__: None)
    usual = sys.getswitchinterval()
    try:
        assert run_serve(EngineConfig(), ServerConfig(port=0)) == 0
    finally:
        sys.setswitchinterval(usual)
    assert intervals == [pytest.approx(0.0005)]
