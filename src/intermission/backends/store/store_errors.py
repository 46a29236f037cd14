"""What every store tells its callers, in one wording: taken, changed, missing, corrupt."""

from __future__ import annotations

from collections.abc import Callable

from intermission.errors import AlreadyExists, CorruptArtifact, NotFound, StoreError


def taken(key: str, where: str) -> AlreadyExists:
    return AlreadyExists(
        f"there is an object {key} in {where} already.", remedy="The first one stands."
    )


def changed(key: str, where: str, *, is_there: bool) -> AlreadyExists:
    return AlreadyExists(
        f"expected {key} in {where} to be unchanged, found "
        f"{'another version' if is_there else 'it removed'}.",
        remedy="Read it again and decide anew.",
    )


def missing(key: str, where: str) -> NotFound:
    return NotFound(f"there is no object {key} in {where}.")


def whole_range(key: str, where: str, found: bytes, offset: int, size_bytes: int) -> bytes:
    """The bytes that were read of an object, if they are as many as were asked for."""
    if len(found) == size_bytes:
        return found
    raise StoreError(
        f"expected {size_bytes} bytes of {key} in {where} from byte {offset} on, found "
        f"{len(found)}.",
        remedy="Verify the job's artifacts: something shortened this one.",
    )


def verify(
    key: str,
    where: str,
    *,
    size_bytes: int,
    sha256: str,
    found_bytes: int | None,
    digest: Callable[[], str],
) -> None:
    """Raise `CorruptArtifact` unless an object is there with these bytes.

    `found_bytes` is None where there is none; `digest` is asked only if the size is right.
    """
    if found_bytes is None:
        found = "no object"
    elif found_bytes != size_bytes:
        found = f"{found_bytes} bytes"
    else:
        found_sha256 = digest()
        if found_sha256 == sha256:
            return
        found = f"SHA-256 {found_sha256}"
    raise CorruptArtifact(
        f"expected {size_bytes} bytes with SHA-256 {sha256} under {key} in {where}, found {found}.",
        task_key="",
        key=key,
        remedy="The task that made it has to run again.",
    )
