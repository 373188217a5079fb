"""Code that the daemon imports as well. Nothing here acts on a box."""
