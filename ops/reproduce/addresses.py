"""Options of an evaluation that say where endpoints are."""

from ops.reproduce.settings import Served


def build_agent_options(plan: Served) -> list[str]:
    """Return the options of an evaluation that say where the agent's endpoint is; the evaluation
    goes on that was begun where it was first."""
    moved = ["--moved-from", plan.first.base_url] if plan.before else []
    return ["--base-url", plan.base_url, *moved]


def build_user_options(plan: Served) -> list[str]:
    """Return the options of an evaluation that name the user's model; none for scripts."""
    if plan.user_model is None:
        return []
    own = [] if plan.user_base_url is None else ["--user-base-url", plan.user_base_url]
    moved = ["--user-moved-from", plan.first.user] if plan.before else []
    return ["--user-model", plan.user_model, *own, *moved]
