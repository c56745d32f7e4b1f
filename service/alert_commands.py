"""`s2bench alert`: alerts of a server, over HTTP."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import typer

from service.command_options import DEFAULT_SERVER, AsJson, Server, TokenOption, connection, print_json
from service.report import percent_text

alert_app = typer.Typer(help="Alerts: one per cause.", no_args_is_help=True)


@alert_app.command("list")
def alert_list(
    state: Annotated[str | None, typer.Option(help="open, acknowledged, expected, fixed or invalid.")] = None,
    repository: Annotated[str | None, typer.Option(help="Registered name.")] = None,
    server: Server = DEFAULT_SERVER,
    token: TokenOption = None,
    as_json: AsJson = False,
) -> None:
    """List the newest alerts."""
    asked = {"state": state, "repository": repository, "limit": 50}
    with connection(server, token) as client:
        found = client.request("GET", "/alerts", params={key: value for key, value in asked.items() if value})
    if as_json:
        print_json(found)
        return
    for alert in found["items"]:
        print(_line(alert))


@alert_app.command("show")
def alert_show(
    alert_id: Annotated[UUID, typer.Argument(help="Id of the alert.")],
    server: Server = DEFAULT_SERVER,
    token: TokenOption = None,
    as_json: AsJson = False,
) -> None:
    """Show an alert with its cases and what happened to it."""
    with connection(server, token) as client:
        alert = client.request("GET", f"/alerts/{alert_id}")
    print_json(alert) if as_json else _show(alert)


@alert_app.command("set")
def alert_set(
    alert_id: Annotated[UUID, typer.Argument(help="Id of the alert.")],
    state: Annotated[str | None, typer.Option(help="open, acknowledged, expected, fixed or invalid.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why; needed unless it is open or fixed.")] = None,
    assignee: Annotated[str | None, typer.Option(help="Who looks after it; empty for nobody.")] = None,
    server: Server = DEFAULT_SERVER,
    token: TokenOption = None,
    as_json: AsJson = False,
) -> None:
    """Say what an alert is, and who looks after it."""
    wanted = {"state": state, "reason": reason, "assignee": assignee}
    body = {name: value for name, value in wanted.items() if value is not None}
    with connection(server, token) as client:
        alert = client.request("PATCH", f"/alerts/{alert_id}", json=body)
    print_json(alert) if as_json else _show(alert)


def _line(alert: dict[str, Any]) -> str:
    change = f"#{alert['pull_request']}" if alert["pull_request"] else f"{alert['base'][:10]}..{alert['head'][:10]}"
    parts = [alert["id"], f"{alert['state']:<12}", f"{alert['kind']:<8}", alert["repository"], change, alert["group"]]
    return "  ".join([*parts, *([f"({alert['assignee']})"] if alert["assignee"] else [])])


def _show(alert: dict[str, Any]) -> None:
    print(_line(alert))
    if alert["head_url"]:
        print(f"  {alert['base_url']}\n  {alert['head_url']}")
    if alert["reason"]:
        print(f"  {alert['reason']}")
    for case in alert["cases"]:
        recovered = "  recovered" if case["recovered"] else ""
        print(f"  {percent_text(case['effect']):>10}  {case['case']}  {case['device_class']}{recovered}")
    for event in alert["events"]:
        print(f"  {event['at']}  {event['kind']}  {event['actor']}")
