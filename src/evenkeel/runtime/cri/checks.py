"""What `evenkeel doctor` says of the container runtime (A24, C5)."""

import asyncio

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup.tree import Naming
from evenkeel.errors import EvenkeelError
from evenkeel.host.checks import Check, State
from evenkeel.runtime.cri import endpoint

_NAME = "container runtime"
_LEAST_SCORE = -999


def runtime_checks(config: KubeletConfiguration) -> tuple[Check, ...]:
    try:
        at = endpoint.chosen(config.container_runtime_endpoint)
        if not at:
            return (_none(),)
        endpoint.require_libraries()
        from evenkeel.runtime.cri.agreement import Said, disagreement, hear
        from evenkeel.runtime.cri.connection import Connection

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
