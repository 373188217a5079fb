"""Workspaces and their drives on real servers."""
