"""The public JSON API, one module for each kind of thing it speaks of.

Endpoints translate: they read and change the fleet through its ledger, and decide nothing about
tasks. Those that block are plain functions, which the server runs in threads.
"""
