"""The OpenAPI document and the page `/docs`, both generated from the descriptions of routes."""
