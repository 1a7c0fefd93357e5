"""An application behind HTTP, in a thread of the tests' own process."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def at_a_port(app: Any, lifespan: Any = "auto") -> Iterator[str]:
    """Its URL, while it listens."""
    http = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan=lifespan))
    thread = threading.Thread(target=lambda: asyncio.run(http.serve()))
    thread.start()
    try:
        while not http.started:
            time.sleep(0.005)
        yield f"http://127.0.0.1:{http.servers[0].sockets[0].getsockname()[1]}"
    finally:
        http.should_exit = True
        thread.join()
