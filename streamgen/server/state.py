"""What the routes share: the engine, the model, the configuration. One per app; nothing of it is global."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Protocol

from streamgen.config import ServerConfig
from streamgen.engine.client import EngineClient
from streamgen.errors import DrainingError, EngineDeadError, NotReadyError
from streamgen.server.auth import KeyRing, OriginPolicy, is_loopback
from streamgen.server.body import Bodies
from streamgen.server.exchange import HttpMetrics
from streamgen.server.held_bytes import HeldBytes
from streamgen.server.kept_streams import KeptStreams
from streamgen.server.serving import ServingModel
from streamgen.server.workers import Workers


class ServerMetrics(HttpMetrics, Protocol):
    def render(self) -> tuple[bytes, str]:
        """The exposition and its content type."""


class ServerState:
    """Owned by the event loop. Whoever starts the server calls `attach` once the model is loaded, or `fail`."""

    def __init__(
        self,
        engine: EngineClient | None,
        serving: ServingModel | None,
        config: ServerConfig,
        *,
        metrics: ServerMetrics | None = None,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self.engine = engine
        self.serving = serving
        self.config = config
        self.metrics = metrics
        self.clock = clock
        self.new_id = new_id
        self.keys = KeyRing(config.api_key)
        self.origins = OriginPolicy(config.allowed_origins, loopback=is_loopback(config.host))
        self.workers = Workers()
        self.held = HeldBytes()
        self.bodies = Bodies(limit=config.max_body_bytes, held=self.held)
        self.streams = KeptStreams()
        self.draining = False
        """Set at shutdown: new work is refused, what runs goes on."""
        self.failure: str | None = None

    def attach(self, engine: EngineClient, serving: ServingModel) -> None:
        """The model is loaded."""
        self.engine = engine
        self.serving = serving

    def fail(self, message: str) -> None:
        """The model cannot be loaded, or the engine cannot go on."""
        self.failure = message

    def check_alive(self) -> None:
        """Raises EngineDeadError."""
        if self.failure is not None:
            raise EngineDeadError(self.failure)
        if self.engine is not None and not self.engine.healthy:
            raise EngineDeadError("The engine does not step any more.")

    def backend(self) -> tuple[EngineClient, ServingModel]:
        """The engine, if it takes requests. Raises EngineDeadError, DrainingError, NotReadyError."""
        self.check_alive()
        if self.draining:
            raise DrainingError("The server is shutting down.")
        if self.engine is None or self.serving is None or not self.engine.ready:
            raise NotReadyError("The model is still being loaded.")
        return self.engine, self.serving

    def model(self) -> ServingModel:
        """The model, whether or not it takes requests. Raises NotReadyError while it is not known yet."""
        if self.serving is None:
            self.check_alive()
            raise NotReadyError("The model is still being loaded.")
        return self.serving
