"""The host: processes, cgroups, mounts, and commands."""
