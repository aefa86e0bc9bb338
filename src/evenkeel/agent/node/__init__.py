"""The node around the pods: its cgroups, its setup, its daemons, and the events of the kernel."""
