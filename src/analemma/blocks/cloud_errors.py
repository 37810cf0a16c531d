"""Turns what obstore raises into our errors, once. Its texts are searched, not repeated: they may hold signed URLs."""

from __future__ import annotations

import re

from analemma.blocks.port import missing
from analemma.errors import AnalemmaError, Denied, Invalid, OutcomeUnknown, Unavailable

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>|\"code\": ?\"?(\w{1,64})")
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_NEVER_SENT = re.compile(r"kind: (Connect|Builder)|dns error")
_TRANSIENT_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504}
_SEARCHED_CHARACTERS = 4000


def translate(exc: BaseException, *, place: str, key: str | None, writing: bool = False) -> AnalemmaError:
    """Our error for one of obstore's; `place` is the store's URL without its secrets."""
    text = str(exc)[:_SEARCHED_CHARACTERS]
    kind = type(exc).__name__
    found_status = _STATUS.search(text)
    status = int(found_status[1]) if found_status else None
    # Only behind the status, where the server's answer begins: in front of it stands the key, which may say anything.
    found_code = _CODE.search(text, found_status.end()) if found_status else None
    code = (found_code[1] or found_code[2]) if found_code else None
    reason = code or (f"status {status}" if status else "no answer")
    about = f"{place}: object {key}" if key else place

    if code in _NO_BUCKET:
        return Unavailable(f"{place}: no such bucket", hint="create the bucket, or correct the URL")
    if isinstance(exc, FileNotFoundError) and key is not None:
        return missing(key)
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403):
        return Denied(f"{about}: access refused ({reason})", hint="check the credentials and what they may do")
    if kind in ("UnknownConfigurationKeyError", "InvalidPathError"):
        return Invalid(f"{about}: obstore does not accept this name or setting", hint="check the object store URL")
    if status in (301, 307, 308, 400):
        return Unavailable(f"{about}: request refused ({reason})", hint="check the region and endpoint in the URL")
    if status is not None and status not in _TRANSIENT_STATUSES:
        return Unavailable(f"{about}: request refused ({reason})", hint="check the object store")
    if status is None and kind not in ("GenericError", "JoinError"):
        return Unavailable(f"{about}: {kind}", hint="check the object store URL")
    # A write that was sent may have happened although its answer never came.
    error = OutcomeUnknown if writing and not _NEVER_SENT.search(text) else Unavailable
    return error(f"{about}: {reason}", hint="check the network and the endpoint", transient=True)
