"""This machine as a node of a Kubernetes cluster. Imported only with `--kubeconfig`."""
