"""Benchmark workloads for any directory. The package uses nothing else of the drive."""
