"""The link to the container runtime: whether the runtime is available, and its kind and version.

The link asks the runtime for its version and lists its containers and sandboxes. Then it lists again every few
seconds. The runtime counts as away when a call is not answered in time, when the connection breaks, or when the
runtime reports it. Then the link asks and lists again, with back-off.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from evenkeel.cgroup.tree import Naming
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.interface import Readiness

_API = "v1"
_READY, _NETWORK_READY = "RuntimeReady", "NetworkReady"
_CONTAINERD = "containerd"
LIST_SECONDS = 5.0  # between two listings if there is no event
FIRST_CONNECT_SECONDS = 15.0  # the runtime may be just starting
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.2, 10.0


class RuntimeLink:
    """The link.

    `list_all` lists the containers and sandboxes. `on_change` gets a sentence when the runtime goes away or comes back.
    """

    def __init__(
        self,
        endpoint: str,
        naming: Naming,
        list_all: Callable[[], Awaitable[None]],
        on_change: Callable[[str], None],
    ) -> None:
        self.connection = Connection(endpoint, self.wake)
        self.info: RuntimeInfo | None = None
        self.images_path = "/"
        self._endpoint = endpoint
        self._naming = naming
        self._list = list_all
        self._on_change = on_change
        self._woken = asyncio.Event()
        self._ready = asyncio.Event()
        self._why_away = "it has not been spoken to yet"

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    @property
    def readiness(self) -> Readiness:
        title = f"{self.info.title} at {self._endpoint}" if self.info is not None else self._endpoint
        version = f"{self.info.name}://{self.info.version}" if self.info is not None else ""
        if self.is_ready:
            return Readiness(True, f"pods are containers of {title}", version)
        return Readiness(False, f"{title} is away: {self._why_away}", version)

    @property
    def why_away(self) -> str:
        return self._why_away

    @property
    def has_network(self) -> bool:
        return self.info is not None and not self.info.no_network

    async def available(self) -> None:
        """Returns when the runtime is available."""
        if not self.is_ready:
            self.wake()
            await self._ready.wait()

    def wake(self) -> None:
        """Causes a listing soon, because a container may have changed."""
        self._woken.set()

    async def connect(self, *, may_be_away: Callable[[], bool]) -> None:
        """Connects for the first time. Raises EvenkeelError if the runtime does not answer, unless it may be away."""
        deadline = time.monotonic() + FIRST_CONNECT_SECONDS
        wait = _FIRST_RETRY_SECONDS
        while True:
            try:
                await self._connect()
                await self._list()
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
        """Lists and reconnects until cancelled."""
        wait = _FIRST_RETRY_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LIST_SECONDS if self.is_ready else wait):
                    await self._woken.wait()
            self._woken.clear()
            try:
                if not self.is_ready:
                    await self._connect()
                await self._list()
            except EvenkeelError as error:
                self._went_away(error)
                await asyncio.sleep(_FIRST_RETRY_SECONDS)
                self._woken.clear()  # our own failed call has set it
                wait = min(2 * wait, _LONGEST_RETRY_SECONDS)
            else:
                wait = _FIRST_RETRY_SECONDS
                self._came_back()

    def no_user_namespace(self, handler: str) -> str:
        """Returns why the runtime gives a pod of this handler no user namespace; empty if it does."""
        if self.info is None:
            return f"the runtime is away, and cannot say whether it has one: {self._why_away}"
        if handler in self.info.with_user_namespaces:
            return ""
        return (
            f"{self.info.title} does not say that it has user namespaces{f' for {handler}' if handler else ''} "
            "(containerd 2.0 and CRI-O 1.30 do, with runc 1.2 or crun 1.9); leave it out and set runAsUser to a number "
            "above 0"
        )

    async def no_network(self) -> str:
        """Asks the runtime why it gives pods no network; empty if it does. Raises RuntimeAway."""
        status = await self.connection.ask(pb.StatusRequest(), pb.StatusResponse)
        return _unready(status, _NETWORK_READY)

    async def _connect(self) -> None:
        """Reads the runtime's version at each connection: it may be upgraded, or have another cgroup driver now."""
        info = await runtime_info(self.connection)
        wrong = disagreement(info, self._naming)
        if wrong is not None:
            raise wrong
        if info.not_ready:
            raise RuntimeAway(f"{info.title} is not ready: {info.not_ready}", "UNAVAILABLE")
        self.info = info
        images = await self.connection.ask(pb.ImageFsInfoRequest(), pb.ImageFsInfoResponse)
        self.images_path = next((one.fs_id.mountpoint for one in images.image_filesystems), "/")

    def _went_away(self, error: EvenkeelError) -> None:
        self._why_away = str(error)
        if self.is_ready:
            self._ready.clear()
            self._on_change(f"{error}; containers run on, and none is started")

    def _came_back(self) -> None:
        if not self.is_ready:
            self._ready.set()
            self._on_change(f"{self.info.title if self.info is not None else self._endpoint} answers again")


class RuntimeInfo(NamedTuple):
    """The runtime's information about itself.

    `naming` is None if the runtime does not report it. With `restricts_scores` it gives no container an OOM score
    below its own.
    """

    name: str
    version: str
    api_version: str
    naming: Naming | None
    sandbox_image: str = ""
    restricts_scores: bool = False
    not_ready: str = ""  # why it runs no containers now
    no_network: str = ""  # why it gives pods no network
    with_user_namespaces: frozenset[str] = frozenset()  # the handlers that have them; "" is the default

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


async def runtime_info(connection: Connection) -> RuntimeInfo:
    """Asks the runtime. Raises RuntimeAway, or EvenkeelError if it does not speak CRI v1."""
    try:
        version = await connection.ask(pb.VersionRequest(), pb.VersionResponse)
        status = await connection.ask(pb.StatusRequest(verbose=True), pb.StatusResponse)
    except RuntimeAway:
        raise
    except CallFailed as error:
        if error.code != "UNIMPLEMENTED":  # a runtime that is starting refuses every call
            raise RuntimeAway(error.message, error.code) from None
        raise EvenkeelError(
            f"what listens at {connection.path} does not speak CRI {_API}: {error.message}",
            hint="containerd does from 1.6 on, with its CRI plugin not among disabled_plugins; CRI-O from 1.20 on",
        ) from None
    config = _config(status)
    return RuntimeInfo(
        version.runtime_name,
        version.runtime_version,
        version.runtime_api_version,
        await _asked_naming(connection) or configured_naming(config),
        _text(config.get("sandboxImage")),
        config.get("restrictOOMScoreAdj") is True,
        _unready(status, _READY),
        _unready(status, _NETWORK_READY),
        frozenset(one.name for one in status.runtime_handlers if one.features.user_namespaces),
    )


def configured_naming(config: dict[str, Any]) -> Naming | None:
    """Returns the cgroup driver in containerd's configuration, as its status shows it.

    It is the option of the default runtime, or the older option for all runtimes.
    """
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


def disagreement(info: RuntimeInfo, naming: Naming) -> EvenkeelError | None:
    """Returns an error if runtime and agent use different cgroup drivers.

    Containers would then be outside of their pods' cgroups, and no limit would apply.
    """
    if info.naming is None or info.naming == naming:
        return None
    mend = f"--cgroup-driver {info.naming}"
    if info.name == _CONTAINERD:
        wanted = "true" if naming == Naming.SYSTEMD else "false"
        mend += f", or SystemdCgroup = {wanted} among the runtime's options in /etc/containerd/config.toml"
    return EvenkeelError(
        f"{info.title} makes cgroups by {info.naming}, and cgroupDriver here is {naming}", hint=mend
    )


def _unready(status: pb.StatusResponse, type_: str) -> str:
    for condition in status.status.conditions:
        if condition.type == type_ and not condition.status:
            return " ".join(f"{condition.reason}: {condition.message}".split()).strip(": ")
    return ""


async def _asked_naming(connection: Connection) -> Naming | None:
    try:
        answer = await connection.ask(pb.RuntimeConfigRequest(), pb.RuntimeConfigResponse)
    except RuntimeAway:
        raise
    except CallFailed:  # an older runtime
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
