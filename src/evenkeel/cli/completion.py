"""`evenkeel completion`: a script that completes commands, flags and choices in the user's shell."""

import argparse

from evenkeel.errors import EvenkeelError

USAGE = "bash|zsh|tcsh"
EXAMPLES = """examples:
  evenkeel completion bash | sudo tee /etc/bash_completion.d/evenkeel
  evenkeel completion zsh > "${fpath[1]}/_evenkeel"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def run(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise EvenkeelError(
            "completion needs the package shtab", hint="pip install 'evenkeel[completion]'"
        ) from None
    from evenkeel.cli.main import COMMANDS, build_parser

    print(shtab.complete(build_parser(list(COMMANDS)), shell=args.shell))
    return 0
