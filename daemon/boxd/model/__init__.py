"""The data model of the service: boxes, owners, keys, catalogs. Pure data."""
