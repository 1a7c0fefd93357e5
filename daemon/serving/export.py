"""Export an adapter as one bundle, with its history from the tables. Changes nothing. Raises for
unknown names, and for collected or altered files.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consumers.reads import explanation, learning, serving
from consumers.reads.explanation import Node
from consumers.reads.learning import JobRow
from consumers.reads.serving import AdapterRow, EvaluationLine, UnknownAdapter
from daemon.adapters.adoption import intact, read_expectation
from daemon.adapters.bundle import BundleFacts, BundleRefusal, read_contents, read_provenance
from daemon.adapters.compatibility import fit
from daemon.adapters.directory import Provenance
from daemon.adapters.model_card import CardFacts, Measured
from events.errors import WrongUsage
from events.lifecycle import State

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App


class NoSuchAdapter(WrongUsage):
    """No adapter of the home has the name."""


def find_version(connection: "Connection", name: str) -> AdapterRow:
    """Return the version with this name or a prefix of its name. Raises NoSuchAdapter."""
    try:
        return serving.find_adapter(connection, name)
    except UnknownAdapter as error:
        raise NoSuchAdapter(str(error)) from error


def read_files(app: "App", connection: "Connection", row: AdapterRow) -> dict[str, bytes]:
    """Return the bundle's files, path -> content. Raises BundleRefusal, BadAdapter,
    NoFingerprint."""
    return read_contents(collect_facts(app, connection, row))


def collect_facts(app: "App", connection: "Connection", row: AdapterRow) -> BundleFacts:
    """Return an adapter's facts for its bundle. Raises BundleRefusal, BadAdapter, NoFingerprint."""
    folder = app.settings.adapter_paths.locate(row.path)
    _check_files(row, folder)
    measured = serving.evaluation_lines(connection, row.adapter)
    job = None if row.job is None else learning.job(connection, row.job)
    parents = list(iter_ancestors(connection, row.adapter))
    provenance = read_provenance(folder)
    base_sha256 = None if provenance is None else provenance.base.sha256
    return BundleFacts(
        card=_build_card_facts(row, folder, provenance, measured, job, parents),
        folder=folder,
        gate=build_gate(app, row, measured),
        lineage={
            **build_lineage(connection, row, base_sha256),
            "parents": [
                {"adapter": parent.adapter, "sha256": parent.sha256, "job": parent.job}
                for parent in parents
            ],
        },
        probes=read_expectation(folder),
    )


def build_lineage(
    connection: "Connection", row: AdapterRow, base_sha256: str | None
) -> dict[str, Any]:
    """Return the content of `lineage.json`: a version's causes and its base."""
    tree = explanation.explain_adapter(connection, row.adapter)
    return {
        "adapter": row.adapter,
        "sha256": row.sha256,
        "base": {"name": row.base, "sha256": base_sha256},
        "because": asdict(tree)["because"],
    }


def list_measured(lines: list[EvaluationLine]) -> list[Measured]:
    """Return the measurements in the form that a model card needs."""
    return [
        Measured(
            line.incumbent, line.environment, line.tasks, line.trials, line.incumbent_pass,
            line.candidate_pass,
        )
        for line in lines
    ]  # fmt: skip


def _check_files(row: AdapterRow, folder: Path) -> None:
    """Raise BundleRefusal for missing files, BadAdapter for altered ones."""
    if row.state is State.COLLECTED or not folder.is_dir():
        gone = "were collected" if row.state is State.COLLECTED else f"are not in {folder}"
        raise BundleRefusal(
            f"the files of {row.adapter} {gone}; restore that folder from a backup and push it "
            "under another --name, or export an adapter that kintsugi adapters ls shows with files"
        )
    intact(folder, row.sha256, None, None)


def iter_ancestors(connection: "Connection", adapter: str) -> Iterator[AdapterRow]:
    """Yield the adapters that this one was trained from or merged from, nearest first."""
    seen = {adapter}
    waiting = _list_parents(explanation.explain_adapter(connection, adapter))
    while waiting:
        name = waiting.pop(0)
        if name not in seen:
            seen.add(name)
            yield serving.find_adapter(connection, name)
            waiting += _list_parents(explanation.explain_adapter(connection, name))


def _list_parents(node: Node) -> list[str]:
    jobs = (child for child in node.because if child.kind == "job")
    near = (*node.because, *(child for job in jobs for child in job.because))
    return [child.node for child in near if child.kind == "adapter"]


def _build_card_facts(
    row: AdapterRow,
    folder: Path,
    provenance: Provenance | None,
    measured: list[EvaluationLine],
    job: JobRow | None,
    parents: list[AdapterRow],
) -> CardFacts:
    return CardFacts(
        adapter=row.adapter,
        alias=row.alias,
        base=row.base,
        sha256=row.sha256,
        capability=row.capability,
        state=row.state.value,
        rank=fit(folder, None).rank,
        provenance=provenance,
        gate=row.gate,
        measured=list_measured(measured),
        pools=() if job is None else job.spec.pools,
        environments=() if job is None else job.spec.environments,
        parents=[parent.adapter for parent in parents],
        merge=row.merge,
    )  # fmt: skip


def build_gate(app: "App", row: AdapterRow, measured: list[EvaluationLine]) -> dict[str, Any]:
    """Return the content of `gate.json`: the gate's last report, all measurements, the settings."""
    settings = app.settings
    return {
        "adapter": row.adapter,
        "incumbent": row.incumbent,
        "report": None if row.gate is None else row.gate.model_dump(mode="json"),
        "evaluations": [asdict(line) for line in measured],
        "settings": {
            "gate": settings.gate.model_dump(mode="json"),
            "trial": settings.trial.model_dump(mode="json"),
        },
    }
