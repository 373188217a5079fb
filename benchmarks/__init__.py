"""Benchmarks: part of the product."""
