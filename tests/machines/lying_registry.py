"""A registry that lies: it announces one digest of a layer and sends other content. Its images must be refused."""

import hashlib
import http.server
import json
import ssl
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class LyingRegistry:
    """Serves one image, whatever its name, over TLS with the certificate of another registry of the tests."""

    def __init__(self, certificate: Path, key: Path, *, stops_midway: bool = False) -> None:
        promised = b"the layer that was promised"
        config = json.dumps(
            {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"diff_ids": []}}
        )
        self._blobs = {
            _digest(config.encode()): config.encode(),
            _digest(promised): b"the layer that was sent!!!!",
        }
        self._stops_midway = stops_midway
        self._manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": {
                    "mediaType": "application/vnd.oci.image.config.v1+json",
                    "digest": _digest(config.encode()),
                    "size": len(config),
                },
                "layers": [
                    {
                        "mediaType": "application/vnd.oci.image.layer.v1.tar",
                        "digest": _digest(promised),
                        "size": len(promised),
                    }
                ],
            }
        ).encode()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        manifest, blobs, stops_midway = self._manifest, self._blobs, self._stops_midway

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if "/manifests/" in self.path:
                    self._answer(manifest, _MANIFEST)
                elif "/blobs/" in self.path:
                    self._answer(blobs.get(self.path.rpartition("/")[2], b""), "application/octet-stream")
                else:
                    self._answer(b"{}", "application/json")

            do_HEAD = do_GET  # noqa: N815 the name is the server's

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

            def _answer(self, content: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Docker-Content-Digest", _digest(content))
                self.end_headers()
                if self.command == "GET":
                    is_layer = kind == "application/octet-stream" and not content.startswith(b"{")
                    self.wfile.write(content[:5] if is_layer and stops_midway else content)

        return Handler


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
