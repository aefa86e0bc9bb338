"""Where the agent's state directory is, and which namespace a command is about: flags of every command that asks the
agent."""

import argparse
import os

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
