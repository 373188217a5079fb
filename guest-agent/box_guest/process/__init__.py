"""Processes of sessions: starting them, their input and output, terminals."""
