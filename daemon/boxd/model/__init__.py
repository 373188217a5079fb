"""What the service talks about: boxes, owners, keys, catalogs. Pure data."""
