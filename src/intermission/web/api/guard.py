"""Who may use the public API, everybody on this machine or whoever has the admin secret; and how.

What every endpoint would otherwise have to check for itself is checked here.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable
from typing import Annotated, get_origin

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import SecretStr

from intermission.web.problems import Problem

_BEARER = HTTPBearer(
    scheme_name="adminSecret", auto_error=False, description="The setting `admin_secret`."
)
_REMEDY = "Send `Authorization: Bearer`, and the server's admin_secret."

Given = Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]


def secret_of(secret: SecretStr | None) -> str:
    """The secret as text; "" where none is set."""
    return "" if secret is None else secret.get_secret_value()


def admin_only(secret: SecretStr | None) -> Callable[[Given], None]:
    """A dependency that lets nobody pass without the secret, if there is one."""
    expected = secret_of(secret).encode()

    def check(given: Given) -> None:
        if not expected:
            return
        if given is None:
            raise Problem(
                401,
                "A secret is needed",
                "the request has no admin secret.",
                remedy=_REMEDY,
                headers={"WWW-Authenticate": "Bearer"},
            )
        if not hmac.compare_digest(given.credentials.encode(errors="replace"), expected):
            raise Problem(403, "The secret is wrong", "this is not its secret.", remedy=_REMEDY)

    return check


def known_parameters(request: Request) -> None:
    """Refuse a query parameter that nobody reads: a filter misspelt would filter nothing.

    So would the first of two where one is expected.
    """
    fields = request.scope["route"].dependant.query_params
    known = {field.alias: get_origin(field.field_info.annotation) is list for field in fields}
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            raise Problem(
                422,
                "There is no such parameter",
                f"there is no query parameter {name[:80]!r}.",
                remedy=f"There are: {', '.join(sorted(known)) or 'none'}.",
            )
        if count > 1 and not known[name]:
            raise Problem(
                422,
                "The parameter is given twice",
                f"the query parameter {name!r} takes one value, and {count} were sent.",
                remedy="Send one.",
            )
