"""Volumes of workspaces: provisioning, credentials, mount processes, drive access."""
