"""vLLM's flags that have no field here. None is ignored: each is accepted where its value asks for what happens
anyway, and refused with a reason otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streamgen.errors import ConfigError

ALIASES = {
    "-q": "--quantization",
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-O": "--compilation-config",
    "-cc": "--compilation-config",
    "-n": "--nnodes",
    "-r": "--node-rank",
}
"""vLLM's short forms."""


@dataclass(frozen=True)
class ForeignFlag:
    """A flag of vLLM's. `neutral` holds the values, in lower case, that ask for nothing that does not happen anyway."""

    reason: str
    neutral: frozenset[str] = field(default_factory=frozenset)
    switch: bool = False

    def check(self, name: str, value: str, source: str) -> None:
        """Raise ConfigError unless the value is neutral. A switch has the values "true" and "false"."""
        if value.strip().lower() in self.neutral:
            return
        shown = ("" if value == "true" else "no-") + name if self.switch else f"{name} {value}".rstrip()
        raise ConfigError(f"{source}--{shown}: {self.reason}")


def _later(what: str, *neutral: str) -> ForeignFlag:
    return ForeignFlag(f"{what} not supported yet.", frozenset(neutral))


def _later_switch(what: str) -> ForeignFlag:
    return ForeignFlag(f"{what} not supported yet.", frozenset({"false"}), switch=True)


def _void(why: str, *neutral: str) -> ForeignFlag:
    return ForeignFlag(f"this flag means nothing here: {why}", frozenset(neutral))


def _void_switch(why: str, *neutral: str) -> ForeignFlag:
    return ForeignFlag(f"this flag means nothing here: {why}", frozenset(neutral), switch=True)


def _always(what: str) -> ForeignFlag:
    """A switch that is on here, and cannot be turned off."""
    return ForeignFlag(f"{what} cannot be switched off.", frozenset({"true"}), switch=True)


_ONE_GPU = "a model on more than one GPU is"
_LORA = "LoRA adapters are"
_SPECULATION = "speculative decoding is"
_MULTIMODAL = "images, audio and video are"
_TOOLS = "tool calls are"
_TLS = "TLS is left to a proxy in front of the server; serving it here is"
_DISAGGREGATION = "moving KV between servers is"
_HUB = "set the environment variable HF_HOME to choose where the hub's files are kept."
_NO_SWAP = "KV is never swapped to the host's memory; a preempted request is computed again."
_NO_CODE = "code from a checkpoint is never run, whatever the flag says."

FOREIGN: dict[str, ForeignFlag] = {
    # parallelism
    "tensor-parallel-size": _later(_ONE_GPU, "1"),
    "pipeline-parallel-size": _later(_ONE_GPU, "1"),
    "data-parallel-size": _later("more than one engine behind a server is", "1"),
    "data-parallel-size-local": _later("more than one engine behind a server is", "1"),
    "data-parallel-rank": _later("more than one engine behind a server is", "0"),
    "data-parallel-address": _later("more than one engine behind a server is"),
    "data-parallel-rpc-port": _later("more than one engine behind a server is"),
    "data-parallel-backend": _later("more than one engine behind a server is"),
    "decode-context-parallel-size": _later(_ONE_GPU, "1"),
    "prefill-context-parallel-size": _later(_ONE_GPU, "1"),
    "enable-expert-parallel": _later_switch("expert parallelism is"),
    "enable-eplb": _later_switch("expert parallelism is"),
    "nnodes": _later(_ONE_GPU, "1"),
    "node-rank": _later(_ONE_GPU, "0"),
    "master-addr": _later(_ONE_GPU),
    "master-port": _later(_ONE_GPU),
    "distributed-executor-backend": _later(_ONE_GPU, "uni"),
    "max-parallel-loading-workers": _later(_ONE_GPU, "1"),
    "disable-custom-all-reduce": _void_switch("there is one GPU.", "true", "false"),
    "api-server-count": _later("more than one front end is", "1"),
    "headless": _later_switch("an engine without a front end is"),
    # weights
    "quantization": _later("quantized weight formats are", "none"),
    "kv-cache-dtype": _later("a KV cache of another type than the model's is", "auto"),
    "calculate-kv-scales": _later_switch("a KV cache of another type than the model's is"),
    "revision": _later("a revision of a hub's model is; download it and give its folder", "main"),
    "tokenizer-revision": _later("a revision of a hub's tokenizer is; download it and give its folder", "main"),
    "code-revision": _void(_NO_CODE),
    "download-dir": _void(_HUB),
    "hf-token": _void("set the environment variable HF_TOKEN."),
    "trust-remote-code": _void_switch(_NO_CODE, "false"),
    "hf-overrides": _later("overriding a model's config is; edit its config.json", "", "{}"),
    "hf-config-path": _later("a config apart from its model is"),
    "config-format": _void("the format is recognized.", "auto", "hf"),
    "model-impl": _void("every model is streamgen's own.", "auto"),
    "tokenizer-mode": _void("there is one kind of tokenizer.", "auto", "hf"),
    "skip-tokenizer-init": _later_switch("serving without a tokenizer is"),
    "model-loader-extra-config": _void("loaders take no options.", "", "{}"),
    "ignore-patterns": _void("only the files that are needed are read."),
    "override-generation-config": _later("overriding sampling defaults is; give a folder to --generation-config", "{}"),
    "runner": _void("the server generates text.", "auto", "generate"),
    "convert": _void("the server generates text.", "auto", "none"),
    "task": _void("the server generates text.", "auto", "generate"),
    # memory and steps
    "swap-space": _void(_NO_SWAP, "0"),
    "cpu-offload-gb": _later("keeping weights in the host's memory is", "0"),
    "kv-offloading-size": _later("a KV cache in the host's memory is", "0"),
    "enable-chunked-prefill": _always("chunked prefill"),
    "async-scheduling": ForeignFlag(
        "use --steps-in-flight 1 for one step at a time.", frozenset({"true"}), switch=True
    ),
    "long-prefill-token-threshold": _later("a limit on one prompt's part of a step is", "0"),
    "max-num-partial-prefills": _void("the step's token budget alone limits chunks.", "1"),
    "max-long-partial-prefills": _void("the step's token budget alone limits chunks.", "1"),
    "num-scheduler-steps": _void("use --steps-in-flight.", "1"),
    "scheduler-delay-factor": _void("no request is delayed on purpose.", "0", "0.0"),
    "preemption-mode": _void(_NO_SWAP, "recompute"),
    "prefix-caching-hash-algo": _void("prefixes are hashed with SHA-256.", "sha256"),
    "disable-sliding-window": _void_switch("no supported model has a sliding window.", "true", "false"),
    "disable-cascade-attn": _void_switch("there is no cascade attention.", "true"),
    "use-v2-block-manager": _void_switch("there is one block manager.", "true", "false"),
    "max-seq-len-to-capture": _void("graphs are captured by batch size."),
    "max-cudagraph-capture-size": _void("graph sizes follow --max-num-seqs."),
    "cudagraph-capture-sizes": _void("graph sizes follow --max-num-seqs."),
    "cuda-graph-sizes": _void("graph sizes follow --max-num-seqs."),
    "compilation-config": _void("nothing is compiled by torch.compile.", "0", "{}"),
    "attention-backend": _void("attention is streamgen's own."),
    "stream-interval": _later("one chunk for several tokens is", "1"),
    "enable-sleep-mode": _later_switch("sleep mode is"),
    "logits-processors": _later("other logits processors are"),
    "max-logprobs": _later("log-probabilities are", "0"),
    "logprobs-mode": _later("log-probabilities are"),
    # features
    "speculative-config": _later(_SPECULATION),
    "speculative-model": _later(_SPECULATION),
    "num-speculative-tokens": _later(_SPECULATION, "0"),
    "spec-decoding-acceptance-method": _later(_SPECULATION),
    "enable-lora": _later_switch(_LORA),
    "lora-modules": _later(_LORA),
    "max-loras": _later(_LORA),
    "max-lora-rank": _later(_LORA),
    "max-cpu-loras": _later(_LORA),
    "lora-dtype": _later(_LORA),
    "fully-sharded-loras": _later_switch(_LORA),
    "prompt-adapters": _later("prompt adapters are"),
    "enable-prompt-adapter": _later_switch("prompt adapters are"),
    "enable-prompt-embeds": _later_switch("prompt embeddings are"),
    "limit-mm-per-prompt": _later(_MULTIMODAL, "{}"),
    "mm-processor-kwargs": _later(_MULTIMODAL, "{}"),
    "mm-processor-cache-gb": _later(_MULTIMODAL, "0"),
    "media-io-kwargs": _later(_MULTIMODAL, "{}"),
    "allowed-local-media-path": _later(_MULTIMODAL, ""),
    "allowed-media-domains": _later(_MULTIMODAL),
    "language-model-only": _void_switch("only text is served.", "true", "false"),
    "enable-auto-tool-choice": _later_switch(_TOOLS),
    "tool-call-parser": _later(_TOOLS),
    "tool-parser-plugin": _later(_TOOLS, ""),
    "tool-server": _later(_TOOLS),
    "exclude-tools-when-tool-choice-none": _later_switch(_TOOLS),
    "reasoning-parser": _later("reasoning parsers are", ""),
    "enable-reasoning": _later_switch("reasoning parsers are"),
    "structured-outputs-config": _later("structured outputs are", "{}"),
    "guided-decoding-backend": _later("structured outputs are", "auto"),
    "kv-transfer-config": _later(_DISAGGREGATION),
    "kv-events-config": _later(_DISAGGREGATION),
    "ec-transfer-config": _later(_DISAGGREGATION),
    # the server
    "uds": _later("a Unix socket is"),
    "ssl-keyfile": _later(_TLS),
    "ssl-certfile": _later(_TLS),
    "ssl-ca-certs": _later(_TLS),
    "ssl-cert-reqs": _later(_TLS, "0"),
    "ssl-ciphers": _later(_TLS),
    "enable-ssl-refresh": _later_switch(_TLS),
    "allowed-methods": _void("the API's own methods are allowed.", "*", '["*"]'),
    "allowed-headers": _void("the API's own headers are allowed.", "*", '["*"]'),
    "allow-credentials": _void_switch("keys travel in a header, not in cookies.", "false"),
    "chat-template-content-format": _later("a template's choice of content parts is", "auto", "string"),
    "default-chat-template-kwargs": _later("defaults for a template's arguments are", "{}"),
    "trust-request-chat-template": _void_switch("a template from a request is never rendered.", "false"),
    "response-role": _later("another role of answers is", "assistant"),
    "return-tokens-as-token-ids": _later_switch("log-probabilities are"),
    "enable-request-id-headers": _always("X-Request-Id"),
    "enable-prompt-tokens-details": _always("usage.prompt_tokens_details"),
    "enable-force-include-usage": _later_switch("usage that was not asked for is"),
    "enable-server-load-tracking": _void_switch("/metrics has the load.", "false"),
    "enable-tokenizer-info-endpoint": _later_switch("/tokenizer_info is"),
    "enable-log-requests": _void_switch("prompts are never logged.", "false"),
    "disable-log-requests": _always("that prompts are not logged"),
    "enable-log-outputs": _void_switch("answers are never logged.", "false"),
    "enable-log-deltas": _void_switch("answers are never logged.", "false"),
    "max-log-len": _void("prompts are never logged."),
    "disable-log-stats": _always("that statistics are in /metrics and not in the log"),
    "aggregate-engine-logging": _void_switch("there is one engine.", "true", "false"),
    "uvicorn-log-level": _void("use --log-level."),
    "disable-uvicorn-access-log": _void_switch("use --disable-access-log.", "false"),
    "disable-access-log-for-endpoints": _later("leaving paths out of the access log is; see --disable-access-log"),
    "log-config-file": _later("another log configuration is"),
    "disable-fastapi-docs": _always("that there are no /docs pages"),
    "enable-offline-docs": _void_switch("there are no /docs pages.", "false"),
    "disable-frontend-multiprocessing": _always("that front end and engine share a process"),
    "middleware": _later("other middleware is"),
    "h11-max-incomplete-event-size": _void("HTTP is parsed by httptools."),
    "h11-max-header-count": _void("HTTP is parsed by httptools."),
    "otlp-traces-endpoint": _later("tracing is"),
    "collect-detailed-traces": _later("tracing is"),
    "show-hidden-metrics-for-version": _void("no metric is hidden."),
    "kv-cache-metrics": _later_switch("block residency metrics are"),
    "profiler-config": _later("profiling is", "{}"),
    "enable-mfu-metrics": _later_switch("these metrics are"),
    "additional-config": _void("there are no platform plugins.", "{}"),
    "worker-cls": _void("there are no plugins.", "auto"),
    "worker-extension-cls": _void("there are no plugins.", ""),
    "scheduler-cls": _void("there are no plugins."),
    "io-processor-plugin": _void("there are no plugins."),
    "optimization-level": _void("nothing is compiled by torch.compile."),
    "performance-mode": _later("performance modes are", "balanced"),
    "disable-nccl-for-dp-synchronization": _void_switch("there is one GPU.", "true", "false"),
}
