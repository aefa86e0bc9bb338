"""Workloads: from the objects, the pods that exist and the time to the pods that are wanted. Nothing here acts."""
