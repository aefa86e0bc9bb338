"""`evenkeel completion`: a script that completes commands, flags, choices, files, and the names of pods and
containers."""

import argparse
from collections.abc import Iterator

from evenkeel.cli.arguments import add_namespace_flag, add_state_flag
from evenkeel.cli.client import client_from
from evenkeel.cli.output_forms import COLUMNS, JSONPATH, WORDS
from evenkeel.errors import EvenkeelError

USAGE = "bash|zsh|tcsh | containers POD [-n NS]"
CONTAINERS = "containers"  # for the scripts: prints the names of a pod's containers
EXAMPLES = """examples:
  evenkeel completion bash | sudo tee /etc/bash_completion.d/evenkeel
  evenkeel completion zsh > "${fpath[1]}/_evenkeel"
"""

# The names of pods come from the agent, for the namespace and state directory on the command line so far.
_PREAMBLES = {
    "bash": """
_evenkeel_asked() {
  local flags=() i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "${COMP_WORDS[i]}" in
      -n | --namespace | --state-dir) flags+=("${COMP_WORDS[i]}" "${COMP_WORDS[i + 1]}") ;;
    esac
  done
  evenkeel get pods -o name "${flags[@]}" 2>/dev/null
}
_evenkeel_pods() {
  local names
  names=$(_evenkeel_asked)
  compgen -W "${names//pod\\//}" -- "$1"
}
_evenkeel_containers() {
  local flags=() i pod
  for ((i = 2; i < COMP_CWORD; i++)); do
    case "${COMP_WORDS[i]}" in
      -n | --namespace | --state-dir) flags+=("${COMP_WORDS[i]}" "${COMP_WORDS[++i]}") ;;
      -*) ;;
      *) pod=${pod:-${COMP_WORDS[i]}} ;;
    esac
  done
  compgen -W "$(evenkeel completion containers "${pod#pod/}" "${flags[@]}" 2>/dev/null)" -- "$1"
}
_evenkeel_places() {
  local names
  names=$(_evenkeel_asked)
  compgen -f -- "$1"
  compgen -S : -W "${names//pod\\//}" -- "$1"
}
_evenkeel_kinds() {
  compgen -W "pods deployments replicasets statefulsets daemonsets jobs cronjobs services pvc configmaps secrets \\
    node events" -- "$1"
}
_evenkeel_forms() {
  compgen -W "FORMS" -- "$1"
}
""".replace("FORMS", " ".join((*WORDS, JSONPATH, COLUMNS))),
    "zsh": """
_evenkeel_pods() {
  local -a names flags
  local i
  for ((i = 1; i < CURRENT; i++)); do
    case "${words[i]}" in
      -n | --namespace | --state-dir) flags+=("${words[i]}" "${words[i + 1]}") ;;
    esac
  done
  names=(${${(f)"$(evenkeel get pods -o name "${flags[@]}" 2>/dev/null)"}#pod/})
  compadd "$@" -a names
}
_evenkeel_places() {
  _files
  _evenkeel_pods -S :
}
_evenkeel_containers() {
  local -a names flags
  local i pod
  for ((i = 3; i < CURRENT; i++)); do
    case "${words[i]}" in
      -n | --namespace | --state-dir) flags+=("${words[i]}" "${words[++i]}") ;;
      -*) ;;
      *) pod=${pod:-${words[i]}} ;;
    esac
  done
  names=(${(f)"$(evenkeel completion containers "${pod#pod/}" "${flags[@]}" 2>/dev/null)"})
  compadd -a names
}
""",
}
_KIND_WORDS = (
    "pods deployments replicasets statefulsets daemonsets jobs cronjobs "
    "services pvc configmaps secrets node events"
)
_NAMES = {"bash": "_evenkeel_pods", "zsh": "_evenkeel_pods"}
_FORM_WORDS = f"({' '.join((*WORDS, JSONPATH, COLUMNS))})"
_FORMS = {"bash": "_evenkeel_forms", "zsh": _FORM_WORDS, "tcsh": _FORM_WORDS}
_KINDS = {"bash": "_evenkeel_kinds", "zsh": f"({_KIND_WORDS})", "tcsh": f"({_KIND_WORDS})"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh", CONTAINERS))
    parser.add_argument("pods", nargs="?", metavar="POD", default="", help=f"for {CONTAINERS}: the pod")
    add_namespace_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    if args.shell == CONTAINERS:
        from evenkeel.cli.attached import containers_of

        for names in containers_of(client_from(args).pod(args.namespace, args.pods)):
            print(*names, sep="\n", end="\n" if names else "")
        return 0
    try:
        import shtab
    except ImportError:
        raise EvenkeelError(
            "completion needs the package shtab", hint="pip install 'evenkeel[completion]'"
        ) from None
    from evenkeel.cli.main import COMMANDS, build_parser

    parser = build_parser(list(COMMANDS))
    for action in _every_action(parser):
        if action.dest == "pods" and args.shell in _NAMES:
            action.complete = _NAMES  # type: ignore[attr-defined]
        elif action.dest == "container" and args.shell in _NAMES:
            action.complete = dict.fromkeys(_NAMES, "_evenkeel_containers")  # type: ignore[attr-defined]
        elif action.dest in ("source", "target") and args.shell in _NAMES:
            action.complete = dict.fromkeys(_NAMES, "_evenkeel_places")  # type: ignore[attr-defined]
        elif action.dest == "output" and action.choices is None:
            action.complete = _FORMS  # type: ignore[attr-defined]
        elif action.dest == "kind":
            action.complete = _KINDS  # type: ignore[attr-defined]
        elif action.metavar in ("FILE", "SNAPSHOT"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in ("PATH", "DIR"):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=args.shell, preamble=_PREAMBLES.get(args.shell, "")))
    return 0


def _every_action(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in set(action.choices.values()):
                yield from _every_action(command)
        else:
            yield action
