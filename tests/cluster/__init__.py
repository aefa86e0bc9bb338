"""A real Kubernetes control plane, and Evenkeel as its nodes: for tests, and for trying it (`make cluster`).

etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl are built unmodified from their modules, in
the versions of tests/cluster/module/go.mod; docs/testing.md describes it."""
