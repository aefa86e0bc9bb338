"""Runs skopeo, which talks to registries: which image a reference names now, and its content as an OCI layout.

Credentials reach it through a descriptor of a file in memory, never through arguments, variables or the disk. A pull
that makes no progress for a while is ended, and so is one that would fill the disk.
"""

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator

from evenkeel.errors import EvenkeelError
from evenkeel.host.protection import small_command
from evenkeel.runtime.environment import PATH
from evenkeel.runtime.images.credentials import Credential, auth_file
from evenkeel.runtime.images.references import ImageReference

PROGRAM = "skopeo"
LAYOUT = "layout"  # in the staging directory: the OCI layout
BLOBS = "blobs"  # in the staging directory: the blobs that the layout names, by digest
_CHILD = "evenkeel.runtime.process.pull_child"
_POLICIES = ("/etc/containers/policy.json",)
# Variables of the agent that skopeo needs too: proxies, and the certificate authorities of registries.
_KEPT_VARIABLES = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "CONTAINERS_REGISTRIES_CONF",
)  # fmt: skip
_LOOK_SECONDS = 0.5
_NO_PROGRESS_SECONDS = 60.0  # as kubelet's former --image-pull-progress-deadline
_MOST_MANIFEST_BYTES = 4 << 20
_MOST_ERROR_BYTES = 64 << 10
_LEAVE_FREE_BYTES = 256 << 20
_PREAMBLE = re.compile(r'^(?:Error parsing image name "[^"]*": |initializing source docker://\S+ )')
_SAID = re.compile(r'level=(?:fatal|error) msg=("(?:[^"\\]|\\.)*"|\S+)')


class PullFailed(EvenkeelError):
    """The registry did not give the image. `is_denied`: it asks for other credentials."""

    def __init__(self, message: str, *, hint: str = "", is_denied: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_denied = is_denied


class Skopeo:
    """`no_progress_seconds` is how long a pull may receive nothing."""

    def __init__(self, *, no_progress_seconds: float = _NO_PROGRESS_SECONDS) -> None:
        self._no_progress_seconds = no_progress_seconds

    async def digest(self, image: ImageReference, credential: Credential | None, staging: str) -> str:
        """Returns the digest of the image that the reference names now, from the registry. Raises PullFailed."""
        if image.digest:
            return image.digest
        manifest = await self._run(["inspect", "--raw", _source(image)], image, credential, staging)
        return f"sha256:{hashlib.sha256(manifest).hexdigest()}"

    async def copy(
        self,
        image: ImageReference,
        credential: Credential | None,
        staging: str,
        progress: Callable[[int], None],
    ) -> None:
        """Copies the image of this machine's architecture into the staging directory. Blobs that are there already are
        not fetched. Raises PullFailed."""
        arguments = [
            "copy",
            "--quiet",
            "--dest-oci-accept-uncompressed-layers",
            "--dest-shared-blob-dir",
            BLOBS,
        ]
        await self._run(
            [*arguments, _source(image), f"oci:{LAYOUT}:image"], image, credential, staging, progress
        )

    async def _run(
        self,
        arguments: list[str],
        image: ImageReference,
        credential: Credential | None,
        staging: str,
        progress: Callable[[int], None] = lambda _: None,
    ) -> bytes:
        program = shutil.which(PROGRAM, path=PATH)
        if program is None:
            raise PullFailed(f"image {image} comes from a registry: {missing()}")
        policy = [] if any(map(os.path.exists, _POLICIES)) else ["--insecure-policy"]
        with _in_memory(auth_file(image, credential)) as authorized:
            command, *rest = arguments
            given = [program, *policy, "--tmpdir", ".", command, "--authfile", f"/proc/self/fd/{authorized}"]
            process = await asyncio.create_subprocess_exec(
                *small_command(_CHILD, str(os.getpid()), staging, *given, *rest),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(authorized,),
                env=_variables(),
                cwd="/",
                start_new_session=True,
            )
        assert process.stdout is not None
        assert process.stderr is not None
        reading = asyncio.gather(
            _bounded(process.stdout, _MOST_MANIFEST_BYTES), _bounded(process.stderr, _MOST_ERROR_BYTES)
        )
        try:
            await self._watch(reading, image, staging, progress)
            said, errors = await reading
            code = await process.wait()
        finally:
            reading.cancel()
            await _ended(process)
        if code:
            raise _failure(image, errors.decode(errors="replace"))
        return said

    async def _watch(
        self,
        reading: "asyncio.Future[tuple[bytes, bytes]]",
        image: ImageReference,
        staging: str,
        progress: Callable[[int], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        before, since = -1, loop.time()
        while not (await asyncio.wait([reading], timeout=_LOOK_SECONDS))[0]:
            received = received_bytes(staging)
            if received != before:
                before, since = received, loop.time()
                progress(received)
            elif loop.time() - since >= self._no_progress_seconds:
                raise PullFailed(
                    f"{image.domain} has sent nothing for {self._no_progress_seconds:g} s",
                    hint="it is tried again",
                )
            disk = os.statvfs(staging)
            if disk.f_bavail * disk.f_frsize < _LEAVE_FREE_BYTES:
                raise PullFailed(
                    "the disk is nearly full",
                    hint=f"make room on the filesystem of {os.path.dirname(staging)}",
                )


def missing() -> str:
    """Returns the sentence for a machine without skopeo; empty if it is there."""
    if shutil.which(PROGRAM, path=PATH) is not None:
        return ""
    return "skopeo, which pulls images, is not installed (apt install skopeo, or dnf install skopeo)"


def received_bytes(staging: str) -> int:
    """Counts the bytes of files that were made during this pull: links to blobs of earlier pulls do not count."""
    total = 0
    for directory, _, names in os.walk(staging):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(directory, name))
                if status.st_nlink == 1:
                    total += status.st_size
    return total


def _source(image: ImageReference) -> str:
    # skopeo takes a tag or a digest, not both. The digest decides.
    return f"docker://{image.at(image.digest) if image.digest else image}"


def _variables() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return {"PATH": PATH, "HOME": "/tmp", "TMPDIR": ".", "GOMEMLIMIT": "512MiB", **kept}  # noqa: S108 its own mount


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("auth", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield descriptor
    finally:
        os.close(descriptor)


async def _bounded(stream: asyncio.StreamReader, most: int) -> bytes:
    """Reads to the end, and keeps the beginning."""
    kept = b""
    while part := await stream.read(1 << 16):
        kept += part[: most - len(kept)]
    return kept


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Kills it with its session, if it runs, and waits for its end."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _failure(image: ImageReference, errors: str) -> PullFailed:
    """Turns skopeo's error output into a sentence."""
    found = _SAID.findall(errors)
    said = (
        found[-1] if found else errors.strip().splitlines()[-1] if errors.strip() else "it does not say why"
    )
    if said.startswith('"'):
        said = said[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    said = _PREAMBLE.sub("", said)
    said = " ".join(said.split())[:600]
    lower = said.lower()
    hint = ""
    is_denied = any(
        word in lower for word in ("unauthorized", "authentication required", "denied", "403", "401")
    )
    if is_denied:
        hint = "name a Secret with the right password in imagePullSecrets, or the image does not exist"
    elif "manifest unknown" in lower or "name unknown" in lower or "not found" in lower:
        hint = "look for the name and the tag"
    elif "x509" in lower or "certificate" in lower:
        hint = f"put the authority's certificate into /etc/containers/certs.d/{image.domain}/ca.crt"
    elif "server gave http response to https client" in lower:
        hint = "the registry has no TLS: allow it in /etc/containers/registries.conf (insecure = true)"
    return PullFailed(said or "it does not say why", hint=hint, is_denied=is_denied)
