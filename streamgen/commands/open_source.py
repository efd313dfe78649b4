"""Choose between a running server and a model in this process."""

from __future__ import annotations

from streamgen.commands.source import LocalSource, ServerSource, Source
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError


async def open_source(url: str | None, api_key: str, engine: EngineConfig) -> Source:
    """The server at `url` if there is one, else the model that `engine` describes, loaded with a progress bar.

    Raises SetupError.
    """
    if url is not None:
        if engine != EngineConfig():
            raise ConfigError("With --url the server chose the model already: no flag of the engine has a meaning.")
        return ServerSource(url, api_key)
    from streamgen.observability.logging import configure_logging
    from streamgen.server.loading import load
    from streamgen.server.progress import LoadProgress

    configure_logging("warning")
    with LoadProgress() as progress:
        loaded = await load(engine, progress=progress)
    if loaded.serving.tokenizer is None:
        await loaded.engine.shutdown()
        raise ConfigError(
            f"The model {loaded.serving.names[0]} has no tokenizer, so that it can neither read nor write text. "
            "--tokenizer names a folder that has one."
        )
    return LocalSource(loaded)
