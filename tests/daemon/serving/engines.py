"""What stands where an engine should: a balancer, a server of another kind, silence."""

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import cycle
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.daemon.listening import at_a_port


@contextmanager
def balanced(urls: Sequence[str]) -> Iterator[str]:
    """One address over several servers: each connection goes to the next of them."""
    places = cycle([(urlsplit(url).hostname, urlsplit(url).port) for url in urls])
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                taken, _ = listener.accept()
            except OSError:
                return
            host, port = next(places)
            assert host is not None
            assert port is not None
            _splice(taken, socket.create_connection((host, port)))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _splice(one: socket.socket, other: socket.socket) -> None:
    threads = [threading.Thread(target=_copy, args=pair) for pair in ((one, other), (other, one))]
    for thread in threads:
        thread.start()
    threading.Thread(target=_end, args=(threads, one, other)).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


def _end(threads: Sequence[threading.Thread], *sockets: socket.socket) -> None:
    for thread in threads:
        thread.join()
    for one in sockets:
        one.close()


@contextmanager
def saying(answers: Mapping[str, Any]) -> Iterator[str]:
    """A server that answers paths with these texts, documents and responses, and 404 to everything
    else."""

    async def said(request: Request) -> Response:
        found = answers.get(request.url.path)
        if isinstance(found, Response):
            return found
        if isinstance(found, str):
            return PlainTextResponse(found)
        return JSONResponse(found, 404 if found is None else 200)

    app = Starlette(routes=[Route("/{path:path}", said, methods=["GET", "POST"])])
    with at_a_port(app) as url:
        yield url


@contextmanager
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def models(owner: str, *names: str) -> dict[str, Any]:
    """A list of models, the first of them the base."""
    cards = [
        {"id": name, "owned_by": owner, "root": f"/{name}", "parent": names[0] if n else None}
        for n, name in enumerate(names)
    ]
    return {"object": "list", "data": cards}
