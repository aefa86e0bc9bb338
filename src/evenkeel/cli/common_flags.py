"""Where the agent's state directory is, and which namespace a command is about: flags of every command that asks the
agent."""

import argparse
import os
from collections.abc import Sequence

from evenkeel.errors import EvenkeelError

ROOT_STATE_DIRECTORY = "/var/lib/evenkeel"
VARIABLE = "EVENKEEL_STATE_DIR"
DEFAULT_NAMESPACE = "default"


def add_state_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir",
        metavar="PATH",
        default=default_state_directory(),
        help=f"the agent's state directory (${VARIABLE}, else %(default)s)",
    )


def add_namespace_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--namespace", metavar="NS", default=DEFAULT_NAMESPACE, help="the pods' namespace (%(default)s)"
    )


def default_state_directory() -> str:
    """What the environment says; else the system's for root, and the user's own for others."""
    if given := os.environ.get(VARIABLE):
        return given
    if os.geteuid() == 0:
        return ROOT_STATE_DIRECTORY
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "evenkeel")


def grace_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 2**31:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of seconds, 0 or more')
    return seconds


PODS, NODE, EVENTS = "pods", "node", "events"
_WORDS = {
    **dict.fromkeys(("pods", "pod", "po"), PODS),
    **dict.fromkeys(("node", "nodes", "no"), NODE),
    **dict.fromkeys(("events", "event", "ev"), EVENTS),
}


def named(words: Sequence[str], default: str = "") -> tuple[str, list[str]]:
    """The kind and the names in `words`. Without a kind, all are names of the `default` kind."""
    if not words:
        return default, []
    first, *rest = words
    if "/" in first:
        kinds, names = zip(
            *(word.split("/", 1) if "/" in word else ("", word) for word in words), strict=True
        )
        if len(set(kinds)) > 1:
            raise EvenkeelError(f"{' '.join(words)[:100]}: name things of one kind, all as KIND/NAME")
        return _kind(kinds[0]), list(names)
    if default and (first not in _WORDS or not rest):
        return default, list(words)
    return _kind(first), rest


def _kind(word: str) -> str:
    kind = _WORDS.get(word.lower())
    if kind is None:
        raise EvenkeelError(f'there is no kind "{word[:40]}"', hint="there are pods, node and events")
    return kind
