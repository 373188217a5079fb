"""Limits: tiers, quotas, the host, admission, and per-owner budgets.

Operators set the limits of `tiers.toml`. Other limits are constants `MAX_...` in the modules that
enforce them, for example in `boxd.operations.secrets` and `boxd.operations.profiles`.
"""
