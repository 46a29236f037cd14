"""Implementations of the ports, one folder per port. Only `app` chooses among them."""
