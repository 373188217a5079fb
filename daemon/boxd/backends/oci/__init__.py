"""The OCI configuration of a box, and the mounts in it."""
