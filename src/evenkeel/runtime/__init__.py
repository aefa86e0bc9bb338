"""How containers are run: one small interface and its implementations."""
