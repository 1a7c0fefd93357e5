"""The kind of a task: the generator that its id names."""

from envs.task import is_seed


def find_kind(task_id: str | None) -> str | None:
    """Return `ENV/GENERATOR` of the id `ENV/GENERATOR/SEED[/...]`; None for other ids."""
    parts = [] if task_id is None else task_id.split("/")
    seed = next((place for place, part in enumerate(parts) if is_seed(part)), 0)
    return "/".join(parts[:seed]) if seed >= 2 else None
