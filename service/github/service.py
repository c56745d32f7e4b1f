"""Takes webhooks: known senders only, each event once. What has to be done about them is `service.github.intake`'s."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from service.context import AppContext
from service.errors import InvalidInput, NotFound, Unauthenticated
from service.github.schemas import WebhookAnswer, read_event, storable
from service.github.signature import is_genuine
from service.models import Delivery, DeliveryKind, WebhookDelivery
from service.models.upsert import insert_if_new


@dataclass(frozen=True)
class Received:
    """A request to the webhook's address as it came."""

    body: bytes
    signature: str | None
    event: str
    delivery_id: str


def accept(context: AppContext, received: Received) -> WebhookAnswer:
    """Verify a webhook and store what has to be done; everything slow is left to the outbox.

    Raises
    ------
    NotFound
        When no webhook secret is set: nobody could be believed.
    Unauthenticated
        When the signature is not that of the body.
    InvalidInput
        When a genuine body is not what GitHub sends under this event's name.
    """
    secret = context.settings.github_webhook_secret
    if secret is None:
        raise NotFound("webhooks_off", "webhooks are off: an administrator sets S2BENCH_GITHUB_WEBHOOK_SECRET")
    if not is_genuine(received.body, received.signature, secret.get_secret_value()):
        message = "X-Hub-Signature-256: expected the HMAC-SHA256 of the body under the webhook's secret"
        raise Unauthenticated("bad_signature", message)
    if not 0 < len(received.delivery_id) <= 100 or not received.delivery_id.isprintable():
        raise InvalidInput.of("invalid_request", "X-GitHub-Delivery", received.delivery_id, "an id")
    try:
        event = read_event(received.event, _object(received.body))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        expected = f"a JSON payload of the event {storable(received.event, 60)!a} (content type application/json)"
        raise InvalidInput.of("invalid_payload", "body", received.body[:40], expected) from None
    if isinstance(event, str):
        return WebhookAnswer(outcome="ignored", detail=event)
    values = {
        "delivery_id": received.delivery_id,
        "body_sha256": hashlib.sha256(received.body).hexdigest(),
        "event": received.event,
        "payload": event.model_dump(mode="json"),
    }
    with context.database.transaction() as session:
        webhook_id = insert_if_new(session, WebhookDelivery, values)
        if webhook_id is None:
            return WebhookAnswer(outcome="duplicate")
        session.add(Delivery(kind=DeliveryKind.WEBHOOK, subject_id=webhook_id))
    return WebhookAnswer(outcome="accepted")


def _object(body: bytes) -> dict[str, object]:
    payload = json.loads(body)
    if not isinstance(payload, dict):
        raise TypeError("no object")
    return payload
