"""Workloads: which pods a workload should have, from its object, its present pods and the time. Nothing here acts."""
