"""Containers through the Container Runtime Interface: containerd, CRI-O."""
