"""The routes of the HTTP API, one family per file. Protocol adapter only."""
