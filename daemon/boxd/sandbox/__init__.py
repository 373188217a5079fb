"""Least privilege for the service's own processes.

A sandboxed process has an own unprivileged user, no capabilities, no-new-privs, a list of system
calls, and a root directory with only the paths that it needs. SECURITY.md has the table of all
processes; a test compares it with /proc.
"""
