"""Ledgers: who works on what, in a file or in a database.

Each is one implementation of `ports/ledger.py` and proves itself with the contract suite in
`intermission.testing.ledger`. None of them imports another.
"""
