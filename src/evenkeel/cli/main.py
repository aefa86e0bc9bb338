"""`evenkeel`: finds the command, parses its flags, and turns errors into sentences and exit codes.

Only the module of the given command is imported, because imports take most of the time of a short command.
Exit codes: 0 done, 1 refused or failed, 2 usage.
"""

import argparse
import gc
import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any, NoReturn

from evenkeel import __version__
from evenkeel.errors import EvenkeelError, reason

# Command (also the name of its module here, with _ for -) and its line in the list of commands.
COMMANDS = {
    "up": "run the agent in the foreground, with these pods",
    "join": "get a certificate from a Kubernetes cluster, with which `evenkeel up` is a node of it",
    "demo": "show three promises on this machine, each with a verdict; everything is removed afterwards",
    "explain": "show what a node would do with pods, and why: classes, OOM scores, every cgroup file",
    "validate": "check manifests and configuration, and report every mistake at once",
    "plan": "show what would change in this machine's cgroups, and why; --apply changes it",
    "evict": "show which pods would be evicted, in which order and why (--dry-run)",
    "doctor": "show what on this machine would break a promise, and how to mend it",
    "schedule": "show which of many nodes each pod would go to",
    "apply": "hand pods and workloads to the agent, which starts new ones and changes those that differ",
    "delete": "end pods or workloads, and wait until they are gone",
    "get": "list pods, workloads, the node or events, as a table or for a program",
    "images": "list the images on this machine, and those that are being pulled",
    "describe": "show everything about a pod, a workload or the node: states, resources asked for and applied, events",
    "scale": "change the number of replicas of a Deployment, StatefulSet or ReplicaSet",
    "wait": "wait until pods or workloads are ready, complete or gone",
    "rollout": "replace the pods of a workload one after another, or wait until they are replaced",
    "logs": "print the logs of a pod's containers; -f goes on with new lines",
    "exec": "execute a command in a running container; -it for a shell",
    "attach": "print the output of a running container from now on; -it for its terminal",
    "cp": "copy files and directories to a container, or from one",
    "port-forward": "connect ports of this machine's loopback with ports of a pod",
    "run": "run one command as a pod, with a request and a limit",
    "events": "list the events of pods and of the node; -f goes on with new ones",
    "why": "say in sentences what happened to a pod and why, with the figures of each decision",
    "replay": "make the recorded decisions again, also with other settings",
    "top": "show the node and its pods live: capacity, requests, limits and use",
    "dashboard": "serve the live page of this machine's agent to your browser",
    "completion": "print the completion script for your shell",
}
_DESCRIPTION = "Keeps every promise on an oversubscribed Linux node."
_EPILOG = "Every command has its own help: evenkeel COMMAND --help"


def entry() -> NoReturn:
    """The installed script. It runs `main` without garbage collection and without an orderly shutdown of the
    interpreter: only long-running programs need these."""
    gc.disable()
    _make_streams_safe()
    try:
        code = main()
    except SystemExit as end:  # from argparse, for usage and help
        code = end.code if isinstance(end.code, int) else 0
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or 1
    # An orderly shutdown of the interpreter takes longer than most commands.
    os._exit(code)


def _make_streams_safe() -> None:
    """Printing never fails: not for a closed stream, and not for a character that the terminal cannot show."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        else:
            stream.reconfigure(errors="backslashreplace")


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    if chosen is not None and chosen not in COMMANDS:
        print(f"evenkeel: {_no_such_command(chosen)}", file=sys.stderr)
        return 2
    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    given = None if wants_help else {argument.partition("=")[0] for argument in arguments}
    parser = build_parser([chosen] if chosen in COMMANDS else [], given, arguments)
    try:
        parsed = parser.parse_args(arguments)
        if parsed.command is None:
            parser.print_help()
            return 2
        code: int = import_module(_module(parsed.command)).run(parsed)
        sys.stdout.flush()
    except EvenkeelError as error:
        from evenkeel.cli.output import printable_lines

        text = printable_lines(str(error))  # it may contain output of a container
        print(f"evenkeel: {text}" if "\n" not in text else text, file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (`| head`) is gone. What Python flushes at exit goes to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # most likely standard output on a full disk
        print(f"evenkeel: {reason(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _module(command: str) -> str:
    return f"evenkeel.cli.{command.replace('-', '_')}"


def _no_such_command(word: str) -> str:
    from evenkeel.api.known_fields import closest
    from evenkeel.cli.kubectl_words import COMMANDS as OF_KUBECTL

    if word in OF_KUBECTL:
        return f'there is no command "{word}": {OF_KUBECTL[word]}'
    meant = closest(word, COMMANDS)
    hint = f"did you mean {meant}?" if meant else f"there are {', '.join(COMMANDS)}"
    return f'there is no command "{word[:40]}"; {hint}'


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal. argparse itself would import shutil for that, at every start."""

    def __init__(self, prog: str) -> None:
        try:
            width = os.get_terminal_size().columns
        except OSError:
            width = 100
        super().__init__(prog, max_help_position=32, width=max(min(width, 120) - 2, 40))


class _Parser(argparse.ArgumentParser):
    """`given` are the words on the command line. None means every flag, as for the help."""

    given: Collection[str] | None = None
    words: Sequence[str] = ()  # the same in their order, with their values
    takes_command = False  # everything after `--` is a command of the user, with flags of its own

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # noqa: ANN401
        """Allows names after flags (`get pods -o yaml web`), which argparse does not."""
        if self.takes_command and args is not None and "--" in args:
            at = args.index("--")
            parsed, left = super().parse_known_args(args[:at], namespace)
            parsed.command_line = [*parsed.command_line, *args[at + 1 :]]
        else:
            parsed, left = super().parse_known_args(args, namespace)
            many = next((action.dest for action in self._actions if action.nargs == "*"), None)
            if many and left and not any(word.startswith("-") for word in left):
                getattr(parsed, many).extend(left)
                left = []
        if left and self.given is not None:  # of a command: its own usage is shown, not that of all commands
            self.error(f"unrecognized arguments: {' '.join(left)}; {self.prog} --help lists what it takes")
        return parsed, left

    def error(self, message: str) -> NoReturn:
        """As argparse does it; for a word of kubectl, with what to use in its place."""
        from evenkeel.cli.kubectl_words import about_words

        command = self.prog.rpartition(" ")[2]
        if self.given is not None and (said := about_words(command, self.words)):
            self.exit(2, f"evenkeel: {said}\n")
        super().error(message)


def build_parser(
    with_flags_of: Sequence[str], given: Collection[str] | None = None, words: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """The parser of every command, with the flags of the named commands."""
    parser = _Parser(prog="evenkeel", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=_Help)
    parser.add_argument("--version", action="version", version=f"evenkeel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, line in COMMANDS.items():
        if name not in with_flags_of:
            if given is None or not with_flags_of:  # else the list of commands is not printed
                commands.add_parser(name, help=line, add_help=False, formatter_class=_Help)
            continue
        module = import_module(_module(name))
        command = commands.add_parser(
            name,
            help=line,
            description=f"{line[0].upper()}{line[1:]}.",
            epilog=module.EXAMPLES,
            formatter_class=_Help,
            usage=f"evenkeel {name} {getattr(module, 'USAGE', '[flags]')}",
            allow_abbrev=False,
        )
        command.given, command.words = given, words
        command.takes_command = getattr(module, "TAKES_COMMAND", False)
        module.add_arguments(command)
    return parser
