"""Limits: tiers, quotas, the host, admission, and per-owner budgets."""
