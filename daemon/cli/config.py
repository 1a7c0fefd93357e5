"""`kintsugi config`: the settings, and where each value comes from."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import Cli, command, noun
from daemon.cli.output import Columns, table

if TYPE_CHECKING:
    from daemon.config.settings import Scheduler

group = noun("config", "What is set, and by whom.")


@command(group)
def show(
    cli: Cli, origin: Annotated[bool, typer.Option("--origin", help="Who set each value.")] = False
) -> None:
    """Print every setting; secrets are starred out."""
    from daemon.config.settings import origins

    values = origins(**cli.flags)
    if cli.out.json:
        cli.out.document(
            {
                item.setting: {
                    "value": item.value,
                    "origin": item.origin,
                    "variable": item.variable,
                }
                if origin
                else item.value
                for item in values
            }
        )
        return
    rows = [
        [item.setting, "" if item.value is None else item.value, *([item.origin] if origin else [])]
        for item in values
    ]
    cli.out.show(table(["setting", "value", *(["origin"] if origin else [])], rows))


@command(group)
def check(cli: Cli) -> None:
    """Say whether the settings can be used; exit 2 when not."""
    from daemon.config.settings import config_file
    from daemon.config.upstreams import upstreams

    settings = cli.settings
    if settings.upstreams:
        upstreams(settings, ())
    if settings.kafka_bootstrap_servers:
        from daemon.core.broker import client_security

        client_security(settings.kafka.security)
    file = config_file(cli.home)
    document = {"ok": True, "file": None if file is None else str(file)}
    document |= _describe_schedule(cli, settings.scheduler)
    cli.out.report(document, f"the settings can be used (file: {file or 'none'})")


def _describe_schedule(cli: Cli, scheduler: "Scheduler") -> dict[str, Any]:
    """Print the next fire times of `scheduler.cron`; return them for the JSON document."""
    if not scheduler.cron:
        return {}
    from daemon.config.crontab import list_next_times
    from daemon.status.doctor.loop import find_day_change
    from events.envelope import timestamp, utc_now

    now = utc_now()
    times = list_next_times(scheduler.cron, now)
    notice = find_day_change(scheduler, now)
    if notice is not None:
        cli.out.warn(notice)
    if not cli.out.json:
        shown = ", ".join(f"{time:%a %Y-%m-%d %H:%M}" for time in times)
        cli.out.show(f"scheduler.cron {scheduler.cron!r}: next {shown} UTC")
    schedule = {"cron": scheduler.cron, "next": [timestamp(time) for time in times]}
    return {"schedule": schedule | ({} if notice is None else {"notice": notice})}


@command(group)
def schema(cli: Cli) -> None:
    """Print the JSON Schema of the TOML file."""
    from daemon.config.reference import schema

    document = schema()
    cli.out.report(document, json.dumps(document, indent=2))


@command(group)
def reference(cli: Cli) -> None:
    """Print what every setting means, what it may be, and its default."""
    from daemon.config.reference import list_settings

    settings = list(list_settings())
    columns = Columns(
        "setting", "values", ("default", lambda item: _show_default(item.default)), "meaning"
    )
    cli.out.show_rows(settings, columns)


def _show_default(default: Any) -> Any:
    return None if default == [] else default
