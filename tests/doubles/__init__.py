"""Test doubles of stores and backends. `tests/contract` runs them and the real ones alike."""
