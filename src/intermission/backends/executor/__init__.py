"""Executors: where claimed tasks run."""
