"""/github/webhook."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from service.context import Context
from service.github import service
from service.github.schemas import WebhookAnswer

WEBHOOK_PATH = "/github/webhook"
MAX_WEBHOOK_BYTES = 25 * 2**20  # what GitHub says is the most it sends

router = APIRouter(tags=["github"])


@router.post(WEBHOOK_PATH, status_code=202)
async def take_webhook(request: Request, context: Context) -> WebhookAnswer:
    """Take a webhook of GitHub: who sent it is known by its signature, what it asks for is done soon after."""
    headers = request.headers
    received = service.Received(
        body=await request.body(),
        signature=headers.get("x-hub-signature-256"),
        event=headers.get("x-github-event", ""),
        delivery_id=headers.get("x-github-delivery", ""),
    )
    return await run_in_threadpool(service.accept, context, received)
