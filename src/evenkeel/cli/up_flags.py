"""The flags of `evenkeel up`, and the conversion of the flags for a cluster and for TCP.

The modules for both are imported only if their flags are given."""

import argparse
from typing import TYPE_CHECKING

from evenkeel.api.config import KubeletConfiguration, flag_of
from evenkeel.cli.arguments import add_node_name_flag, add_state_flag
from evenkeel.cli.config_flags import add_config_flags, given_fields
from evenkeel.errors import EvenkeelError

if TYPE_CHECKING:
    from evenkeel.kube.cluster import Cluster
    from evenkeel.server.tcp import TcpEndpoint


def add_up_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        metavar="FILE|DIR",
        nargs="*",
        help="manifests, and directories of them; changes are followed",
    )
    parser.add_argument(
        "--stop-pods", action="store_true", help="stop every pod when the agent ends (default: they run on)"
    )
    parser.add_argument(
        "--node", metavar="NODE", help="how much of this machine to use (32Gi,8cpu); default: all of it"
    )
    add_state_flag(parser)
    _add_cluster_flags(parser)
    _add_listen_flags(parser)
    add_config_flags(parser)


def cluster_from(args: argparse.Namespace) -> "Cluster | None":
    if not args.kubeconfig:
        for flag in ("hostname_override", "node_ip", "node_labels"):
            if getattr(args, flag):
                raise EvenkeelError(f"--{flag.replace('_', '-')} needs --kubeconfig")
        return None
    from evenkeel.kube import cluster

    return cluster.cluster_from(
        cluster.ClusterFlags(
            args.kubeconfig, args.hostname_override, args.node_ip, args.node_labels, args.state_dir
        )
    )


def endpoint_from(args: argparse.Namespace, config: KubeletConfiguration) -> "TcpEndpoint | None":
    if args.listen is None:
        for flag in ("token_file", "admin_token_file"):
            if getattr(args, flag):
                raise EvenkeelError(f"--{flag.replace('_', '-')} needs --listen")
        given = given_fields(args)
        for field in ("tls_cert_file", "tls_private_key_file"):
            if field in given and not args.kubeconfig:
                raise EvenkeelError(f"{flag_of(field)} needs --listen or --kubeconfig")
        return None
    from evenkeel.server import tcp

    return tcp.endpoint_from(
        tcp.TcpFlags(
            args.listen,
            config.tls_cert_file,
            config.tls_private_key_file,
            args.token_file,
            args.admin_token_file,
            args.listen_beyond_loopback,
        )
    )


def _add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "cluster", "This machine as a node of a Kubernetes cluster (docs/cluster.md)."
    )
    group.add_argument(
        "--kubeconfig", metavar="FILE", default="", help="take pods from this cluster, and report to it"
    )
    add_node_name_flag(group)
    group.add_argument(
        "--node-ip",
        metavar="ADDRESS",
        default="",
        help="the node's address (default: that from which it reaches others)",
    )
    group.add_argument(
        "--node-labels", metavar="NAME=VALUE,…", default="", help="labels of the node, beside the usual ones"
    )


def _add_listen_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        help="answer over TCP, too, with TLS and a token, such as 127.0.0.1:10250 (default: only the Unix socket)",
    )
    parser.add_argument(
        "--token-file", metavar="FILE", default="", help="the file with the token for reading (mode 0600)"
    )
    parser.add_argument(
        "--admin-token-file",
        metavar="FILE",
        default="",
        help="the file with the token for applying and deleting pods over TCP (default: not possible)",
    )
    parser.add_argument(
        "--listen-beyond-loopback", action="store_true", help="allow an address that other machines can reach"
    )
