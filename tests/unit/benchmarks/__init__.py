"""How benchmarks report."""
