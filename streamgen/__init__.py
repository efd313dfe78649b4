"""streamgen: an LLM inference server made for streaming."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("streamgen-server")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
