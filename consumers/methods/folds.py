"""Connect the folds with the methods. Events of all methods are folded, even if a method is off."""

from collections.abc import Mapping
from typing import Final

from consumers.folds.record import Fold
from consumers.methods.skills.folds import fold_panel_composition, fold_skill_contrast
from consumers.methods.synthesis.folds import (
    count_try,
    fold_plan_revisions,
    fold_plans,
    fold_trajectory_verdict,
    fold_user_evaluation,
)
from events.learning import SkillsContrasted
from events.serving import PanelComposed, UserEvaluated
from events.synthesis.faults import TrajectoryVerified
from events.synthesis.plans import PlansRevised, PlansWritten

__all__ = ["METHOD_FOLDS", "count_try"]

METHOD_FOLDS: Final[Mapping[str, Fold]] = {
    PanelComposed.TYPE: fold_panel_composition,
    SkillsContrasted.TYPE: fold_skill_contrast,
    PlansWritten.TYPE: fold_plans,
    PlansRevised.TYPE: fold_plan_revisions,
    TrajectoryVerified.TYPE: fold_trajectory_verdict,
    UserEvaluated.TYPE: fold_user_evaluation,
}
"""Event type of a method -> its fold."""
