"""The agent's configuration on the command line: a file, and a flag for each of its fields (B3 to B7).

A flag overrides the field of the file. The values of flags are parsed here and not by argparse, so that all errors of
the file and of the flags are reported at once, each with its field or flag.
"""

import argparse
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from evenkeel.api.config import (
    KubeletConfiguration,
    defaulted,
    flag_of,
)
from evenkeel.api.encode import camel
from evenkeel.cli.config_flag_table import FLAGS, truth
from evenkeel.errors import EvenkeelError, InvalidInput, Problem
from evenkeel.host.files import read_text
from evenkeel.named_tuples import NamedTuple

if TYPE_CHECKING:
    from evenkeel.api.config_file import ConfigFile

_DEST = "config_"
_ALIASES = {"container_runtime_endpoint": ("--runtime-endpoint",)}


class GivenConfig(NamedTuple):
    """The configuration of a command, checked and with its defaults, and warnings about it."""

    config: KubeletConfiguration
    warnings: tuple[Problem, ...] = ()


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """`--config FILE` and every field's flag.

    argparse takes a tenth of a millisecond to make a flag. A parser that knows the words of its command line (`given`)
    gets only the flags among them, to save that time.
    """
    given: Collection[str] | None = getattr(parser, "given", None)
    group = parser.add_argument_group(
        "configuration", "A kubelet's configuration file can be used as it is. A flag overrides the file."
    )
    group.add_argument("--config", metavar="FILE", help="a KubeletConfiguration, as YAML or JSON")
    for attribute, (kind, metavar, words) in FLAGS.items():
        flags = (flag_of(attribute), *_ALIASES.get(attribute, ()))
        if given is not None and not any(flag in given for flag in flags):
            continue
        alone: dict[str, Any] = {"nargs": "?", "const": "true"} if kind is truth else {}
        group.add_argument(*flags, dest=_DEST + attribute, metavar=metavar, help=words, **alone)


def config_from(args: argparse.Namespace) -> KubeletConfiguration:
    """The configuration that `args` ask for. Warnings go to standard error."""
    given = given_config(args)
    for warning in given.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return given.config


def given_fields(args: argparse.Namespace) -> frozenset[str]:
    """The fields that have a flag on the command line."""
    return frozenset(name for name in FLAGS if getattr(args, _DEST + name, None) is not None)


def given_config(args: argparse.Namespace) -> GivenConfig:
    """The file, then the flags, then the defaults, then the rules. Raises `InvalidInput` with every problem."""
    problems: list[Problem] = []
    changes: dict[str, object] = {}
    for attribute, (kind, *_) in FLAGS.items():
        text = getattr(args, _DEST + attribute, None)
        if text is not None:
            try:
                changes[attribute] = kind(text)
            except EvenkeelError as error:
                problems.append(Problem(flag_of(attribute), str(error)))

    if not changes and not problems and getattr(args, "config", None) is None:
        return GivenConfig(defaulted(KubeletConfiguration()))  # the defaults are valid
    return _checked(args, changes, problems)


def _checked(args: argparse.Namespace, changes: dict[str, object], problems: list[Problem]) -> GivenConfig:
    from evenkeel.api.config_validation import config_warnings, validate_config
    from evenkeel.policy.allocatable import startup_problems

    file = _file(args, problems)
    if problems:
        raise InvalidInput(problems)
    config = _with(file.config, changes)
    overridden = {camel(attribute) for attribute in changes}
    problems = [*validate_config(config), *startup_problems(config)]
    if problems:
        raise InvalidInput([file.located(problem, overridden) for problem in problems])
    warnings = [file.located(warning, overridden) for warning in config_warnings(config)]
    return GivenConfig(defaulted(config), (*file.warnings, *warnings))


def _file(args: argparse.Namespace, problems: list[Problem]) -> "ConfigFile":
    from evenkeel.api.config_file import ConfigFile, read_config

    path = getattr(args, "config", None)
    if path is None:
        return ConfigFile(KubeletConfiguration(), "")
    try:
        return read_config(read_text(path), path)
    except InvalidInput as error:
        problems[:0] = error.problems
        return ConfigFile(KubeletConfiguration(), path)


def _with(config: KubeletConfiguration, changes: dict[str, Any]) -> KubeletConfiguration:
    if "feature_gates" in changes:  # the other gates of the file stay
        changes["feature_gates"] = {**config.feature_gates, **changes["feature_gates"]}
    return config._replace(**changes)
