from __future__ import annotations

import pytest
import torch

from streamgen.config import EngineConfig
from streamgen.engine import loading
from streamgen.engine.device_errors import described, device_is_lost
from streamgen.errors import ModelLoadError

LOST = [
    torch.AcceleratorError("CUDA error: device-side assert triggered\nCUDA kernel errors might", 710),
    torch.AcceleratorError("CUDA error: unspecified launch failure", 719),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("CUDA driver error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, ...)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("Triton Error [CUDA]: misaligned address"),
    RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:1234, unhandled cuda error"),
]
SURVIVED = [
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    torch.AcceleratorError("CUDA error: out of memory", 2),
    torch.AcceleratorError("CUDA error: invalid configuration argument", 9),
    torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture\nSearch for", 901),
    torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing\nSearch for", 900),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: no kernel image is available for execution on the device"),
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
    ValueError("CUDA error: a word in somebody's own message"),
    KeyError("CUDA"),
]


@pytest.mark.parametrize("error", LOST, ids=str)
def test_a_lost_device_is_known_by_its_error(error: Exception) -> None:
    assert device_is_lost(error)
    assert "\n" not in described(error)


@pytest.mark.parametrize("error", SURVIVED, ids=str)
def test_other_errors_fail_a_step_only(error: Exception) -> None:
    assert not device_is_lost(error)


def test_what_an_error_was_raised_from_counts_too() -> None:
    wrapped, meanwhile, circular = ValueError("a layer failed"), ValueError("cleaning up failed"), ValueError("a ring")
    wrapped.__cause__ = LOST[0]
    meanwhile.__context__ = LOST[0]
    circular.__cause__ = circular
    assert device_is_lost(wrapped)
    assert device_is_lost(meanwhile)
    assert not device_is_lost(circular)


def test_an_error_without_a_message_has_a_name() -> None:
    assert described(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        MemoryError(),
    ],
)
async def test_a_model_that_does_not_fit_memory_is_a_setup_error(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> None:
        raise error

    monkeypatch.setattr(loading, "_build", build)
    with pytest.raises(ModelLoadError, match="do not fit the memory"):
        await loading.load_engine(EngineConfig())


async def test_other_errors_in_loading_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(loading, "_build", build)
    with pytest.raises(RuntimeError, match="a mistake"):
        await loading.load_engine(EngineConfig())
