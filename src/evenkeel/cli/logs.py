"""`evenkeel logs`: the output of a pod's containers. It reads the log files themselves, so it works without an
agent."""

import argparse
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from evenkeel.cli.arguments import POD_HELP, add_namespace_flag, add_state_flag, duration_seconds, pod_name
from evenkeel.cli.attached import LogPrinter, attempt_is_over, containers_of, log_directory, status_of
from evenkeel.cli.client import AgentRefused, Client, NoAgent, client_from
from evenkeel.cli.interactive import default_container
from evenkeel.cli.listing import add_selector_flag, selecting
from evenkeel.cli.output import printable
from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime import log_files, log_reading
from evenkeel.runtime.paths import checked, state_paths

USAGE = (
    "POD|-l LABELS [-c CONTAINER | --all-containers] [-f] [-p] [--tail N] [--since 5m] [--timestamps] [-n NS]"
)
EXAMPLES = """examples:
  evenkeel logs web                              the whole log
  evenkeel logs web -c app -f --tail 20          the last 20 lines, and new ones
  evenkeel logs web --previous                   the last run that has ended: why it crashed
  evenkeel logs web --all-containers --prefix --since 10m
  evenkeel logs deployment/web                   the log of one of its pods
  evenkeel logs -l app=web --prefix -f           the logs of all pods with this label
"""
Json = dict[str, Any]
_POLL_SECONDS = 0.2
_NO_TAIL = -2  # the flag is not given
_TAIL_OF_MANY = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pods", nargs="?", metavar="POD", help=POD_HELP)
    parser.add_argument("container_name", nargs="?", metavar="CONTAINER", help="the same as -c CONTAINER")
    parser.add_argument(
        "-c",
        "--container",
        metavar="CONTAINER",
        help="the log of this container (default: the annotated one, or the first)",
    )
    parser.add_argument(
        "--all-containers", action="store_true", help="the logs of all containers, init containers too"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on with new lines until the container ends"
    )
    parser.add_argument(
        "-p", "--previous", action="store_true", help="the log of the last run that has ended"
    )
    parser.add_argument(
        "--tail",
        type=_lines,
        default=_NO_TAIL,
        metavar="N",
        help="the last N lines of each container (default: all; 10 with -l, as in kubectl)",
    )
    add_selector_flag(parser)
    parser.add_argument("--since", type=duration_seconds, metavar="5m", help="only lines that are not older")
    parser.add_argument("--since-time", type=_time, metavar="TIME", help="the same: 2026-01-31T12:00:00Z")
    parser.add_argument("--limit-bytes", type=_bytes, metavar="N", help="end after that many bytes")
    parser.add_argument("--timestamps", action="store_true", help="print the time of each line")
    parser.add_argument("--prefix", action="store_true", help="print the container of each line")
    add_namespace_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    if args.follow and args.previous:
        raise EvenkeelError("--previous and -f contradict each other: the previous attempt has ended")
    if args.since is not None and args.since_time is not None:
        raise EvenkeelError("--since and --since-time contradict each other: give one of them")
    client = client_from(args)
    logs = [log for name in _names(args, client) for log in _logs_of(args, client, name)]
    since = args.since_time if args.since is None else time.time() - args.since
    tail = args.tail
    if tail == _NO_TAIL:
        tail = None if args.selector is None else _TAIL_OF_MANY
    printer = LogPrinter(has_timestamps=args.timestamps, most_bytes=args.limit_bytes)

    def prefix(log: _Log) -> str:
        return f"[pod/{log.pod}/{log.container}] " if args.prefix else ""

    if not args.follow:
        for log in (log for log in logs if log.is_there):
            for line in log_reading.read_logs(log.path, tail=tail, since_seconds=since):
                if not printer.print(line, prefix(log)):
                    return 0
        return 0

    def lines_of(log: _Log) -> Iterator[log_reading.LogLine]:
        is_over = _over(client, args.namespace, log)
        if not log.is_there and not _has_come(log, is_over):
            return iter(())
        return log_reading.follow(log.path, tail=tail, since_seconds=since, is_over=is_over)

    together = (
        ((logs[0], line) for line in lines_of(logs[0])) if len(logs) == 1 else _together(logs, lines_of)
    )
    for log, line in together:
        if not printer.print(line, prefix(log), at_once=True):
            break
    return 0


def _names(args: argparse.Namespace, client: Client) -> list[str]:
    """The pods whose logs are wanted."""
    if (args.pods is None) == (args.selector is None):
        raise EvenkeelError("logs needs a pod, or -l LABELS", hint="evenkeel get pods lists them")
    if args.selector is None:
        return [pod_name(client, args.namespace, args.pods)]
    selects = selecting(args.selector)
    pods = [pod["metadata"] for pod in client.pods(args.namespace)]
    names = sorted(meta["name"] for meta in pods if selects(meta.get("labels", {})))
    if not names:
        raise EvenkeelError(f"no pod in namespace {args.namespace} has the labels {args.selector[:80]}")
    return names


def _logs_of(args: argparse.Namespace, client: Client, name: str) -> list["_Log"]:
    """The logs of a pod's containers. Of one pod, a container without a log is an error."""
    pod = _asked(client, args.namespace, name)
    uid = pod["metadata"]["uid"] if pod else ""
    directory = log_directory(state_paths(args.state_dir), args.namespace, name, uid)
    logs = [
        _log(directory, container, pod, is_previous=args.previous)._replace(
            pod=name, uid=uid, directory=directory
        )
        for container in _containers(args, name, directory, pod)
    ]
    for log in logs:
        if log.missing and not args.all_containers:  # a container that has not started has no log
            if args.selector is None:
                raise EvenkeelError(log.missing)
            print(f"evenkeel: pod {name}: {printable(log.missing)}", file=sys.stderr)
    return [log for log in logs if not log.missing]


class _Log(NamedTuple):
    """The log of an attempt. It is not there if the attempt has written nothing yet. `missing` is the reason why there
    is no attempt to show."""

    container: str
    path: str = ""
    attempt: int = 0
    is_there: bool = True
    missing: str = ""
    pod: str = ""
    uid: str = ""
    directory: str = ""


def _asked(client: Client, namespace: str, name: str) -> Json | None:
    """The pod; None if no agent answers or knows it. Its logs may exist all the same."""
    try:
        return client.pod_or_none(namespace, name)
    except NoAgent:
        return None


def _containers(args: argparse.Namespace, name: str, directory: str, pod: Json | None) -> list[str]:
    if args.container and args.container_name:
        raise EvenkeelError("-c and a second argument both name a container: give one of them")
    init, others = containers_of(pod) if pod else ([], _subdirectories(directory))
    if args.all_containers:
        if args.container or args.container_name:
            raise EvenkeelError("--all-containers and -c contradict each other: give one of them")
        return [*init, *others]
    wanted = args.container or args.container_name
    if wanted:
        if pod and wanted not in (*init, *others):
            raise EvenkeelError(f"pod {name} has no container {wanted}: it has {', '.join((*init, *others))}")
        return [checked(wanted, "container name")]
    if pod and (default := default_container(pod)) in (*init, *others):
        return [default]
    if len(others) > 1:
        if not pod:
            raise EvenkeelError(
                f"pod {name} has several containers: choose one of {', '.join(others)} with -c"
            )
        print(f"the log of {others[0]}, the first of: {', '.join((*init, *others))}", file=sys.stderr)
    if not others:
        raise EvenkeelError(f"pod {name} has no log yet")
    return others[:1]


def _subdirectories(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        raise EvenkeelError(f"cannot read {directory}: {reason(error)}") from None


def _log(directory: str, container: str, pod: Json | None, *, is_previous: bool) -> _Log:
    here = f"{directory}/{container}"
    attempts = log_files.attempts(here) if os.path.isdir(here) else ()
    status = status_of(pod, container) if pod else {}
    state = status.get("state", {})
    if is_previous:
        last = status.get("lastState", {}).get("terminated")
        number = log_files.previous_attempt(
            attempts,
            is_waiting="waiting" in state,
            restarts=status.get("restartCount", 0),
            id_=status.get("containerID", ""),
            ended_id=None if last is None else last.get("containerID", ""),
        )
        if number is None:
            return _Log(container, missing=f"container {container} has no log of an earlier attempt")
        return _Log(container, f"{here}/{number}.log", number)
    has_begun = "running" in state or "terminated" in state
    number = log_files.present_attempt(attempts, has_begun=has_begun, restarts=status.get("restartCount", 0))
    if not number:
        waiting = state.get("waiting", {})
        why = ": ".join(filter(None, (waiting.get("reason", ""), waiting.get("message", ""))))
        return _Log(container, missing=f"container {container} has no log yet{f' ({why})' if why else ''}")
    return _Log(container, f"{here}/{number}.log", number, is_there=number in attempts)


def _has_come(log: _Log, is_over: Callable[[], bool]) -> bool:
    """Waits for the first line of the attempt. False if it ends without one."""
    here = f"{log.directory}/{log.container}"
    while log.attempt not in log_files.attempts(here):
        if is_over() and log.attempt not in log_files.attempts(here):
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _over(client: Client, namespace: str, log: _Log) -> Callable[[], bool]:
    def is_over() -> bool:
        try:
            pod = client.pod(namespace, log.pod)
        except NoAgent:
            return False  # containers run on without an agent
        except AgentRefused as refusal:
            return refusal.is_not_found
        if log.uid and pod["metadata"]["uid"] != log.uid:
            return True
        return attempt_is_over(pod, log.container, log.attempt)

    return is_over


def _together(
    logs: list[_Log], lines_of: Callable[[_Log], Iterator[log_reading.LogLine]]
) -> Iterator[tuple[_Log, log_reading.LogLine]]:
    """The lines of several logs as they come, until all of them have ended."""
    lines: queue.Queue[tuple[_Log, log_reading.LogLine] | None] = queue.Queue(maxsize=1000)

    def read(log: _Log) -> None:
        try:
            for line in lines_of(log):
                lines.put((log, line))
        finally:
            lines.put(None)

    for log in logs:
        threading.Thread(target=read, args=(log,), daemon=True).start()
    left = len(logs)
    while left:
        item = lines.get()
        if item is None:
            left -= 1
        else:
            yield item


def _time(text: str) -> float:
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise argparse.ArgumentTypeError(f'"{text[:60]}" is not a time such as 2026-01-31T12:00:00Z')
    return moment.timestamp()


def _bytes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:12] or 0) > 0 and len(text) < 13):
        raise argparse.ArgumentTypeError(f'"{text[:60]}" is not a number of bytes, 1 or more')
    return int(text)


def _lines(text: str) -> int | None:
    if text == "-1":  # as in kubectl
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of lines')
    return int(text)
