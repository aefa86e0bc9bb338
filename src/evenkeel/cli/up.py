"""`evenkeel up`: runs the agent in the foreground, with the pods of the given files and directories."""

import argparse
import asyncio
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from evenkeel.agent.startup import start
from evenkeel.api.config import KubeletConfiguration
from evenkeel.cli.config_flags import config_from
from evenkeel.cli.inputs import node_from
from evenkeel.cli.output import printable_lines
from evenkeel.cli.up_flags import add_up_flags, cluster_from, endpoint_from
from evenkeel.cli.up_view import log_above, view_of
from evenkeel.errors import EvenkeelError, InvalidInput
from evenkeel.host.capacity import filesystem, machine_capacity
from evenkeel.host.node_labels import own_labels
from evenkeel.host.polling import Poller
from evenkeel.policy.allocatable import NodeCapacity, reservation_problems
from evenkeel.policy.amounts import bytes_text, cores_text
from evenkeel.policy.node_view import NodeView, node_view
from evenkeel.runtime.cri.endpoints import chosen, unused
from evenkeel.runtime.interface import Readiness
from evenkeel.server.app import serve

if TYPE_CHECKING:
    from evenkeel.agent.agent import Agent
    from evenkeel.host.shutdown_lock import ShutdownLock
    from evenkeel.kube.cluster import Cluster, ClusterMember
    from evenkeel.server.handlers import Handlers
    from evenkeel.server.kubelet.node_server import NodeServer
    from evenkeel.server.tcp import TcpEndpoint

log = logging.getLogger("evenkeel")
_NOTIFY_SECONDS = 5.0  # systemd may be slow to read, and the agent has other work
_SOCKET, _WATCHDOG_US, _WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"

USAGE = "[FILE|DIR…] [--stop-pods] [--state-dir DIR] [flags]"
EXAMPLES = """examples:
  evenkeel up examples/                      run these pods, and follow changes of the directory
  evenkeel up                                run the pods of `evenkeel apply` and `evenkeel run`
  evenkeel up examples/ --stop-pods          Ctrl-C ends the pods, too
  evenkeel up --node 4Gi,2cpu examples/      use that much of the machine, and no more
  evenkeel up --listen 127.0.0.1:10250 --tls-cert-file cert.pem --tls-private-key-file key.pem --token-file token
                                             answer over TCP, too: metrics for Prometheus, the Summary API
  evenkeel up --runtime-endpoint unix:///run/containerd/containerd.sock pods/
                                             run them as containers of containerd
  evenkeel up --kubeconfig node.kubeconfig   be a node of a Kubernetes cluster

When the agent ends, its pods run on. The next `evenkeel up` takes them over.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_up_flags(parser)


class PlainFormatter(logging.Formatter):
    """Replaces control characters: log lines may contain output of a container, and are read at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def run(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(PlainFormatter("%(levelname)s %(message)s"))
    for path in args.paths:
        if not os.path.exists(path):
            raise EvenkeelError(f"there is no file or directory {path}")
    config = config_from(args)
    config = config._replace(container_runtime_endpoint=chosen(config.container_runtime_endpoint))
    capacity = _with_storage(node_from(args.node, ()), args)
    if problems := list(reservation_problems(capacity, config)):
        raise InvalidInput(problems)
    for excess in beyond_machine(capacity, machine_capacity()):
        log.warning("--node: %s; requests beyond that cannot be kept", excess)
    node = node_view(capacity, config)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(LoopSelector())) as runner:
        return runner.run(_up(args, node, endpoint_from(args, config), cluster_from(args)))


class LoopSelector(selectors.EpollSelector):
    """A selector for the event loop that still works when the kernel's limit on epoll watches is reached."""

    _selector_cls = Poller


def beyond_machine(given: NodeCapacity, machine: NodeCapacity) -> Iterator[str]:
    """The amounts of `--node` that the machine does not have."""
    if given.millicpu > machine.millicpu:
        yield f"{cores_text(given.millicpu)} cpu are more than the {cores_text(machine.millicpu)} of this machine"
    if given.memory_bytes > machine.memory_bytes:
        has = bytes_text(machine.memory_bytes)
        yield f"{bytes_text(given.memory_bytes)} of memory is more than the {has} of this machine"


def _with_storage(capacity: NodeCapacity, args: argparse.Namespace) -> NodeCapacity:
    """B12: the storage is that of the filesystem that pods write to, or less if `--node` says less."""
    path = os.path.abspath(args.state_dir)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    room = filesystem(path).capacity_bytes
    given = capacity.ephemeral_storage_bytes
    if args.node is None or given is None or room is None:
        return capacity._replace(ephemeral_storage_bytes=room)
    return capacity._replace(ephemeral_storage_bytes=min(given, room))


async def _up(
    args: argparse.Namespace, node: NodeView, endpoint: "TcpEndpoint | None", cluster: "Cluster | None"
) -> int:
    stop, shutdown = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    began_at = time.time()
    # Without those of --node-labels: the Node object's may be others by now, and the scheduler goes by that.
    labels = None if cluster is None else own_labels(cluster.node_name)
    running = await start(node, args.state_dir, args.paths, own_cgroup=True, labels=labels)
    agent = running.agent
    is_stopping_pods = False
    lock = None
    try:
        lock = await _held_up(node.config, shutdown, stop)
        server = await serve(agent, os.path.abspath(args.state_dir), endpoint=endpoint)
        if server.listener is not None:
            log.info("listening at https://%s", args.listen)
        _log_start(node, args.state_dir, agent.runtime)
        view = view_of(agent, began_at)
        log_above(view)
        showing = asyncio.create_task(view.run())
        member = _joined(cluster, agent, node)
        node_server = _served(member, agent, node, server.handlers, args.state_dir)
        failing = asyncio.create_task(_failed(agent, member))
        stopping = asyncio.create_task(stop.wait())
        notify("READY=1")
        watching = asyncio.create_task(feed_watchdog())
        await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        notify("STOPPING=1")
        watching.cancel()
        is_stopping_pods = stopping.done() and (args.stop_pods or shutdown.is_set())
        if is_stopping_pods:
            log.info("stopping the pods%s", "; Ctrl-C again kills them" if os.isatty(0) else "")
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, _kill_pods, agent)
        else:
            view.freeze()
        if member is not None:
            if is_stopping_pods:
                await member.shut_down()
            await member.close()
        if node_server is not None:
            await node_server.close()
    finally:
        await running.close(stop_pods=is_stopping_pods)
        if lock is not None:
            lock.close()
    view.freeze()
    await server.close()
    showing.cancel()
    stopping.cancel()
    if failing.done() and (error := failing.result()) is not None:
        raise error
    failing.cancel()
    if not is_stopping_pods:
        log.info("the pods run on; `evenkeel up` takes them over again")
    return 0


def _kill_pods(agent: "Agent") -> None:
    log.info("killing the pods")
    agent.kill_pods()


async def _held_up(
    config: KubeletConfiguration, shutdown: asyncio.Event, stop: asyncio.Event
) -> "ShutdownLock | None":
    """With shutdownGracePeriod, a shutdown of the machine waits until pods have ended. When a shutdown begins, both
    events are set."""
    if not config.shutdown_grace_period:
        return None
    from evenkeel.host.shutdown_lock import ShutdownLock

    def begins() -> None:
        log.info("the machine is being shut down")
        shutdown.set()
        stop.set()

    lock = ShutdownLock(begins)
    try:
        if warning := await lock.take(config.shutdown_grace_period.seconds):
            log.warning("--shutdown-grace-period: %s", warning)
    except EvenkeelError as error:
        log.warning("--shutdown-grace-period: a shutdown of the machine is not held up: %s", error)
        return None
    return lock


def _joined(cluster: "Cluster | None", agent: "Agent", node: NodeView) -> "ClusterMember | None":
    if cluster is None:
        return None
    from evenkeel.kube.cluster import ClusterMember

    member = ClusterMember(cluster, agent, node)
    member.start()
    return member


def _served(
    member: "ClusterMember | None", agent: "Agent", node: NodeView, handlers: "Handlers", state_dir: str
) -> "NodeServer | None":
    """The server of a cluster's node, if it is one."""
    if member is None:
        return None
    from evenkeel.server.kubelet.node_server import node_server

    server = node_server(member, node.config, agent, handlers, state_dir)
    server.start()
    return server


async def _failed(agent: "Agent", member: "ClusterMember | None") -> BaseException | None:
    """Waits until a loop of the agent, or of the node in its cluster, ends by an error. Returns the error."""
    loops = {asyncio.create_task(one.failed()) for one in (agent, member) if one is not None}
    try:
        done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
        return next((task.result() for task in done), None)
    finally:
        for task in loops:
            task.cancel()


def _log_start(node: NodeView, state_directory: str, runtime: Readiness) -> None:
    size: NodeCapacity = node.capacity
    log.info(
        "agent %d on %s cpu and %s of memory, pods below %s, state in %s",
        os.getpid(),
        cores_text(size.millicpu),
        bytes_text(size.memory_bytes),
        node.config.cgroup_root,
        state_directory,
    )
    there = "" if node.config.container_runtime_endpoint else unused()
    offer = f" (--runtime-endpoint {there} makes them containers)" if there else ""
    log.log(logging.INFO if runtime.is_ready else logging.WARNING, "%s%s", runtime.message, offer)


# systemd


def notify(state: str, *, timeout_seconds: float = _NOTIFY_SECONDS) -> bool:
    """Sends `READY=1`, `STOPPING=1` and the like to systemd. False if systemd does not listen, or its queue stays full
    for that long."""
    address = os.environ.get(_SOCKET, "")
    if not address.startswith(("/", "@")):
        return False
    name = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(timeout_seconds)
            sender.connect(name)
            sender.send(state.encode())
    except OSError:
        return False
    return True


def watchdog_seconds() -> float | None:
    """After that time without a message systemd kills the agent. None if there is no watchdog."""
    asked_of = os.environ.get(_WATCHDOG_PID, "")
    text = os.environ.get(_WATCHDOG_US, "")
    if not text.isdecimal() or int(text) == 0 or (asked_of and asked_of != str(os.getpid())):
        return None
    return int(text) / 1e6


async def feed_watchdog() -> None:
    """Sends keep-alive messages to the watchdog for as long as the event loop runs, until cancelled."""
    seconds = watchdog_seconds()
    while seconds is not None:
        notify("WATCHDOG=1", timeout_seconds=0)  # a full queue holds such messages already
        await asyncio.sleep(seconds / 3)
