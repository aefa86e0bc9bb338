"""The node's credentials for connections to the API server: a client certificate, a token, or the output of a plugin.

Files are read again when they have changed: certificates and bound tokens are rotated. A plugin runs again when its
credentials expire, or when the API server has refused them.
"""

import asyncio
import json
import os
import ssl
import time
from collections.abc import Callable
from datetime import datetime

from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.files import file_stamps, read_text
from evenkeel.kube.kubeconfig import ExecPlugin, Kubeconfig, read_pair, tls_context
from evenkeel.named_tuples import NamedTuple

_TOKEN_SECONDS = 60.0  # a token file is read again after that time
_PLUGIN_SECONDS = 60.0
_EARLY_SECONDS = 30.0  # a plugin's credentials are renewed before they expire
_LARGEST_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_EXEC_GROUP = "client.authentication.k8s.io"


class Identity(NamedTuple):
    """`context` has the client certificate, if there is one. `token` is empty or for the Authorization header."""

    context: ssl.SSLContext
    token: str = ""

    def __repr__(self) -> str:
        return "<identity>"


class _PluginAnswer(NamedTuple):
    token: str = ""
    certificate_pem: str = ""
    key_pem: str = ""
    expires_at: float = float("inf")


class Credentials:
    """For one event loop."""

    def __init__(self, config: Kubeconfig, clock: Callable[[], float] = time.time) -> None:
        """Raises EvenkeelError if a certificate cannot be used."""
        self.config = config
        self._clock = clock
        self._pair = self._read_pair()
        self._context = tls_context(config, *self._pair)
        self._stamp: tuple[tuple[int, int], ...] = ()
        self._stamp = self._stamps()
        self._token = config.token
        self._token_read_at = -_TOKEN_SECONDS
        self._answer: _PluginAnswer | None = None
        self._asking = asyncio.Lock()

    @property
    def pair(self) -> tuple[str, str]:
        """The client certificate and its key, in PEM. The key is empty if it is in the text of the certificate."""
        return self._pair

    async def identity(self) -> Identity:
        """The present identity. Raises EvenkeelError."""
        if self.config.plugin is not None:
            return await self._from_plugin(self.config.plugin)
        if self._stamp != (stamp := self._stamps()):
            self._use(self._read_pair())
            self._stamp = stamp
        return Identity(self._context, self._current_token())

    def refused(self) -> None:
        """The API server has answered 401: the next identity is made anew."""
        self._token_read_at = -_TOKEN_SECONDS
        self._answer = None

    def _use(self, pair: tuple[str, str]) -> None:
        if pair != self._pair:
            self._context = tls_context(self.config, *pair)
            self._pair = pair

    def _read_pair(self) -> tuple[str, str]:
        certificate, key = self.config.certificate_files
        if not certificate:
            return self.config.certificate_pem, self.config.key_pem
        return read_pair(certificate, key)

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        found = file_stamps(filter(None, self.config.certificate_files))
        return self._stamp if found is None else found  # if they are being replaced, the former ones are used

    def _current_token(self) -> str:
        now = time.monotonic()
        if self.config.token_file and now - self._token_read_at >= _TOKEN_SECONDS:
            self._token = read_text(self.config.token_file).strip()
            self._token_read_at = now
        return self._token

    async def _from_plugin(self, plugin: ExecPlugin) -> Identity:
        async with self._asking:
            if self._answer is None or self._clock() >= self._answer.expires_at - _EARLY_SECONDS:
                self._answer = await self._ask(plugin)
                self._use((self._answer.certificate_pem, self._answer.key_pem))
            return Identity(self._context, self._answer.token)

    async def _ask(self, plugin: ExecPlugin) -> _PluginAnswer:
        what = f"--kubeconfig {self.config.path}: exec {plugin.command}"
        spec: dict[str, object] = {"interactive": False}
        if plugin.gives_cluster:
            spec["cluster"] = {"server": self.config.server, "tls-server-name": self.config.server_name}
        info = {"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec}
        environment = {**os.environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": json.dumps(info)}
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.args,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise EvenkeelError(f"{what}: {reason(error)}") from None
        try:
            async with asyncio.timeout(_PLUGIN_SECONDS):
                assert process.stdout is not None
                printed = await _all_of(process.stdout)
                code = await process.wait()
        except TimeoutError:
            raise EvenkeelError(f"{what}: it did not end within {_PLUGIN_SECONDS:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code != 0:
            raise EvenkeelError(f"{what}: it ended with code {code}")
        return _read_answer(printed, what)


async def _all_of(stream: asyncio.StreamReader) -> bytes:
    """Reads the output to its end. Of too long an output only the beginning is returned, which is no valid JSON."""
    printed = bytearray()
    while part := await stream.read(_READ_BYTES):
        printed += part[: _LARGEST_BYTES - len(printed)]
    return bytes(printed)


def _read_answer(printed: bytes, what: str) -> _PluginAnswer:
    """Reads the plugin's answer. No error message contains a part of it."""
    try:
        value = json.loads(printed)
        group, status = str(value["apiVersion"]).partition("/")[0], value["status"]
        expires = status.get("expirationTimestamp")
        answer = _PluginAnswer(
            str(status.get("token") or ""),
            str(status.get("clientCertificateData") or ""),
            str(status.get("clientKeyData") or ""),
            datetime.fromisoformat(expires).timestamp() if expires else float("inf"),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EvenkeelError(f"{what}: what it printed is no ExecCredential") from None
    if group != _EXEC_GROUP or not (answer.token or (answer.certificate_pem and answer.key_pem)):
        raise EvenkeelError(f"{what}: it printed neither a token nor a certificate with its key")
    return answer
