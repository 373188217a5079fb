"""The lifecycle of boxes: create, start, suspend, resume, fork, remove."""
