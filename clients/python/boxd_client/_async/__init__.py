"""The client for asyncio. `scripts/client_sync.py` makes the blocking client from this package."""
