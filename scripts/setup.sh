#!/bin/sh
# Make a virtual environment with streamgen and its tools in it:  scripts/setup.sh [FOLDER]
#
# PYTHON           the interpreter to use, instead of the first one found that is new enough
# TORCH            cpu or cuda, instead of looking for an NVIDIA GPU
# TORCH_CPU_INDEX  package index with CPU builds of torch, asked if the configured index has none
set -eu

cd "$(dirname "$0")/.."
venv=${1:-.venv}
index=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
torch=$(sed -n 's/^torch==//p' constraints.txt)

say() { printf '%s\n' "$*" >&2; }
fail() { say "streamgen: $*"; exit 1; }

# A shim may be in the PATH for a Python that is not there, so each one is asked.
new_enough() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
        if new_enough "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer, with its venv module, is needed${PYTHON:+, and $PYTHON is not that}.
Install it (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python), or name it: make PYTHON=..."
}

has_gpu() {
    case "${TORCH:-}" in
        cpu) return 1 ;;
        cuda) return 0 ;;
    esac
    command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU
}

# Only for Linux on x86-64 does the plain torch wheel bring gigabytes of CUDA along.
install_torch() {
    if has_gpu || [ "$(uname -s)" != Linux ] || [ "$(uname -m)" != x86_64 ]; then
        return
    fi
    if "$python" -c 'import sys, torch; sys.exit("+cpu" not in torch.__version__)' 2>/dev/null; then
        return
    fi
    say "No NVIDIA GPU: installing the CPU build of torch $torch."
    # No dependency is resolved here: a lone wheel from the one index, everything else from the configured one.
    pip install --no-deps "torch==$torch+cpu" 2>/dev/null && return
    pip install --no-deps "torch==$torch+cpu" --index-url "$index" && return
    fail "No CPU build of torch $torch for this Python was found, neither in the configured package index nor in
$index. Set TORCH_CPU_INDEX to an index that has it, PYTHON to another Python,
or TORCH=cuda to take the build with CUDA (about 3 GB)."
}

pip() { "$python" -m pip --disable-pip-version-check -qq "$@"; }

if [ ! -x "$venv/bin/python" ] || ! new_enough "$venv/bin/python"; then
    base=$(find_python)
    say "Creating $venv with $("$base" --version)."
    "$base" -m venv --clear "$venv"
fi
python=$venv/bin/python

install_torch
say "Installing streamgen and its tools, which takes a minute or two."
pip install --constraint constraints.txt --editable '.[dev]'
if ! has_gpu; then
    say "Compiling the CPU's kernels, once."
    "$python" -m streamgen_kernels.int8 || say "Computing in float32 instead."
fi
