import pytest

from streamgen.errors import ConfigError
from streamgen.runtime.dtype import DeviceCapability, resolve_dtype

TURING = DeviceCapability(cuda=(7, 5))
HOPPER = DeviceCapability(cuda=(9, 0))
FAST_CPU = DeviceCapability(int8_is_fast=True)
PLAIN_CPU = DeviceCapability(int8_is_fast=False)
ODD_MODEL = DeviceCapability(int8_is_fast=True, int8_refusal="hidden_size (50) is not a multiple of 16")


def test_G9_bfloat16_on_an_old_gpu_falls_back_with_a_warning_or_is_refused():
    resolved = resolve_dtype("auto", TURING)
    assert resolved.mode == "float16"
    assert "7.5" in resolved.warning
    with pytest.raises(ConfigError, match=r"7\.5.*--dtype float16"):
        resolve_dtype("bfloat16", TURING)


@pytest.mark.parametrize("capability", [(6, 1), (7, 0), (7, 5)])
def test_every_gpu_before_ampere_gets_float16(capability):
    assert resolve_dtype("auto", DeviceCapability(cuda=capability)).mode == "float16"


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_every_gpu_since_ampere_gets_bfloat16_without_a_word(capability):
    resolved = resolve_dtype("auto", DeviceCapability(cuda=capability))
    assert (resolved.mode, resolved.warning) == ("bfloat16", None)


@pytest.mark.parametrize("requested", ["float16", "float32"])
@pytest.mark.parametrize("capability", [TURING, HOPPER, FAST_CPU, PLAIN_CPU])
def test_what_every_device_has_is_taken_as_asked(requested, capability):
    assert resolve_dtype(requested, capability).mode == requested


def test_a_cpu_chooses_int8_only_where_that_is_faster_and_possible():
    assert resolve_dtype("auto", FAST_CPU).mode == "int8"
    assert resolve_dtype("auto", PLAIN_CPU).mode == "float32"
    assert resolve_dtype("int8", PLAIN_CPU).mode == "int8"
    fallback = resolve_dtype("auto", ODD_MODEL)
    assert fallback.mode == "float32"
    assert "slower than int8: hidden_size (50)" in fallback.warning
    with pytest.raises(ConfigError, match=r"--dtype int8 cannot be served: hidden_size \(50\)"):
        resolve_dtype("int8", ODD_MODEL)


def test_int8_is_refused_on_a_gpu():
    with pytest.raises(ConfigError, match="CPU"):
        resolve_dtype("int8", HOPPER)
