"""`evenkeel exec`: a command in a running container of a pod."""

import argparse

from evenkeel.cli.arguments import POD_HELP, add_namespace_flag, add_state_flag, pod_name
from evenkeel.cli.client import client_from
from evenkeel.cli.interactive import (
    add_container_flag,
    add_stream_flags,
    exit_code,
    has_terminal,
    interact,
)
from evenkeel.errors import EvenkeelError

USAGE = "POD [-c CONTAINER] [-i] [-t] [-n NS] -- COMMAND…"
EXAMPLES = """examples:
  evenkeel exec web -- ls -l /                   prints its output; the exit code is that of ls
  evenkeel exec -it web -- sh                    a shell at your terminal
  evenkeel exec -i web -c db -- psql < dump.sql  your standard input goes to the command
  evenkeel exec deployment/web -- hostname       in one of its pods

The command runs as the container's user, in its cgroup and with its limits. It ends with this client: its processes get
SIGHUP, and SIGKILL two seconds later. Exit codes are those of the command; 127 if it was not found, 126 if it cannot be
executed, 1 for other errors.
"""
TAKES_COMMAND = True  # everything after `--` is the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pods", metavar="POD", help=POD_HELP)
    add_container_flag(parser)
    add_stream_flags(parser)
    add_namespace_flag(parser)
    add_state_flag(parser)
    parser.add_argument(
        "command_line", nargs="*", metavar="-- COMMAND…", help="the program and its arguments"
    )


def run(args: argparse.Namespace) -> int:
    from evenkeel.cli.remote import pod_path

    if not args.command_line:
        raise EvenkeelError("exec needs a command", hint="evenkeel exec POD -- COMMAND ARGUMENT…")
    parameters = [("command", word) for word in args.command_line]
    if args.container:
        parameters.append(("container", args.container))
    client = client_from(args)
    end = interact(
        client,
        pod_path(args.namespace, pod_name(client, args.namespace, args.pods), "exec"),
        parameters,
        has_stdin=args.stdin,
        is_terminal=has_terminal(is_wanted=args.tty),
    )
    return exit_code(end)
