"""The service: box lifecycle, SSH front door, HTTP API."""
