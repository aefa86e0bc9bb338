"""How the programs of the control plane are started: as an administrator would, with nothing made laxer for tests."""

from pathlib import Path

from tests.cluster.authority import Authority

ADDRESS = "10.250.0.1"  # of the control plane, on the network of the nodes
SERVICES = "10.251.0.0/16"
# The API server is where pods look for it, the first address of all services: so they need no kube-proxy.
SERVICE_ADDRESS = "10.251.0.1"
API_PORT = 443
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259
URL = f"https://{ADDRESS}:{API_PORT}"
_ETCD = "http://127.0.0.1:2379"
_NAMES = (
    "IP:127.0.0.1", f"IP:{ADDRESS}", f"IP:{SERVICE_ADDRESS}", "DNS:localhost", "DNS:kubernetes",
    "DNS:kubernetes.default", "DNS:kubernetes.default.svc", "DNS:kubernetes.default.svc.cluster.local",
)  # fmt: skip


def etcd_flags(directory: Path) -> list[str]:
    """On the loopback of the control plane's own network namespace, where only the API server is."""
    return [
        f"--data-dir={directory / 'etcd'}",
        "--unsafe-no-fsync",  # this cluster need not outlive the machine
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--log-level=warn",
    ]


def api_server_flags(authority: Authority, proxies: Authority, account_keys: tuple[Path, Path]) -> list[str]:
    """`proxies` is the authority of those that may speak for others; `account_keys` are those of service accounts'
    tokens, the public and the private one."""
    public, private = account_keys
    proxy, proxy_key = proxies.client("front-proxy-client", "front-proxy-client")
    to_nodes, to_nodes_key = authority.client("kubelet-client", "kube-apiserver-kubelet-client")
    return [
        f"--etcd-servers={_ETCD}",
        f"--advertise-address={ADDRESS}",
        f"--secure-port={API_PORT}",
        *_serving(authority, "kube-apiserver", *_NAMES),
        f"--client-ca-file={authority.certificate}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--enable-bootstrap-token-auth",
        f"--service-cluster-ip-range={SERVICES}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={public}",
        f"--service-account-signing-key-file={private}",
        f"--kubelet-client-certificate={to_nodes}",
        f"--kubelet-client-key={to_nodes_key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={proxies.certificate}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={proxy}",
        f"--proxy-client-key-file={proxy_key}",
        "--allow-privileged",
    ]


def controller_manager_flags(
    authority: Authority,
    kubeconfig: Path,
    account_keys: tuple[Path, Path],
    *,
    node_monitor_grace_seconds: int,
) -> list[str]:
    return [
        *_client(kubeconfig),
        *_serving(authority, "kube-controller-manager", "IP:127.0.0.1"),
        "--controllers=*,bootstrapsigner,tokencleaner",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={account_keys[1]}",
        f"--root-ca-file={authority.certificate}",
        f"--cluster-signing-cert-file={authority.certificate}",
        f"--cluster-signing-key-file={authority.key}",
        f"--node-monitor-grace-period={node_monitor_grace_seconds}s",
    ]


def scheduler_flags(authority: Authority, kubeconfig: Path) -> list[str]:
    return [*_client(kubeconfig), *_serving(authority, "kube-scheduler", "IP:127.0.0.1")]


def _client(kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",  # there is one of each; and it goes on when the API server was away
        "--bind-address=127.0.0.1",
    ]


def _serving(authority: Authority, name: str, *addresses: str) -> list[str]:
    certificate, key = authority.server(name, *addresses)
    return [f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"]
