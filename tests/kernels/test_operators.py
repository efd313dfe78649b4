import subprocess
import sys

import pytest
import torch

from streamgen.types import GREEDY_TEMPERATURE
from streamgen_kernels import operators
from streamgen_kernels.operators import get_operators
from tests.kernels.support import DEVICE, poisoned_memory


def test_unknown_backend_is_refused_with_the_list():
    with pytest.raises(ValueError, match="triton, cpu, reference"):
        get_operators("cuda")


def test_each_table_counts_for_itself():
    first, second = get_operators("triton"), get_operators("triton")
    first.silu_mul(torch.ones((1, 4), device=DEVICE))
    assert first.counters == {"silu_mul": 1}
    assert not second.counters


def test_the_table_imports_no_backend():
    code = "import sys, streamgen_kernels.operators; print({'torch', 'triton'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_reference_imports_no_triton():
    code = "import sys, streamgen_kernels.operators as o; o.get_operators('reference'); print('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_kernels_and_requests_mean_the_same_by_greedy():
    assert operators.GREEDY_TEMPERATURE == GREEDY_TEMPERATURE


def test_memory_is_poisoned_where_tests_say_so():
    with poisoned_memory():
        assert torch.empty(100, device=DEVICE).isnan().all()
        assert (torch.empty(100, dtype=torch.int32, device=DEVICE) == 2**31 - 1).all()
