"""The node around the pods: its cgroups, its set-up, its daemons, and what the kernel reports."""
