"""The HTTP listener: uvicorn with the protocols and limits of this service."""
