"""The routes of the HTTP API, one family a file. Protocol adapter only."""
