"""Certificates are verified: nobody vouches for a server's authority until SSL_CERT_FILE names it."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pinfold import Runtime
from pinfold.errors import ServerUnreachableError

trustme = pytest.importorskip("trustme")
KEY = "sk-very-secret-4711"


class Answers(BaseHTTPRequestHandler):
    """One model, one answer."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send({"object": "list", "data": [{"id": "m", "object": "model"}]})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        assert self.headers["authorization"] == f"Bearer {KEY}"
        self._send({"choices": [{"message": {"role": "assistant", "content": "Good day"}, "finish_reason": "stop"}]})

    def _send(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://localhost:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


def test_an_unknown_authority_is_refused_once_and_by_name(address: str) -> None:
    with pytest.raises(ServerUnreachableError, match="certificate") as caught:
        Runtime(address, api_key=KEY, store="off")
    assert KEY not in str(caught.value)


def test_an_authority_of_ones_own(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    with Runtime(address, api_key=KEY, store="off") as rt:
        assert rt.chat([{"role": "user", "content": "Hi"}]).text == "Good day"
