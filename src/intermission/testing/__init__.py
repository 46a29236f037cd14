"""What ships for tests: fault points, fake clocks, and the suites a backend proves itself with.

Nothing of the product imports this package.
"""
