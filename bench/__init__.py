"""Benchmarks of sdpakit: `python -m bench` from a checkout (see bench/README.md)."""
