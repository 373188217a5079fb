"""Checks and headers that apply to every request."""
