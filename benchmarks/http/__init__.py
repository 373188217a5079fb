"""Exec, files and the proxy over HTTP."""
