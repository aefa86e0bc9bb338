"""Whether the container runtime is there: hello, a look at what it has every few seconds, and both again after it was
away, with back-off. It goes away when a call is not answered in time, when the connection breaks, or when it says so
itself."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup.tree import Naming
from evenkeel.errors import EvenkeelError
from evenkeel.host.checks import Check, State
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri import endpoint
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.interface import Readiness

_API = "v1"
_READY = "RuntimeReady"
_CONTAINERD = "containerd"


class Said(NamedTuple):
    """`naming` is None where the runtime does not tell. `restricts_scores`: it gives no OOM score below its own."""

    name: str
    version: str
    api_version: str
    naming: Naming | None
    sandbox_image: str = ""
    restricts_scores: bool = False
    not_ready: str = ""  # why it runs no containers just now

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


async def hear(connection: Connection) -> Said:
    """Raises RuntimeAway, or EvenkeelError if it speaks another language."""
    try:
        version = await connection.ask(pb.VersionRequest(), pb.VersionResponse)
        status = await connection.ask(pb.StatusRequest(verbose=True), pb.StatusResponse)
    except RuntimeAway:
        raise
    except CallFailed as error:
        if error.code != "UNIMPLEMENTED":  # one that is just starting refuses everything
            raise RuntimeAway(error.message, error.code) from None
        raise EvenkeelError(
            f"what listens at {connection.path} does not speak CRI {_API}: {error.message}",
            hint="containerd does from 1.6 on, with its CRI plugin not among disabled_plugins; CRI-O from 1.20 on",
        ) from None
    config = _config(status)
    return Said(
        version.runtime_name,
        version.runtime_version,
        version.runtime_api_version,
        await _told_naming(connection) or configured_naming(config),
        _text(config.get("sandboxImage")),
        config.get("restrictOOMScoreAdj") is True,
        _not_ready(status),
    )


def configured_naming(config: dict[str, Any]) -> Naming | None:
    """Of containerd's configuration, as its status shows it: the default runtime's option, or the older one for all."""
    containerd = config.get("containerd")
    if not isinstance(containerd, dict):
        return None
    runtimes = containerd.get("runtimes")
    default = runtimes.get(containerd.get("defaultRuntimeName")) if isinstance(runtimes, dict) else None
    options = default.get("options") if isinstance(default, dict) else None
    is_systemd = config.get("systemdCgroup") is True or (
        isinstance(options, dict) and options.get("SystemdCgroup") is True
    )
    return Naming.SYSTEMD if is_systemd else Naming.CGROUPFS


def disagreement(said: Said, naming: Naming) -> EvenkeelError | None:
    """Two cgroup drivers on one tree: containers would be elsewhere than their pods, and limited by neither."""
    if said.naming is None or said.naming == naming:
        return None
    mend = f"--cgroup-driver {said.naming}"
    if said.name == _CONTAINERD:
        wanted = "true" if naming == Naming.SYSTEMD else "false"
        mend += f", or SystemdCgroup = {wanted} among the runtime's options in /etc/containerd/config.toml"
    return EvenkeelError(
        f"{said.title} makes cgroups by {said.naming}, and cgroupDriver here is {naming}", hint=mend
    )


def _not_ready(status: pb.StatusResponse) -> str:
    for condition in status.status.conditions:
        if condition.type == _READY and not condition.status:
            return " ".join(f"{condition.reason}: {condition.message}".split()).strip(": ")
    return ""


async def _told_naming(connection: Connection) -> Naming | None:
    try:
        answer = await connection.ask(pb.RuntimeConfigRequest(), pb.RuntimeConfigResponse)
    except RuntimeAway:
        raise
    except CallFailed:  # an older one
        return None
    if not answer.HasField("linux"):
        return None
    return Naming.SYSTEMD if answer.linux.cgroup_driver == pb.CgroupDriver.SYSTEMD else Naming.CGROUPFS


def _config(status: pb.StatusResponse) -> dict[str, Any]:
    try:
        config = json.loads(status.info.get("config", "{}"))
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


LOOK_SECONDS = 5.0  # between two listings, when nothing tells
FIRST_HELLO_SECONDS = 15.0  # a runtime that is just being started
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.2, 10.0


class RuntimeLink:
    """`look` looks at what the runtime has; `on_change` is told, in a sentence, that it went away or is back."""

    def __init__(
        self,
        endpoint: str,
        naming: Naming,
        look: Callable[[], Awaitable[None]],
        on_change: Callable[[str], None],
    ) -> None:
        self.connection = Connection(endpoint, self.nudge)
        self.said: Said | None = None
        self.images_path = "/"
        self._endpoint = endpoint
        self._naming = naming
        self._look = look
        self._on_change = on_change
        self._nudged = asyncio.Event()
        self._ready = asyncio.Event()
        self._why_away = "it has not been spoken to yet"

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    @property
    def readiness(self) -> Readiness:
        title = f"{self.said.title} at {self._endpoint}" if self.said is not None else self._endpoint
        if self.is_ready:
            return Readiness(True, f"pods are containers of {title}")
        return Readiness(False, f"{title} is away: {self._why_away}")

    @property
    def why_away(self) -> str:
        return self._why_away

    async def available(self) -> None:
        """Returns when it is there."""
        if not self.is_ready:
            self.nudge()
            await self._ready.wait()

    def nudge(self) -> None:
        """There may be something new to see."""
        self._nudged.set()

    async def first_hello(self, *, may_be_away: Callable[[], bool]) -> None:
        """Raises EvenkeelError if it does not answer, unless that may be so."""
        deadline = time.monotonic() + FIRST_HELLO_SECONDS
        wait = _FIRST_RETRY_SECONDS
        while True:
            try:
                await self._greet()
                await self._look()
            except CallFailed as error:
                if time.monotonic() < deadline:
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, 1.0)
                    continue
                if not may_be_away():
                    raise EvenkeelError(
                        f"no container runtime answers: {error.message}",
                        hint="start it (systemctl start containerd), or name its socket with --runtime-endpoint",
                    ) from None
                self._why_away = str(error)
            else:
                self._ready.set()
            return

    async def run(self) -> None:
        """Until cancelled."""
        wait = _FIRST_RETRY_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS if self.is_ready else wait):
                    await self._nudged.wait()
            self._nudged.clear()
            try:
                if not self.is_ready:
                    await self._greet()
                await self._look()
            except EvenkeelError as error:
                self._went_away(error)
                await asyncio.sleep(_FIRST_RETRY_SECONDS)
                self._nudged.clear()  # our own failure tells nothing new
                wait = min(2 * wait, _LONGEST_RETRY_SECONDS)
            else:
                wait = _FIRST_RETRY_SECONDS
                self._came_back()

    async def _greet(self) -> None:
        """Another one may be there by now: an upgraded one, or one with another cgroup driver."""
        said = await hear(self.connection)
        wrong = disagreement(said, self._naming)
        if wrong is not None:
            raise wrong
        if said.not_ready:
            raise RuntimeAway(f"{said.title} is not ready: {said.not_ready}", "UNAVAILABLE")
        self.said = said
        info = await self.connection.ask(pb.ImageFsInfoRequest(), pb.ImageFsInfoResponse)
        self.images_path = next((one.fs_id.mountpoint for one in info.image_filesystems), "/")

    def _went_away(self, error: EvenkeelError) -> None:
        self._why_away = str(error)
        if self.is_ready:
            self._ready.clear()
            self._on_change(f"{error}; containers run on, and none is started")

    def _came_back(self) -> None:
        if not self.is_ready:
            self._ready.set()
            self._on_change(f"{self.said.title if self.said is not None else self._endpoint} answers again")


_NAME = "container runtime"
_LEAST_SCORE = -999


def runtime_checks(config: KubeletConfiguration) -> tuple[Check, ...]:
    try:
        at = endpoint.chosen(config.container_runtime_endpoint)
        if not at:
            return (_none(),)
        endpoint.require_libraries()
        from evenkeel.runtime.cri.cri_connection import Connection

        async def asked() -> Said:
            connection = Connection(at)
            try:
                return await hear(connection)
            finally:
                await connection.close()

        said = asyncio.run(asked())
    except EvenkeelError as error:
        return (_broken(error),)
    naming = Naming.SYSTEMD if config.cgroup_driver == "systemd" else Naming.CGROUPFS
    wrong = disagreement(said, naming)
    if wrong is not None:
        return (_broken(wrong),)
    if said.not_ready:
        return (_broken(EvenkeelError(f"{said.title} is not ready: {said.not_ready}")),)
    driver = f", {said.naming}" if said.naming is not None else ""
    seen = f"{said.title} at {at}: CRI {said.api_version} with unified{driver}"
    if said.restricts_scores:
        return (
            Check(
                _NAME,
                State.BROKEN,
                f"{seen}; restrict_oom_score_adj",
                "no container gets an OOM score below the runtime's own: the kernel may choose a Guaranteed one",
                ("A12",),
                (
                    "restrict_oom_score_adj = false in /etc/containerd/config.toml",
                    f"run the container runtime with oom_score_adj {_LEAST_SCORE}",
                ),
            ),
        )
    return (Check(_NAME, State.OK, seen),)


def _none() -> Check:
    there = endpoint.unused()
    offer = f"; --runtime-endpoint {there} would use the one that is there" if there else ""
    return Check(_NAME, State.OK, f"none asked for: pods are processes of this machine{offer}")


def _broken(error: EvenkeelError) -> Check:
    return Check(
        _NAME,
        State.BROKEN,
        error.message,
        "no container can be started",
        ("A24",),
        (error.hint,) if error.hint else (),
        stops_agent=True,
    )
