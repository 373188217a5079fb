"""The benchmark workloads."""
