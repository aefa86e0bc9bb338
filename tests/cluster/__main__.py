"""`python -m tests.cluster up|build|e2e`: a cluster to try, its programs, and upstream's tests on it."""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path

from tests.cluster import upstream
from tests.cluster.binaries import control_plane_programs, kubelet
from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import node
from tests.machines import Unavailable, ending
from tests.machines.cache import CACHE
from tests.machines.host import kernel_settings_kept, require_cgroups, require_root

EXAMPLE = Path(__file__).parent / "greeter.yaml"


def main(arguments: list[str]) -> int:
    settings = _parser().parse_args(arguments)
    ending.as_by_interrupt()
    try:
        with kernel_settings_kept():
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
    with contextlib.ExitStack() as opened:
        temporary = opened.enter_context(tempfile.TemporaryDirectory(prefix="evenkeel-cluster-"))
        directory = Path(settings.directory or temporary)
        print("starting a control plane", flush=True)
        plane = opened.enter_context(ControlPlane(directory / "plane"))
        plane.bootstrap_kubeconfig()
        if settings.plane_only:
            for place in map(plane.place, settings.nodes):
                flags = f"--hostname-override {place.name} --node-ip {place.address}"
                command = f"evenkeel up --kubeconfig {place.kubeconfig} {flags} --pod-cidr {place.pod_cidr}"
                print(f"{' '.join(place.network.within)} {command}")
        else:
            require_cgroups()
            for name in settings.nodes:
                print(f"starting {name}", flush=True)
                opened.enter_context(node(plane, name, directory / name)).start()
        print(_invitation(plane), flush=True)
        if not settings.plane_only:
            print(_look_inside(directory / settings.nodes[0] / "state"), flush=True)
        print("Ctrl-C here ends and removes everything.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
        print("\nending everything, which takes some seconds", flush=True)


def _end_to_end(settings: argparse.Namespace) -> None:
    require_root()
    require_cgroups()
    with tempfile.TemporaryDirectory(prefix="evenkeel-e2e-") as temporary:
        found = upstream.run(
            Path(temporary), focus=settings.focus, skip=settings.skip, processes=settings.processes
        )
    reported = upstream.table(found)
    Path(settings.table).write_text(reported)
    print(reported)


def _invitation(plane: ControlPlane) -> str:
    """Three commands to try."""
    example = os.path.relpath(EXAMPLE)
    return f"""
In another terminal, as root:
  export KUBECONFIG={plane.admin_kubeconfig} PATH={plane.kubectl_program.parent}:$PATH

  kubectl get nodes -o wide
  kubectl apply -f {example} && kubectl rollout status deployment/greeter
  kubectl scale deployment/greeter --replicas=9 && kubectl get pods -o wide
"""


def _look_inside(state: Path) -> str:
    """For what kubectl does not ask a node: `evenkeel why` and others."""
    program = os.path.relpath(Path(sys.executable).with_name("evenkeel"))
    return f"""What a node says itself:
  export EVENKEEL_STATE_DIR={state}
  {program} get pods
  {program} why POD
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster")
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    build = actions.add_parser(
        "build", help="build the programs of the control plane, and say where they are"
    )
    build.add_argument("--kubelet", action="store_true", help="the kubelet, too")
    build.set_defaults(action=_build)

    up = actions.add_parser("up", help="a control plane with nodes, until Ctrl-C")
    up.add_argument(
        "--plane-only",
        action="store_true",
        help="places for nodes, and the commands that would start them there",
    )
    up.add_argument("--directory", help="for keys, data and logs, which are kept; default a temporary one")
    up.add_argument("--nodes", nargs="+", default=["node1", "node2", "node3"], metavar="NAME")
    up.set_defaults(action=_up)

    end_to_end = actions.add_parser("e2e", help="upstream's end-to-end tests, and a table of what they say")
    end_to_end.add_argument("--focus", default=upstream.FOCUS, help="a regular expression for their texts")
    end_to_end.add_argument("--skip", default="", help="a regular expression for those to leave out")
    end_to_end.add_argument("--processes", type=int, default=upstream.PROCESSES, help="tests at once")
    end_to_end.add_argument("--table", default=str(CACHE / "e2e.md"), help="where the table is written")
    end_to_end.set_defaults(action=_end_to_end)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
