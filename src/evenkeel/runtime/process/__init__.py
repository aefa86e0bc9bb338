"""The embedded runtime: a container is a process tree of the host's own programs."""
