"""What the HTTP API says of itself, as data: one module for each family of routes.

The framework's own schema would know neither the routes that are plain ASGI nor the errors, so all
of them are described alike; a test compares routes and descriptions both ways.
"""
