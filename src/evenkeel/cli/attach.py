"""`evenkeel attach`: the streams of a running container itself."""

import argparse
import sys

from evenkeel.cli.arguments import POD_HELP, add_namespace_flag, add_state_flag, pod_name
from evenkeel.cli.client import client_from
from evenkeel.cli.interactive import (
    add_container_flag,
    add_stream_flags,
    container_of,
    exit_code,
    has_terminal,
    interact,
)

USAGE = "POD [-c CONTAINER] [-i] [-t] [-n NS]"
EXAMPLES = """examples:
  evenkeel attach web            prints its output from now on; Ctrl-C detaches
  evenkeel attach -it console    your terminal is that of the container
  evenkeel attach -i worker < jobs.txt

The container must have standard input for -i, and a terminal for -t: stdin: true and tty: true in its manifest, or
evenkeel run -it. It runs on when you detach: close your terminal, or end this command with a signal. With stdinOnce its
standard input ends then. The exit code is 0 when the container ends, 1 for errors.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pods", metavar="POD", help=POD_HELP)
    add_container_flag(parser)
    add_stream_flags(parser)
    add_namespace_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    from evenkeel.cli.remote import pod_path

    client = client_from(args)
    name = pod_name(client, args.namespace, args.pods)
    container = container_of(client.pod(args.namespace, name), args.container)
    is_terminal = args.tty
    if is_terminal and container and not container.get("tty"):
        print(
            f"evenkeel: -t has no effect: container {container['name']} has no terminal (tty: true in its manifest)",
            file=sys.stderr,
        )
        is_terminal = False
    is_terminal = has_terminal(is_wanted=is_terminal)
    if args.stdin and is_terminal:
        print("evenkeel: if you see no prompt, press Enter", file=sys.stderr)
    end = interact(
        client,
        pod_path(args.namespace, name, "attach"),
        [("container", args.container)] if args.container else [],
        has_stdin=args.stdin,
        is_terminal=is_terminal,
        redraws=True,
    )
    return exit_code(end)
