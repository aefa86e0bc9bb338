"""The server of a cluster's node on port 10250: kubelet's addresses, for the API server and for those it trusts."""
