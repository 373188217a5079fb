"""The OpenAPI document and the page `/docs`, both made of the descriptions of the routes."""
