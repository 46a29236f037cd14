"""What workers and their server say to each other over HTTP: the shapes of every call and answer.

The worker's client owns them, and the server's endpoints get them here: one set for both sides.
"""

from intermission.backends.http import work_schema

__all__ = ["work_schema"]
