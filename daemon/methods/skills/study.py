"""Compare an agent's failures and successes within its cycles, where the settings want that.

    study = SkillStudy(app, stopping)
    study.compare(cycle)        None where no comparison is due

It lives as long as the planner that asks it: an analyzer that failed was paid, and is asked again
only after as many rounds as one that answered.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import ValidationError

from consumers.diagnosis.round_counts import Pair
from daemon.controller.model_answers import ModelFailure
from daemon.cycle.proposal import Skip, Study
from daemon.methods.skills.analyzer import choose_labeller
from daemon.methods.skills.discovery import contrast_skills, find_due_round
from daemon.methods.skills.labels import BadLabelling

if TYPE_CHECKING:
    from consumers.reads.learning import CycleRow
    from daemon.core.app import App
    from events.learning import SkillsContrasted


class SkillStudy:
    """The comparisons of a home's agents."""

    def __init__(self, app: "App", stopping: Callable[[], bool] = lambda: False) -> None:
        """`stopping`: whether the process was told to stop; then no model is asked."""
        self._app, self._stopping = app, stopping
        self._unlabelled: dict[Pair, int] = {}
        """Agent -> first round after which an analyzer that failed is asked again."""

    def compare(self, cycle: "CycleRow") -> Study | None:
        """Compare failures and successes after a cycle's round; None where that is switched off, or
        the last comparison was a few rounds ago. Raises Skip where the comparison failed."""
        try:
            contrast = self._contrast(cycle)
        except (ModelFailure, BadLabelling, ValidationError) as error:
            raise Skip(f"skills were not compared: {error}") from error
        return None if contrast is None else Study(contrast, "contrasted", "skills were compared")

    def _contrast(self, cycle: "CycleRow") -> "SkillsContrasted | None":
        assert cycle.round is not None, "a cycle is diagnosed first"
        improve, pair = self._app.settings.improve, Pair(cycle.alias, cycle.base)
        if improve.skills == "off":
            return None
        with self._app.reading() as connection:
            since = find_due_round(connection, pair, cycle.round, improve.skills_rounds)
        if since is None or cycle.round < self._unlabelled.get(pair, 0):
            return None
        labeller = choose_labeller(self._app, pair, cycle.cycle, self._stopping)
        try:
            return contrast_skills(self._app, pair, since, cycle.round, cycle.cycle, labeller)
        except ModelFailure:
            # What failed was paid: it waits as long as what succeeds.
            self._unlabelled[pair] = cycle.round + improve.skills_rounds
            raise
