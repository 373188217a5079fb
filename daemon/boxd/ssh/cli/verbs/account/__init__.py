"""Verbs for the account of the owner: keys, limits, secrets, profiles, workspaces and tasks."""
