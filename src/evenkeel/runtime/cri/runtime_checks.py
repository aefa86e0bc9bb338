"""The checks of `evenkeel doctor` for a container runtime: its answer, and settings that would break a guarantee.

The libraries for CRI may not be installed, so they are imported only when a runtime is asked."""

import asyncio

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup.tree import Naming
from evenkeel.errors import EvenkeelError
from evenkeel.host.checks import Check, State
from evenkeel.runtime.cri.endpoints import chosen, require_libraries, unused

_NAME = "container runtime"


def runtime_checks(config: KubeletConfiguration) -> tuple[Check, ...]:
    """Asks the runtime, if the configuration names one."""
    try:
        at = chosen(config.container_runtime_endpoint)
        if not at:
            return (_none(),)
        require_libraries()
        return (_asked(at, Naming.SYSTEMD if config.cgroup_driver == "systemd" else Naming.CGROUPFS),)
    except EvenkeelError as error:
        return (_broken(error),)


def _asked(at: str, naming: Naming) -> Check:
    """Raises EvenkeelError."""
    from evenkeel.runtime.cri.cri_connection import Connection
    from evenkeel.runtime.cri.runtime_link import RuntimeInfo, disagreement, runtime_info

    async def asked() -> RuntimeInfo:
        connection = Connection(at)
        try:
            return await runtime_info(connection)
        finally:
            await connection.close()

    info = asyncio.run(asked())
    wrong = disagreement(info, naming)
    if wrong is not None:
        raise wrong
    if info.not_ready:
        raise EvenkeelError(f"{info.title} is not ready: {info.not_ready}")
    driver = f", {info.naming}" if info.naming is not None else ""
    seen = f"{info.title} at {at}: CRI {info.api_version} with unified{driver}"
    if not info.restricts_scores:
        return Check(_NAME, State.OK, seen)
    return Check(
        _NAME,
        State.BROKEN,
        f"{seen}; restrict_oom_score_adj",
        "no container gets an OOM score below the runtime's own: the kernel may choose a Guaranteed one",
        ("A12",),
        (
            "restrict_oom_score_adj = false in /etc/containerd/config.toml",
            "run the container runtime with oom_score_adj -999",
        ),
    )


def _none() -> Check:
    there = unused()
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
