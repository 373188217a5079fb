"""Shared code of the tests. Each folder has a topic; the modules here serve all."""
