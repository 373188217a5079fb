"""Parts of requests and responses: headers, bodies, errors, streams."""
