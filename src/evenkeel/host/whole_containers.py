"""Whole-container OOM kills on cgroup v1 (A19, E5): the kernel there kills one process and leaves the rest.

On cgroup v2 `memory.oom.group` makes the kernel do it. On v1 the container's own count of OOM kills is watched, and
what the kernel left is killed. A notification alone is not enough: it also comes when a limit further up was hit and
somebody else was killed for it.
"""

import asyncio
from collections.abc import AsyncIterator

from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.tree import Tree, Version
from evenkeel.host.event_stream import EventStream
from evenkeel.host.event_types import Event, OomNotified


def watch_containers(stream: EventStream, driver: Driver, tree: Tree) -> None:
    """Listen for OOM kills in every container of `tree` that is to be killed whole."""
    if tree.version != Version.V1:
        return
    for cgroup in tree.cgroups:
        if cgroup.is_killed_whole:
            stream.watch_oom(cgroup.path, driver.files(cgroup.path)["memory"])


async def kill_whole_containers(
    events: AsyncIterator[Event], driver: Driver
) -> AsyncIterator[tuple[str, CgroupError | None]]:
    """The path of each container whose rest was killed, and what went wrong with that."""
    async for event in events:
        if isinstance(event, OomNotified) and event.oom_kills:
            try:
                # Killing waits until nobody is left, which must not hold up the other events.
                await asyncio.to_thread(driver.kill, event.path)
            except CgroupError as error:
                yield event.path, error
            else:
                yield event.path, None
