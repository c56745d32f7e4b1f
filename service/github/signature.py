"""Whether a webhook was sent by who knows the secret."""

from __future__ import annotations

from gidgethub import ValidationFailure, sansio


def is_genuine(body: bytes, signature: str | None, secret: str) -> bool:
    """Say whether `signature` (X-Hub-Signature-256) is the HMAC-SHA256 of the body, compared in constant time.

    The older SHA-1 header is not looked at: GitHub sends both.
    """
    if signature is None or not signature.isascii() or not signature.startswith("sha256="):
        return False
    try:
        sansio.validate_event(body, signature=signature, secret=secret)
    except ValidationFailure:
        return False
    return True
