"""`kintsugi erase`: destroy a person's key, so that their words cannot be read any more."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.command import DONE, FAILED, PARTLY, Cli, command
from daemon.cli.output import Columns, plain_line

if TYPE_CHECKING:
    from daemon.maintenance.erasure import PersonData


def register(app: typer.Typer) -> None:
    """Register the command with the command line's application `app`."""
    command(app)(erase)


def erase(
    cli: Cli,
    person: Annotated[
        str | None, typer.Option("--person", metavar="ID", help="As x-kintsugi-user named them.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="ID", help="A key that is lost, instead of its person."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what there is, and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> int:
    """Destroy a person's key, and list the adapters that learnt from them; exit 3 where something
    of theirs was never sealed."""
    from daemon.maintenance import erasure
    from daemon.roles.gateway import redaction

    if (person is None) == (key is None):
        raise typer.BadParameter("give one of them", param_hint="--person or --key")
    if person is not None:
        _check_name(person)
    with cli.app() as app:
        # The gateway records the name after redaction: a rule may have made a pseudonym of it.
        named = None if person is None else redaction(app).redact_name(person)
        held = erasure.look(app, named, key)
        done = False
        if held.keyid is not None and not dry_run:
            if not yes and not _confirm(held, person or f"the owner of key {key}"):
                return FAILED
            erasure.erase(app, held)
            done = True
    _show(cli, held, person, done, dry_run)
    return PARTLY if (held.unsealed or held.readable_names) and not dry_run else DONE


def _check_name(person: str) -> None:
    """Raise BadParameter for a name that a gateway would refuse. No person can have it, so the
    answer "nothing was found" would be misleading."""
    from producers.gateway.http.wire import Refused, identifier

    try:
        known = identifier(person, "it")
    except Refused as error:
        raise typer.BadParameter(str(error), param_hint="--person") from error
    if known is None:
        raise typer.BadParameter("it is empty; name somebody", param_hint="--person")


def _confirm(held: "PersonData", who: str) -> bool:
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "nobody can be asked whether to destroy the key; give --yes, or --dry-run to look",
            param_hint="--yes",
        )
    return typer.confirm(
        f"Destroy the key of {who}? What was said in {held.events:,} events is lost for good.",
        err=True,
    )


def _show(cli: Cli, held: "PersonData", person: str | None, done: bool, dry_run: bool) -> None:
    from daemon.cli.methods import describe_erasure, name_reasons
    from daemon.maintenance.erasure import LIMITS

    if cli.out.json:
        cli.out.document(
            {
                "person": person,
                "key": held.keyid,
                "erased": done,
                "dry_run": dry_run,
                "events": held.events,
                "rollouts": len(held.rollouts),
                **{name: section.document for name, section in describe_erasure(held).items()},
                "unsealed": held.unsealed,
                "leaning": held.leaning,
                "readable_names": held.readable_names,
                "adapters": [
                    {**asdict(adapter), "because": name_reasons(adapter.because)}
                    for adapter in held.adapters
                ],
                "limits": [*LIMITS, *_beyond(held)],
            }
        )
        return
    for line in _summarize(held, done, dry_run):
        cli.out.show(plain_line(line))
    if held.adapters:
        because = ("because", lambda adapter: ", ".join(name_reasons(adapter.because)))
        cli.out.show(Columns("adapter", "state", "job", because).build_table(held.adapters))
    for limit in _beyond(held):
        cli.out.warn(limit)
    if done:
        for limit in LIMITS:
            cli.out.hint(limit)


def _summarize(held: "PersonData", done: bool, dry_run: bool) -> list[str]:
    from daemon.cli.methods import describe_erasure

    if held.keyid is None:
        return ["nothing of this person is sealed here, or not any more: nothing was changed"]
    what = f"{held.events:,} events, {len(held.rollouts):,} rollouts of them"
    what += "".join(section.text for section in describe_erasure(held).values())
    if dry_run:
        return [f"would be erased: {what}; nothing was changed"]
    return [f"erased: {what}; their key is destroyed"] if done else []


def _beyond(held: "PersonData") -> list[str]:
    """Return sentences about data that this erasure does not reach, or could not count."""
    limits = []
    if held.unsealed:
        text = "events of this person were recorded unsealed and stay readable in the log"
        limits.append(f"{held.unsealed:,} {text}")
    if held.readable_names:
        limits.append(
            f"{held.readable_names:,} events of this person were recorded by an earlier version "
            "with names of offered tools, or of a model that no engine has, which stay readable"
        )
    if held.leaning:
        limits.append(
            f"{held.leaning:,} calls of others go on from what this person said, and were recorded "
            "by an earlier version without it: nobody can read them whole once this is erased"
        )
    if held.trimmed:
        limits.append(
            f"{held.trimmed:,} events were trimmed from the log: this person's among them, and the "
            "adapters that rest on those alone, are not counted here; what was sealed is as "
            "unreadable in the archive"
        )
    return limits
