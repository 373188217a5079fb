"""Credentials as stored: API keys, shares, sessions of browsers, and what belongs to one key."""
