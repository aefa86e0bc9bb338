"""From what the agent asks for to everything a child needs to become the container: a `spawn.Plan`. Pure."""

from collections.abc import Mapping

from evenkeel.cgroup.drivers.v1 import UNIFIED
from evenkeel.cgroup.tree import Version
from evenkeel.runtime.environment import arguments, environment
from evenkeel.runtime.identity import groups, identity
from evenkeel.runtime.interface import Launch, StartFailed
from evenkeel.runtime.logs import LogLimits
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.process import rootfs
from evenkeel.runtime.process.entry import OF_PROCESSES, OF_THREADS
from evenkeel.runtime.process.filesystem import Surroundings, filesystem_spec
from evenkeel.runtime.process.refusals import Powers, users_refusal
from evenkeel.runtime.process.spawn import Plan

_LONGEST_HOSTNAME = 63


def plan_of(
    launch: Launch,
    paths: StatePaths,
    powers: Powers,
    *,
    procs: tuple[str, ...],
    image_directory: str,
    around: Surroundings,
    limits: LogLimits,
) -> Plan:
    """Raises StartFailed. `procs` are the `entrances` of the launch's cgroup."""
    pod, container, attempt = launch.pod, launch.container, launch.attempt
    wrong = users_refusal(pod, container, powers)
    if wrong:
        raise StartFailed(wrong)
    argv = arguments(pod, container)
    if not container.command:
        raise StartFailed("command is missing: write the program and its arguments")
    metadata = pod.metadata
    hostname = (pod.spec.hostname or metadata.name)[:_LONGEST_HOSTNAME].rstrip("-.")
    who = identity(pod, container)
    spec = filesystem_spec(
        pod, container, attempt.number, paths, image_directory=image_directory, around=around
    )
    return Plan(
        argv=argv,
        env=tuple(environment(pod, container, hostname).items()),
        cgroup=launch.cgroup,
        procs=procs,
        log=paths.log(metadata.namespace, metadata.name, attempt.uid, attempt.container, attempt.number),
        log_limits=tuple(limits),
        filesystem=rootfs.as_json(spec),
        working_directory=container.working_dir,
        uid=who.uid,
        gid=who.gid,
        groups=groups(pod),
        hostname=hostname,
        oom_score_adj=launch.oom_score_adj or 0,  # never the keeper's own
        message_policy=container.termination_message_policy,
    )


def entrances(directories: Mapping[str, str], version: Version) -> tuple[str, ...]:
    """The files by which a child of the keeper enters a cgroup, one a hierarchy. `directories` are the driver's."""
    found = {}
    for controller, directory in directories.items():
        is_v1 = version == Version.V1 and controller != UNIFIED
        found[directory] = f"{directory}/{OF_THREADS if is_v1 else OF_PROCESSES}"
    return tuple(found.values())
