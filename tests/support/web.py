"""A web server on this machine that answers requests for ranges, or in other ways that servers have."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class Web:
    """The files of a folder at `url`. What it was asked for is in `asked`, as paths with their ranges.

    The attributes say how it behaves: without `ranges` it sends whole files, `cut` is after how many bytes it
    closes the first connections, `busy` how often it says so, `redirect` where it sends everyone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranges = True
        self.etag = ""
        self.cuts: list[int] = []
        self.busy = 0
        self.redirect = ""
        self.asked: list[tuple[str, str]] = []
        self.sent_bytes = 0
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                web._answer(self)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def serve(self) -> None:
        """Answer until `close`."""
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path, wanted = request.path.partition("?")[0], request.headers.get("Range", "")
        self.asked.append((request.path, wanted))
        file = self.folder / unquote(path).lstrip("/")
        if self.busy:
            self.busy -= 1
            self._say(request, 503)
        elif self.redirect:
            request.send_response(302)
            request.send_header("Location", self.redirect + path)
            request.send_header("Content-Length", "0")
            request.end_headers()
        elif not file.is_file():
            self._say(request, 404)
        else:
            self._send(request, file.read_bytes(), wanted)

    def _say(self, request: BaseHTTPRequestHandler, status: int) -> None:
        request.send_response(status)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def _send(self, request: BaseHTTPRequestHandler, content: bytes, wanted: str) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted) if self.ranges else None
        part = content
        if found is not None:
            start, stop = int(found[1]), int(found[2] or len(content) - 1)
            part = content[start : stop + 1]
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(content)}")
        else:
            request.send_response(200)
        if self.etag:
            request.send_header("ETag", self.etag)
        request.send_header("Content-Length", str(len(part)))
        request.end_headers()
        if self.cuts:
            part = part[: self.cuts.pop(0)]
            request.close_connection = True
        self.sent_bytes += len(part)
        request.wfile.write(part)


@contextmanager
def web(folder: Path) -> Iterator[Web]:
    """Such a server, for one block."""
    server = Web(folder)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


@contextmanager
def answering(
    answer: Callable[[socket.socket, bytes], None], context: ssl.SSLContext | None = None
) -> Iterator[str]:
    """A server at the URL that this yields, which leaves each request to `answer`, with its connection.

    What `answer` sends need not be HTTP. The connection is closed after it, or once the other side has gone.
    With a `context` it speaks TLS.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(accepted: socket.socket) -> None:
        with (
            suppress(OSError),
            accepted if context is None else context.wrap_socket(accepted, server_side=True) as connection,
        ):
            request = b""
            while b"\r\n\r\n" not in request:
                if not (received := connection.recv(4096)):
                    return
                request += received
            answer(connection, request)

    def accept() -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
