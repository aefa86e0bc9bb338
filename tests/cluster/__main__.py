"""`python -m tests.cluster up|build`: a cluster to try, and the programs that it is made of."""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.cluster.binaries import control_plane_programs, kubelet
from tests.cluster.control_plane import ControlPlane
from tests.machines import Unavailable
from tests.machines.host import require_root


def main(arguments: list[str]) -> int:
    settings = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        settings.action(settings)
    except Unavailable as reason:
        print(f"cluster: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _build(settings: argparse.Namespace) -> None:
    print(control_plane_programs())
    if settings.kubelet:
        print(kubelet())


def _up(settings: argparse.Namespace) -> None:
    require_root()
    with (
        tempfile.TemporaryDirectory(prefix="evenkeel-cluster-") as temporary,
        ControlPlane(Path(settings.directory or temporary, "plane")) as plane,
    ):
        plane.bootstrap_kubeconfig()
        for place in map(plane.place, settings.nodes):
            flags = (
                f"--hostname-override {place.name} --node-ip {place.address} --kubeconfig {place.kubeconfig}"
            )
            print(f"{' '.join(place.network.within)} evenkeel up {flags}")
        print(f"export KUBECONFIG={plane.admin_kubeconfig}")
        print(f"alias kubectl={plane.kubectl_program}", flush=True)
        signal.pause()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster")
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    build = actions.add_parser(
        "build", help="build the programs of the control plane, and say where they are"
    )
    build.add_argument("--kubelet", action="store_true", help="the kubelet, too")
    build.set_defaults(action=_build)

    up = actions.add_parser("up", help="a control plane, until Ctrl-C")
    up.add_argument(
        "--plane-only",
        action="store_true",
        help="places for nodes, and the commands that would start them there",
    )
    up.add_argument("--directory", help="for keys, data and logs, which are kept; default a temporary one")
    up.add_argument("--nodes", nargs="+", default=["node1", "node2", "node3"], metavar="NAME")
    up.set_defaults(action=_up)
    return parser


def _terminated(number: int, _frame: object) -> None:
    """End as by ^C, so that everything started is ended as well."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
