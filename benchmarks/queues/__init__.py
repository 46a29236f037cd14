"""Contestants on PostgreSQL, each in a module of its own.

A module offers `SETTINGS`, `WORKERS` (processes to start), `prepare(url)`, `work(url)`, which is
the life of one worker process, and `client(url, folder)`, a context with `enqueue(count)`,
`done()` (tasks that have ended well) and `send(n)` (one task that tells when it starts).
"""
