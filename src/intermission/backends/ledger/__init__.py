"""Ledgers: who works on what, in a file, in a database or in memory.

Each is one implementation of `ports/ledger.py` and proves itself with the contract suite in
`intermission.testing.ledger`. None of them imports another.
"""
