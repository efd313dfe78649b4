from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from streamgen.config import EngineConfig
from streamgen.errors import ConfigError
from streamgen.loader.checkpoint import Checkpoint
from streamgen.models.config import DecoderConfig
from streamgen.models.int8_decoder import Int8Decoder, int8_block_bytes, int8_is_fast, int8_refusal, prepare
from streamgen.models.model import Model
from streamgen.models.registry import build_model, check_architecture
from streamgen.models.rotation import RotatedWeights, rotated_config
from streamgen.models.weights import ReadAhead, WeightSource, draw_weights, load_weights
from streamgen.quantization.numeric_mode import NumericMode
from streamgen.runtime.dtype import DeviceCapability, resolve_dtype
from streamgen.runtime.model_runner import ModelRunner
from streamgen.runtime.sampler import Sampler
from streamgen.runtime.sizing import block_bytes, model_length, num_blocks, trained_length
from streamgen.runtime.threads import cpu_threads
from streamgen_kernels.operators import get_operators

logger = logging.getLogger(__name__)


def build_runner(
    config: EngineConfig, checkpoint: Checkpoint, *, progress: Callable[[str, int, int], None] | None = None
) -> ModelRunner:
    """Model, weights, KV pool and runner for a checkpoint. Raises ConfigError or ModelLoadError."""
    device = _device(config.device)
    decoder = checkpoint.decoder
    resolved = resolve_dtype(config.model.dtype, _capability(device, decoder))
    if resolved.warning:
        logger.warning(resolved.warning)
    operators = get_operators("cpu" if device.type == "cpu" else "triton")
    logger.info("Computing in %s on %s", resolved.mode, device)
    if resolved.mode == "int8":
        bytes_a_block = int8_block_bytes(decoder, config.cache.block_size)
    else:
        mode = NumericMode(resolved.mode)
        bytes_a_block = block_bytes(decoder, config.cache.block_size, mode.activation_dtype.itemsize)
    trained = trained_length(decoder)

    def sized(free_bytes: int | None) -> tuple[int, int]:
        blocks = num_blocks(config.cache, bytes_a_block, free_bytes)
        length = model_length(config.model.max_model_len, trained, blocks, config.cache.block_size)
        if length.warning:
            logger.warning(length.warning)
        return blocks, length.tokens

    # A CPU's pool is known now, so that a length which cannot be served is refused before the weights are read.
    blocks, max_model_len = sized(None) if device.type == "cpu" else (0, config.model.max_model_len or trained)
    if device.type == "cpu":
        torch.set_num_threads(cpu_threads())
    with torch.inference_mode():
        model: Model
        weights: WeightSource
        if resolved.mode == "int8":
            check_architecture(decoder)
            prepare(progress)
            model = Int8Decoder(rotated_config(decoder), max_model_len=max_model_len, threads=cpu_threads())
            weights = RotatedWeights(ReadAhead(checkpoint), decoder)
        else:
            model = build_model(decoder, operators=operators, mode=mode, device=device, max_model_len=max_model_len)
            weights = ReadAhead(checkpoint)
        try:
            if checkpoint.dummy:
                draw_weights(model, config.model.seed)
            else:
                load_weights(model, weights, progress)
        except BaseException:
            # It may have threads.
            model.close()
            raise
        if device.type != "cpu":
            blocks, max_model_len = sized(_free_bytes(device, config.cache.gpu_memory_utilization))
        runner = ModelRunner(
            model,
            sampler=Sampler(operators),
            kv=[model.new_kv(blocks, config.cache.block_size)],
            num_blocks=blocks,
            max_model_len=max_model_len,
            max_num_seqs=config.scheduler.max_num_seqs,
            steps_in_flight=config.steps_in_flight,
        )
    if resolved.mode == "int8":
        # The step has threads of its own, and torch's would spin beside them after each operator on logits.
        torch.set_num_threads(1)
    runner.warm_up()
    return runner


def _device(requested: str) -> torch.device:
    if requested == "cpu" or (requested == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("--device cuda, but torch finds no CUDA device.")
    return torch.device("cuda", torch.cuda.current_device())


def _capability(device: torch.device, decoder: DecoderConfig) -> DeviceCapability:
    if device.type == "cpu":
        refusal = int8_refusal(decoder)
        return DeviceCapability(int8_is_fast=refusal is None and int8_is_fast(), int8_refusal=refusal)
    return DeviceCapability(cuda=torch.cuda.get_device_capability(device))


def _free_bytes(device: torch.device, utilization: float) -> int:
    """What the GPU has left for the KV pool: the part that may be used, less what is used and a step's activations."""
    free, total = torch.cuda.mem_get_info(device)
    activations = total // 20
    return int(total * utilization) - (total - free) - activations
