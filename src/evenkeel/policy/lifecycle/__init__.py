"""A pod's life: what is to be started, stopped and said of it, as functions of what is known."""
