"""The HTTP API. Protocol adapter only."""
