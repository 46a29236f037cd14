"""A fleet under random faults, and a judge who says whether anything went wrong.

`make chaos MINUTES=30 SEED=7` runs it by hand, `test_chaos.py` for three minutes. Everything goes
through the command line, the HTTP API and `--json`, as a stranger would use them; what is read
from the disk is what `docs/reference/workspace.md` promises.
"""
