"""Stores, event loops and a core without real time or processes."""
