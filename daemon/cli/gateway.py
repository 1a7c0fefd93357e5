"""`kintsugi gateway` and `kintsugi key`: serve the agent's base URL, and make keys for clients."""

from typing import Annotated

import typer

from daemon.cli.command import DONE, Cli, command


def register(app: typer.Typer) -> None:
    """Register the commands with the command line's application `app`."""
    command(app)(gateway)
    command(app)(key)


def gateway(
    cli: Cli,
    upstream: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="An engine, ends in /v1; may be given again."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any.")] = None,
) -> int:
    """Answer an agent's calls and record them, until stopped."""
    from daemon.cli.methods import bind_chooser
    from daemon.roles.gateway import serve

    with cli.app() as app:
        serve(app, upstream or (), host, port, bind_chooser(app.settings.serving))
    return DONE


def key(
    cli: Cli,
    name: Annotated[str, typer.Argument(help="Of the client, as the log will call it.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="call, feedback or trusted; may be given again.")
    ] = None,
) -> int:
    """Mint a key for a client of the gateway; it is shown once."""
    from typing import get_args

    from producers.gateway.privacy.keys import Scope, hash_key, mint_key

    scopes = scope or ["call", "feedback"]
    if unknown := sorted(set(scopes) - set(get_args(Scope))):
        raise typer.BadParameter(f"--scope {unknown[0]!r} is not call, feedback, trusted or status")
    minted = mint_key()
    entry = {"name": name, "sha256": hash_key(minted), "scopes": scopes}
    if cli.out.json:
        cli.out.document({"key": minted, **entry})
        return DONE
    cli.out.show(minted)
    cli.out.hint(
        "it is stored nowhere; give it to the client, and this to kintsugi.toml:\n\n"
        f'[[gateway.keys]]\nname = "{name}"\nsha256 = "{entry["sha256"]}"\nscopes = {scopes}'
    )
    return DONE
