"""The docker backend: boxes as containers of a Docker engine."""
