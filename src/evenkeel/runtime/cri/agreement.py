"""What a container runtime says of itself, and whether it and the agent mean the same by a cgroup."""

import json
from typing import Any, NamedTuple

from evenkeel.cgroup.tree import Naming
from evenkeel.errors import EvenkeelError
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.connection import CallFailed, Connection, RuntimeAway

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
