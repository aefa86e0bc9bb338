"""The cgroup tree: what we want as data (tree, plan, diff), and later the drivers that write it."""
