"""The cgroup tree: what is wanted as data (tree, plan, diff), and the drivers that write it."""
