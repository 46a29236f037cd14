"""Servers that tests start for themselves, and a proxy that makes them misbehave."""
