"""The agent: it connects the packages below into a node that runs pods."""
