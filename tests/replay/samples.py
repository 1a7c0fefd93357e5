"""One event of every type with every field set: what the golden corpus is made of.

A field that a sample leaves at its default would be a field that no test of old bytes can lose.
"""

import array
from typing import Any, Final

from events.gate import Check, GateReport
from events.learning import PatternsDiagnosed, TaskProposed
from events.messages import Action, Message, ToolCall
from events.rollouts import (
    CallEnded,
    CallEndedContent,
    CallStarted,
    CallStartedContent,
    EventData,
    FeedbackContent,
    FeedbackReceived,
    RolloutContent,
    RolloutEnded,
    SessionEnded,
    Task,
)
from events.serving import (
    AdapterEvaluated,
    AdapterMoved,
    AdapterProduced,
    AdapterStaged,
    GateDecided,
    LiveEvidence,
    OperatorActed,
    PassRates,
    RouteChanged,
    RouteShare,
)

_GOLD: Final = Action(
    name="cancel_order",
    arguments={"order": "#W0000001", "reasons": ["no longer needed"], "refund": 12.5},
    requestor="user",
    compare=("order",),
)
_TASK: Final = Task(
    id="shop/17",
    environment="shop",
    capability="cancel",
    instruction="You are Zoë. Cancel your order and ask what you get back.",
    gold_actions=(_GOLD,),
    outputs=("12.50",),
    reward_basis=("database", "outputs"),
    definition="5df6e0e2761359d30a8275058e299fcc0381534545f55cf43e41983f5d4c9456",
)
_ASKED: Final = Message(role="user", content=[{"type": "text", "text": "Cancel it, bitte."}])
_CALLED: Final = Message(
    role="assistant",
    content="Let me see.",
    tool_calls=(
        ToolCall(name="cancel_order", arguments={"order": "#W0000001"}, id="call_1"),
        ToolCall(name="cancel_order", arguments="{malformed", id="call_2"),
    ),
    reasoning="They want it gone.",
    sampled=True,
)
_ANSWERED: Final = Message(
    role="tool", content="no such order", tool_call_id="call_2", name="cancel_order", error=True
)

_CHECK: Final = Check(
    name="overall", verdict="PASS", value=0.0625, limit=-0.01, low=-0.005, tasks=64
)
_REPORT: Final = GateReport(
    decision="PROMOTE", test="group_sequential", alpha=0.05, p_value=0.0125, e_value=31.5, tasks=64,
    detectable=0.125, checks=(_CHECK,),
)  # fmt: skip

SAMPLES: Final[tuple[EventData, ...]] = (
    RolloutEnded(
        rollout="rollout-1", alias="shop-agent", base="base-1", policy="adapter-3", source="tau2",
        purpose="import", session="session-1", task=_TASK, trial=2, seed=-7, success=False,
        reward=0.25, reward_parts={"database": 0.0, "outputs": None}, grader="shop/1",
        termination="user_stop", reason="the user hung up", simulator="simulator-1",
        write_tools=("cancel_order",), known_tools=("cancel_order", "find_order"),
        calls=("call-1", "call-2"), forks=("call-2",),
        content=RolloutContent(messages=(_ASKED, _CALLED, _ANSWERED)),
    ),
    CallStarted(
        call="call-2", session="session-1", alias="shop-agent", base="base-1", policy="adapter-3",
        task="shop/17", parent="call-1", parent_messages=3, stream=True,
        sampling={"temperature": 0.7, "stop": ["</s>"]}, endpoint="completions",
        parent_tools=True, attribution="path", client="shop", purpose="probe",
        upstream="http://127.0.0.1:8000/v1", routed=None,
        content=CallStartedContent(
            messages=(_ASKED,),
            tools=({"type": "function", "function": {"name": "cancel_order"}},),
            prompts=("Cancel", (1, 2)),
        ),
    ),
    CallEnded(
        call="call-2", session="session-1", outcome="aborted", finish_reason="tool_calls",
        prompt_tokens=5, completion_tokens=3, duration_ms=1234, trainable=True,
        untrainable_because="none", invalid_tool_calls=1, error="client went away",
        status=200, upstream=None,
        content=CallEndedContent(messages=(_CALLED,)),
    ),
    FeedbackReceived(
        session="session-1", call="call-2", score=0.5, success=True, tags=("polite", "slow"),
        verified=True, content=FeedbackContent(comment="Fast genug. \U0001f44d"),
    ),
    PatternsDiagnosed(
        trigger="diagnose",
        position={"rollouts": {"0": {"log-1": 3, "log-2": 0}, "7": {"log-1": 9}}},
    ),
    TaskProposed(
        alias="shop-agent", base="base-1", task=_TASK, pattern="cancel_order:missing",
        source_rollout="rollout-1",
    ),
    SessionEnded(session="session-1", because="feedback"),
    AdapterProduced(
        adapter="cancel-40-0f3c9a1e", alias="shop-agent", base="base-1", sha256="0f3c9a1e" * 8,
        path="/var/lib/kintsugi/adapters/cancel-40-0f3c9a1e", capability="cancel", job="job-1",
        origin="push",
    ),
    AdapterStaged(
        adapter="cancel-40-0f3c9a1e",
        replicas=("http://127.0.0.1:8000/v1", "http://127.0.0.1:8001/v1"),
        distance=0.00390625, from_base=0.75,
    ),
    AdapterEvaluated(
        adapter="cancel-40-0f3c9a1e", incumbent="adapter-3", environment="shop", tasks=64, trials=4,
        pass_hat_1=PassRates(incumbent=0.5, candidate=0.5625),
    ),
    GateDecided(
        adapter="cancel-40-0f3c9a1e", alias="shop-agent", incumbent="adapter-3", report=_REPORT,
    ),
    RouteChanged(
        alias="shop-agent", base="base-1",
        shares=(
            RouteShare(adapter="cancel-40-0f3c9a1e", share=0.25),
            RouteShare(adapter=None, share=0.75),
        ),
        shadow="adapter-3", why="operator", reason="before the weekend",
        evidence=LiveEvidence(
            pairs=120, against=0.5, towards=20.25, position={"rollouts": {"7": {"log-1": 9}}},
        ),
    ),
    AdapterMoved(adapter="adapter-3", state="draining", reason="a new base"),
    OperatorActed(
        actor="zoë", action="route set", arguments={"alias": "shop-agent", "share": "0.25"},
        reason="before the weekend",
    ),
)  # fmt: skip

ARRAYS: Final[dict[str, dict[str, "array.array[Any]"]]] = {
    "CallEnded": {
        "prompt_token_ids": array.array("i", [1, 2, 3, 2**31 - 1, 0]),
        "token_ids": array.array("i", [-1, 5, 6]),
        "logprobs": array.array("f", [-0.5, 0.0, -1e-30]),
    }
}
