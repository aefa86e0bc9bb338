"""`evenkeel join`: makes a kubeconfig with which `evenkeel up` is a node of a cluster, from a bootstrap token."""

import argparse
import asyncio
import shlex
import sys

from evenkeel.cli.arguments import add_node_name_flag, add_state_flag
from evenkeel.errors import EvenkeelError
from evenkeel.host.files import read_text

USAGE = "https://HOST:6443 --token-file FILE --ca-cert-hash sha256:HASH [--hostname-override NAME] [flags]"
EXAMPLES = """examples:
  kubeadm token create --print-join-command            on the control plane: prints address, token and hash
  evenkeel join HOST:6443 --token-file token --ca-cert-hash sha256:…
  evenkeel join https://HOST:6443 --token-file - --certificate-authority ca.crt < token
                                                       a cluster that kubeadm has not made

Then `evenkeel up --kubeconfig FILE`, with the file that it prints, makes this machine a node.
If a join is interrupted, run the same command again.
"""
_TIMEOUT_SECONDS = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="https://HOST:PORT", help="the API server of the cluster")
    token = parser.add_mutually_exclusive_group(required=True)
    token.add_argument(
        "--token-file", metavar="FILE", help="the file with the bootstrap token; - is standard input"
    )
    token.add_argument(
        "--token", metavar="ID.SECRET", help="the token itself; others on this machine can see it meanwhile"
    )
    trust = parser.add_mutually_exclusive_group(required=True)
    trust.add_argument(
        "--ca-cert-hash",
        "--discovery-token-ca-cert-hash",
        metavar="sha256:HASH",
        default="",
        help="the hash of the public key of the cluster's certificate authority, as kubeadm prints it",
    )
    trust.add_argument(
        "--certificate-authority", metavar="FILE", default="", help="the certificate authority itself, in PEM"
    )
    add_node_name_flag(parser)
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=_TIMEOUT_SECONDS,
        help="how long to wait for the certificate (%(default).0f)",
    )
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    from evenkeel.kube.cluster import checked_name
    from evenkeel.kube.join import BootstrapToken, JoinFlags, authority_from, checked_hash, join, server_from
    from evenkeel.policy.lifecycle.pod_status import timestamp

    flags = JoinFlags(
        server_from(args.server),
        BootstrapToken.parse(args.token if args.token is not None else read_text(args.token_file)),
        authority_from(args.certificate_authority) if args.certificate_authority else "",
        checked_hash(args.ca_cert_hash) if args.ca_cert_hash else "",
        checked_name(args.hostname_override),
    )

    async def joined() -> int:
        try:
            async with asyncio.timeout(args.timeout):
                done = await join(flags, args.state_dir, _say_request)
        except TimeoutError:
            raise EvenkeelError(
                f"there is no certificate after {args.timeout:.0f} s",
                hint="approve the request above, and type the same command again",
            ) from None
        name, until = done.certificate.node_name, timestamp(done.certificate.not_after)
        print(
            f"{'joined' if done.is_new else 'this machine has joined'} {flags.server.server} as node {name}"
        )
        print(f"its certificate is valid until {until}, and renewed before; now run\n")
        print(f"  evenkeel up --kubeconfig {shlex.quote(done.kubeconfig)}")
        return 0

    return asyncio.run(joined())


def _say_request(name: str) -> None:
    print(
        f"asked for a certificate; if the cluster approves none by itself: kubectl certificate approve {name}",
        file=sys.stderr,
    )
