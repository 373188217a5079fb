"""The blocking client, which `scripts/client_sync.py` makes from the one for asyncio."""
