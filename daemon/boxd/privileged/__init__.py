"""The part of the service that needs root: boxes, mounts, and the service's own servers."""
