"""The authorisation matrix, and a service that checks it."""
