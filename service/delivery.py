"""The process that talks to the outside world: works on webhooks and brings out what they are waiting for.

`s2bench outbox` runs it alone; `s2bench up` in a thread beside the API. Several may run at once.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from service import logs
from service.context import AppContext
from service.github.client import GitHubClient
from service.github.delivering import Delivering
from service.github.intake import Intake
from service.github.polling import poll
from service.logs import logger
from service.models import DeliveryKind
from service.notify.service import Notices
from service.outbox.runner import Handler, Outbox
from service.settings import Settings

POLL_S = 1.0
AFTER_DEFECT_S = 5.0
STOP_TIMEOUT_S = 20.0  # a call that hangs ends sooner


@contextmanager
def opened_outbox(context: AppContext) -> Iterator[tuple[Outbox, GitHubClient | None]]:
    """Yield an outbox with a handler for everything that these settings allow; for one thread."""
    github = GitHubClient(context.settings) if context.settings.answers_github else None
    intake = Intake(context, github)
    handlers: dict[str, Handler] = {
        DeliveryKind.WEBHOOK: intake.handle,
        DeliveryKind.NOTICE: Notices(context).handle,  # without targets they are done with, not kept for the first one
    }
    if github is not None:
        delivering = Delivering(context, github)
        handlers |= {DeliveryKind.CHECK: delivering.check, DeliveryKind.COMMENT: delivering.comment}
    try:
        yield Outbox(context.database, handlers), github
    finally:
        if github is not None:
            github.close()


def deliver_until(context: AppContext, stopping: threading.Event) -> None:
    """Work until stopped."""
    with opened_outbox(context) as (outbox, github):
        logger.info("outbox_ready", kinds=sorted(outbox.handlers))
        intake = Intake(context, github)
        next_poll = time.monotonic()
        while not stopping.is_set():
            try:
                if time.monotonic() >= next_poll:
                    next_poll = time.monotonic() + context.settings.github_poll_s
                    if github is not None:
                        poll(intake, github)
                outbox.run(stopping, POLL_S, until=next_poll)
            except Exception:  # a defect must not end what everybody waits for
                logger.exception("outbox_broke")
                stopping.wait(AFTER_DEFECT_S)


def run_outbox(settings: Settings) -> int:
    """Work until SIGTERM or Ctrl-C; return the exit code."""
    from service.main import make_context, require_current_schema

    logs.configure(settings.log_level, as_json=settings.log_json)
    context = make_context(settings)
    require_current_schema(context.database)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        deliver_until(context, stopping)
    finally:
        context.refs.close()
        context.database.dispose()
    return 0


@contextmanager
def delivering_beside(settings: Settings) -> Iterator[None]:
    """Deliver in a thread of this process while the block runs."""
    from service.main import make_context

    context = make_context(settings)
    stopping = threading.Event()
    thread = threading.Thread(target=deliver_until, args=(context, stopping), name="outbox", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(STOP_TIMEOUT_S)
        context.refs.close()
        context.database.dispose()
