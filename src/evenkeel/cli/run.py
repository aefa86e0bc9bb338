"""`evenkeel run`: one command as a pod. Unless detached, it stays at the streams of the command (`run_session`) and
returns its exit code."""

import argparse
import os
import sys
import threading
from typing import Any

from evenkeel.cli.arguments import add_namespace_flag, add_state_flag, grace_seconds
from evenkeel.cli.client import AgentRefused, Client, NoAgent, client_from
from evenkeel.cli.interactive import add_stream_flags, has_terminal
from evenkeel.cli.output import printable
from evenkeel.errors import EvenkeelError, InvalidInput, reason
from evenkeel.quantity import Quantity

USAGE = "[-it] [--cpu 500m] [--memory 1Gi] [--cpu-limit 2] [--memory-limit 2Gi] [--rm] [-d] [flags] [NAME] -- COMMAND…"
EXAMPLES = """examples:
  evenkeel run --memory 1Gi -- make -j4               prints its output; Ctrl-C stops it
  evenkeel run --rm --cpu 2 --cpu-limit 2 -- ./bench  and deletes the pod afterwards
  evenkeel run --image docker.io/library/alpine:3.20 -- cat /etc/os-release
  evenkeel run -it --rm --image docker.io/library/alpine:3.20 try -- sh
  zcat dump.sql.gz | evenkeel run -i --memory-limit 1Gi -- ./import
  evenkeel run -d --name worker --restart Always -- ./worker --queue mail
  evenkeel run --memory-limit 256Mi --env MODE=test -- python3 script.py

Flags come before NAME. With -t every key goes to the command, Ctrl-C too; if your terminal is closed, the pod runs on
unless --rm is given. Without -t, Ctrl-C stops the pod. The exit code is that of the command.

Without a request the pod is BestEffort: it gets what is idle, and is evicted first when memory runs short.
"""
CONTAINER = "main"
WORKDIR = "workdir"  # the name of the volume
Json = dict[str, Any]
_SHOWN = ("Pulling", "Failed", "BackOff")
_LAST = ("Pulled", "Started")
_LOOK_SECONDS = 0.5
_CLEAR_LINE = "\r\x1b[K"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name", metavar="N", help="the name of the pod (default: the command and five letters)"
    )
    for flag, words in (
        ("--cpu", "the cpu request, such as 500m or 2"),
        ("--memory", "the memory request, such as 256Mi or 1Gi"),
        ("--cpu-limit", "the cpu limit"),
        ("--memory-limit", "the memory limit"),
    ):
        parser.add_argument(flag, metavar="AMOUNT", type=_amount, help=words)
    parser.add_argument(
        "-e", "--env", metavar="K=V", action="append", default=[], help="a variable; K alone copies yours"
    )
    parser.add_argument(
        "--image",
        default="host",
        help="an image of a registry, or a directory or archive with a root filesystem (%(default)s)",
    )
    parser.add_argument("--workdir", metavar="DIR", help="the working directory (default: this one)")
    parser.add_argument(
        "--restart", choices=("Never", "OnFailure", "Always"), default="Never", help="%(default)s"
    )
    parser.add_argument(
        "--grace-period", type=grace_seconds, metavar="SECONDS", help="from SIGTERM to SIGKILL (30)"
    )
    add_stream_flags(parser)
    parser.add_argument("--rm", action="store_true", help="delete the pod after its end")
    parser.add_argument("-d", "--detach", action="store_true", help="do not wait for it")
    add_namespace_flag(parser)
    add_state_flag(parser)
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="[NAME] -- COMMAND…")


def run(args: argparse.Namespace) -> int:
    given, command = _split(args.command_line)
    given = given or args.name
    image = _image(args.image)
    if not command and (image == "host" or image.startswith("/")):
        raise EvenkeelError("run needs a command", hint="evenkeel run -- COMMAND ARGUMENT…")
    if args.rm and args.detach:
        raise EvenkeelError("--rm and --detach contradict each other: --rm waits for the end of the pod")
    if args.tty and not args.stdin:
        raise EvenkeelError("-t needs -i: a terminal without standard input takes no keys", hint="write -it")
    if not args.detach:
        args.tty = has_terminal(is_wanted=args.tty)
    client = client_from(args)
    name = given or _name(command[0] if command else image.rpartition("/")[2].partition(":")[0])
    if given and client.pod_or_none(args.namespace, name) is not None:
        raise EvenkeelError(f"there is a pod {name} already", hint=f"evenkeel delete {name}")
    try:
        client.apply(_pod(args, name, command), source="run")
    except InvalidInput as error:  # the user did not write this manifest, so line numbers are left out
        raise InvalidInput([problem._replace(source="", line=0) for problem in error.problems]) from None
    if args.detach:
        print(f"pod/{name} created")
        return 0
    from evenkeel.cli.run_session import RunSession

    session = RunSession(client, args.namespace, name, CONTAINER, removes=args.rm)
    if image == "host" or image.startswith("/"):
        return session.run(has_stdin=args.stdin, is_terminal=args.tty)

    news = PullNews(client, client.pod(args.namespace, name), image)
    news.start()
    try:
        return session.run(has_stdin=args.stdin, is_terminal=args.tty)
    finally:
        news.stop()


def _split(words: list[str]) -> tuple[str, list[str]]:
    """Returns the name, if there is one, and the command. One word before `--` is the name, as with kubectl."""
    if "--" not in words[:2]:
        if "--" in words and words[1:2] and words[1].startswith("-"):
            raise EvenkeelError(
                f"{words[1]}: flags come before the name",
                hint=f"evenkeel run {words[1]} … {words[0]} -- COMMAND…",
            )
        if "--" not in words and any(word.partition("=")[0] == "--image" for word in words[1:]):
            raise EvenkeelError(
                f"{words[0]} … --image: flags come before the name, and -- before the command",
                hint=f"evenkeel run --image IMAGE {words[0]} -- COMMAND…",
            )
        return "", words
    at = words.index("--")
    return "".join(words[:at]), words[at + 1 :]


def _pod(args: argparse.Namespace, name: str, command: list[str]) -> Json:
    amounts = {
        "requests": {"cpu": args.cpu, "memory": args.memory},
        "limits": {"cpu": args.cpu_limit, "memory": args.memory_limit},
    }
    resources = {
        kind: {n: str(v) for n, v in given.items() if v is not None} for kind, given in amounts.items()
    }
    workdir = args.workdir or (_here() if args.image == "host" else "")
    if args.image == "host":
        workdir = os.path.abspath(workdir)
    container: Json = {
        "name": CONTAINER,
        "image": _image(args.image),
        "command": [_literal(word) for word in command],
        "env": [_variable(text) for text in args.env],
        "resources": {kind: given for kind, given in resources.items() if given},
        **({"workingDir": workdir} if workdir else {}),
        # As kubectl does it: the standard input of an attached run ends with its client.
        **({"stdin": True, "stdinOnce": not args.detach} if args.stdin else {}),
        **({"tty": True} if args.tty else {}),
    }
    spec: Json = {"restartPolicy": args.restart, "containers": [container]}
    if args.image == "host" and workdir != "/":  # of the host's files it writes to this directory
        container["volumeMounts"] = [{"name": WORKDIR, "mountPath": workdir}]
        spec["volumes"] = [{"name": WORKDIR, "hostPath": {"path": workdir, "type": "Directory"}}]
    if args.grace_period is not None:
        spec["terminationGracePeriodSeconds"] = round(args.grace_period)
    metadata = {"name": name, "namespace": args.namespace, "labels": {"run": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _image(text: str) -> str:
    """Makes a path absolute. A text that is neither a path nor an existing file is the name of an image in a
    registry."""
    is_path = text.startswith(("/", "./", "../")) or text in (".", "..") or os.path.exists(text)
    return os.path.abspath(text) if is_path and text != "host" else text


def _here() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise EvenkeelError(
            f"the current directory cannot be used: {reason(error)}",
            hint="change to another one, or give --workdir DIR",
        ) from None


def _name(command: str) -> str:
    """The command and five random letters, such as `make-7x2fk`."""
    letters = "bcdfghjklmnpqrstvwxz2456789"
    base = "".join(
        c if c.isascii() and c.isalnum() else "-" for c in os.path.basename(command).lower()
    ).strip("-")
    return (
        f"{base[:40].rstrip('-') or 'run'}-{''.join(letters[byte % len(letters)] for byte in os.urandom(5))}"
    )


def _variable(text: str) -> dict[str, str]:
    name, has_value, value = text.partition("=")
    if not name or "\0" in text:
        raise EvenkeelError(f'--env: "{text}" is not NAME=VALUE')
    if not has_value and name not in os.environ:
        raise EvenkeelError(f"--env: you have no variable {name} to copy: write {name}=VALUE")
    return {"name": name, "value": _literal(value if has_value else os.environ[name])}


def _literal(text: str) -> str:
    """In a manifest `$(NAME)` is a variable and `$$` is `$`. Here every word is literal."""
    return text.replace("$", "$$")


def _amount(text: str) -> Quantity:
    try:
        return Quantity.parse(text)
    except EvenkeelError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class PullNews:
    """Writes to standard error, in threads of its own, until the image is there or `stop` is called."""

    def __init__(self, client: Client, pod: Json, image: str) -> None:
        self._client = client
        self._pod = pod
        self._image = image
        self._is_over = threading.Event()
        self._has_line = False

    def start(self) -> None:
        threading.Thread(target=self._events, daemon=True).start()
        if sys.stderr.isatty():
            threading.Thread(target=self._bytes, daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _events(self) -> None:
        metadata = self._pod["metadata"]
        key = f"{metadata.get('namespace', 'default')}/{metadata['name']}"
        try:
            for event in self._client.lines("/events", pod=key, follow="1"):
                if event.get("uid", metadata["uid"]) != metadata["uid"]:
                    continue  # of an earlier pod of that name
                if self._is_over.is_set() or event["reason"] in _LAST:
                    break
                if event["reason"] in _SHOWN:
                    self._print(printable(f"evenkeel: {event['message']}") + "\n")
        except (NoAgent, AgentRefused):
            pass
        self._is_over.set()
        self._print("")

    def _bytes(self) -> None:
        from evenkeel.policy.amounts import bytes_text
        from evenkeel.runtime.images.references import InvalidReference, parse

        try:
            wanted = str(parse(self._image))
        except InvalidReference:
            return
        while not self._is_over.wait(_LOOK_SECONDS):
            try:
                pulls = self._client.get("/images")["pulls"]
            except (NoAgent, AgentRefused):
                return
            for pull in pulls:
                if pull["image"] == wanted and not self._is_over.is_set():
                    text = f"evenkeel: {bytes_text(pull['receivedBytes'])} in {pull['seconds']:.0f} s"
                    sys.stderr.write(f"{_CLEAR_LINE}{text}")
                    sys.stderr.flush()
                    self._has_line = True

    def _print(self, text: str) -> None:
        sys.stderr.write(f"{_CLEAR_LINE if self._has_line else ''}{text}")
        sys.stderr.flush()
        self._has_line = False
