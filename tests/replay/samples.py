"""One event of every type with every field set: what the golden corpus is made of.

A field that a sample leaves at its default would be a field that no test of old bytes can lose.
"""

import array
from typing import Any, Final

from events.gate import (
    AfterError,
    AnswerEvidence,
    Check,
    EvidenceReport,
    GatePlan,
    GateReport,
    Rate,
    TargetReport,
)
from events.jobs import (
    EndpointUser,
    JobSpec,
    LoraSettings,
    OptimizerSettings,
    PanelRouter,
    RouterOption,
    Sampler,
    TaskPool,
    WarmStart,
)
from events.learning import (
    BadTries,
    ClientPart,
    CycleEnded,
    CycleStarted,
    Directive,
    DirectiveWritten,
    JobEnded,
    JobParent,
    JobRequested,
    JobRound,
    LeaderClaimed,
    Mastered,
    ModeChoice,
    PatternFinding,
    PatternsDiagnosed,
    PersonErased,
    PlanName,
    PoolShare,
    PoolsShifted,
    Quota,
    RepairEdit,
    RepairSearched,
    SealedDefinition,
    SkillContrast,
    SkillLabels,
    SkillsContrasted,
    TaskProposed,
    TaskRejected,
    TaskRetired,
    Verified,
)
from events.messages import Action, Message, ToolCall
from events.rollouts import (
    CallEndContent,
    CallEnded,
    CallsGathered,
    CallStartContent,
    CallStarted,
    ClosingFailed,
    EventData,
    FeedbackContent,
    FeedbackReceived,
    HoldoutDraw,
    Labels,
    MemberChoice,
    RolloutContent,
    RolloutEnded,
    RolloutVerdict,
    SessionEnded,
    Task,
    ToolRoles,
)
from events.serving import (
    AdapterEvaluated,
    AdapterMerge,
    AdapterMoved,
    AdapterProduced,
    AdapterStaged,
    ArmCounts,
    GateDecided,
    LiveEvidence,
    MergedAdapter,
    OperatorActed,
    Panel,
    PanelComposed,
    PanelMember,
    PassRates,
    RouteChanged,
    RouteShare,
    UserEvaluated,
    UserFaultRate,
)
from events.synthesis.faults import FaultOpinion, TrajectoryVerified
from events.synthesis.plans import Plan, PlanRevision, PlanRule, PlansRevised, PlansWritten

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
_MEMBER: Final = MemberChoice(
    skill="cancel_order", adapter="cancel-40-0f3c9a1e", kept=True, doubt="tie", router_ms=12
)
_PLAN: Final = Plan(
    plan="p07", domain="orders", kind="cancel", complexity="simple", tool_mode="write",
    tools=("get_order", "cancel_order"), manner="reserved",
    writing="Have a customer cancel one order.", judging="One order is cancelled and no other.",
    rules=(PlanRule(aspect="writing", check="leak", text="Name no tool."),),
)  # fmt: skip
_PLAN_NAME: Final = PlanName(plans="plans-1", plan="p07", revision=1)
_CALLED: Final = Message(
    role="assistant",
    content="Let me see.",
    tool_calls=(
        ToolCall(name="cancel_order", arguments={"order": "#W0000001"}, id="call_1"),
        ToolCall(name="cancel_order", arguments="{malformed", id="call_2"),
    ),
    reasoning="They want it gone.",
    reflection="The order must be named.",
    sampled=True,
)
_ANSWERED: Final = Message(
    role="tool", content="no such order", tool_call_id="call_2", name="cancel_order", error=True
)

_CHECK: Final = Check(
    name="overall", verdict="PASS", value=0.0625, limit=-0.01, low=-0.005, tasks=64, level=0.03125,
    p_value=0.25, incumbent=Rate(value=0.25, low=0.125, high=0.5),
    candidate=Rate(value=0.125, low=0.0625, high=0.25), against="adapter-2", chained=True,
)  # fmt: skip
_REPORT: Final = GateReport(
    decision="PROMOTE", test="group_sequential", alpha=0.05, p_value=0.0125, e_value=31.5, tasks=64,
    detectable=0.125, checks=(_CHECK,),
    plan=GatePlan(gain=0.125, trials=4, between=0.03125, within=0.25, planned=60, power=0.8125),
    targets=(
        TargetReport(
            name="cancel", patterns=("missing_write_action|cancel_order",), kinds={"cancel": 1.0},
            tasks=64, gain=0.25, low=0.125, p_value=0.0125, level=0.05, verdict="PASS",
            power=0.8125, detectable=0.125,
        ),
    ),
    after_error=AfterError(
        tasks=48, incumbent=0.25, candidate=0.5, token_growth=0.375, clean_token_growth=0.0625,
    ),
    evidence=EvidenceReport(
        incumbent=AnswerEvidence(
            rollouts=192, passed=96, passed_without_lookup=2, unseen_values=0.25,
            tokens_per_answer=24.5,
        ),
        candidate=AnswerEvidence(
            rollouts=192, passed=144, passed_without_lookup=3, unseen_values=0.5,
            tokens_per_answer=25.5,
        ),
    ),
    rules={"cancel": "2"},
)  # fmt: skip

_DIRECTIVE: Final = Directive(
    quotas=(
        Quota(
            pattern="missing_write_action|cancel_order", tasks=12, priority=0.75, status="NEW",
            description="The order is found and never cancelled.",
            root_cause="It takes the policy for a refusal.", examples=("rollout-1",),
            modes=(
                ModeChoice(
                    mode="repair", tasks=6,
                    reason="7 of 9 failures hold a call that a tool refused",
                ),
            ),
            clients=(ClientPart(client="shopfront", tasks=12, examples=("rollout-1",)),),
        ),
    ),
    mastered=(Mastered(task="shop/3", pass_rate=0.875),),
    improving=("tool_loop|find_order",),
    known=("cancel_order(order)",),
    bad_tries=(
        BadTries(
            pattern="missing_write_action|cancel_order", mode="inherit", tries=9, rejected=5,
            reasons=("novelty: it asks for the same",),
        ),
    ),
)  # fmt: skip
_FINDING: Final = PatternFinding(
    pattern="missing_write_action|cancel_order", category="missing_write_action",
    description="The order is found and never cancelled.", frequency=3, examples=("rollout-1",),
    root_cause="It takes the policy for a refusal.",
)  # fmt: skip
_SPEC: Final = JobSpec(
    job="job-1", base="base-1", checkpoint="/var/lib/kintsugi/base-1", base_sha256="1a2b3c4d" * 8,
    parent="/var/lib/kintsugi/adapters/adapter-3", environment="shop",
    benchmarks="/var/lib/benchmarks",
    pools=(
        TaskPool(name="missing_write_action|cancel_order", share=0.75, tasks=("shop/17",),
                 references=("shop/18",)),
        TaskPool(name="replay", share=0.25, tasks=("shop/3",), replay=True,
                 environment="/srv/shop.py", reward="both",
                 user=EndpointUser(url="http://127.0.0.1:8000/v1", model="user-1")),
    ),
    seed=-7, sampler=Sampler(groups=2, size=4, rollouts=64, temperature=0.75),
    warm_start=WarmStart(mode="auto", siblings=("shop/19",)), checkpoints=(32,),
    optimizer=OptimizerSettings(lr=0.0005), lora=LoraSettings(rank=4, alpha=8.5),
    threads=1, tracker="trackio:shop",
)  # fmt: skip

SAMPLES: Final[tuple[EventData, ...]] = (
    RolloutEnded(
        rollout="rollout-1", alias="shop-agent", base="base-1", policy="adapter-3", source="tau2",
        purpose="import", session="session-1", task=_TASK, trial=2, seed=-7, success=False,
        reward=0.25, reward_parts={"database": 0.0, "outputs": None}, grader="shop/1",
        verdicts=(RolloutVerdict(source="check", success=True, score=1.0, confidence=0.5,
                                 reason="DB 1"),),
        termination="user_stop", reason="the user hung up", simulator="simulator-1",
        write_tools=("cancel_order",), known_tools=("cancel_order", "find_order"),
        tool_roles=ToolRoles(
            writes=("cancel_order",), transfer=("ring_person",), authenticating=("find_user",),
            user_record=("find_user",), record_arguments=("order",),
            selection_arguments=("item",), unordered={"cancel_order": ("reasons",)},
            unordered_groups={"return_order": (("items", "reasons"), ("payments",))},
        ),
        calls=("call-1", "call-2"), forks=("call-2",), gathered=3,
        labels=Labels(
            messages=3, tool_calls=2, tool_errors=1, malformed_calls=1, loops=0,
            category="missing_write_action", categories=("missing_write_action", "tool_loop"),
            pivot="cancel_order", trace_key="0f3c9a1e" * 8, tools=("cancel_order", "get_order"),
            words="0f3c" * 16,
        ),
        member=_MEMBER,
        content=RolloutContent(messages=(_ASKED, _CALLED, _ANSWERED)),
    ),
    CallStarted(
        call="call-2", session="session-1", alias="shop-agent", base="base-1", policy="adapter-3",
        task="shop/17", parent="call-1", parent_messages=3, stream=True,
        sampling={"temperature": 0.7, "stop": ["</s>"]}, endpoint="completions",
        parent_tools=True, attribution="path", client="shop", purpose="probe",
        upstream="http://127.0.0.1:8000/v1", routed=None,
        shares={"adapter-3": 0.25, "base-1": 0.75},
        holdout=HoldoutDraw(share=0.125, held_out=False),
        member=_MEMBER,
        content=CallStartContent(
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
        content=CallEndContent(messages=(_CALLED,)),
    ),
    FeedbackReceived(
        session="session-1", call="call-2", score=0.5, success=True, tags=("polite", "slow"),
        verified=True, content=FeedbackContent(comment="Fast genug. \U0001f44d"),
    ),
    PatternsDiagnosed(
        trigger="diagnose",
        position={"rollouts": {"0": {"log-1": 3, "log-2": 0}, "7": {"log-1": 9}}},
        cycle="cycle-1", kinds={"shop-agent": ("shop/=cancel", "shop/cancel")},
    ),
    TaskProposed(
        alias="shop-agent", base="base-1", task=_TASK, pattern="cancel_order:missing",
        source_rollout="rollout-1", cycle="cycle-1", mode="inherit",
        verified=(Verified(check="gold"), Verified(check="solvable", note="scripted oracle")),
        text_by="author-1", job_round=JobRound(job="job-1", number=2),
        definition={"environment": "shop", "seed": 17, "scenario": {"persona": "Zoë"}},
        sealed=SealedDefinition(
            keyid="key-1", body="c2VhbGVk", operator="recorded", source="shop/cancel/17",
            rollout="rollout-1",
        ),
        plan=_PLAN_NAME,
    ),
    SessionEnded(session="session-1", because="feedback"),
    AdapterProduced(
        adapter="cancel-40-0f3c9a1e", alias="shop-agent", base="base-1", sha256="0f3c9a1e" * 8,
        path="/var/lib/kintsugi/adapters/cancel-40-0f3c9a1e", capability="cancel", job="job-1",
        origin="push",
        merge=AdapterMerge(
            method="core_tsv", rank=32,
            members=(MergedAdapter(adapter="cancel-38-1b2c3d4e", weight=1.0),
                     MergedAdapter(adapter="return-12-5f6a7b8c", weight=0.5)),
        ),
        role="user",
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
        holdout=0.125, shadow="adapter-3", why="operator", reason="before the weekend",
        evidence=LiveEvidence(
            pairs=120, against=0.5, towards=20.25, imbalance=1.5,
            canary=ArmCounts(judged=120, failed=12), incumbent=ArmCounts(judged=400, failed=90),
            expected=130.0, position={"rollouts": {"7": {"log-1": 9}}},
        ),
    ),
    AdapterMoved(adapter="adapter-3", state="draining", reason="a new base"),
    OperatorActed(
        actor="zoë", action="route set", arguments={"alias": "shop-agent", "share": "0.25"},
        reason="before the weekend",
    ),
    LeaderClaimed(epoch=4, holder="process-1"),
    CycleStarted(
        cycle="cycle-1", alias="shop-agent", base="base-1", number=1, environment="shop",
        trigger="cron", reason="scheduler.cron had its turn",
        position={"rollouts": {"0": {"log-1": 3}, "7": {"log-1": 9}}},
        slot="2026-01-02T03:00:00.000000Z", acted="event-1",
    ),
    DirectiveWritten(
        cycle="cycle-1", round=0, directive=_DIRECTIVE, findings=(_FINDING,),
        summary="It stops before the last step.", analyzer="analyzer-1",
        trouble="the second answer was cut off",
        job_round=JobRound(job="job-1", number=2),
    ),
    TaskRejected(
        cycle="cycle-1", alias="shop-agent", base="base-1", pattern="cancel_order:missing",
        mode="explore", check="leak", reason="the request names the order's id",
        source_rollout="rollout-1", instruction="Cancel #W0000001, bitte.",
        job_round=JobRound(job="job-1", number=2), task="shop/18",
        plan=_PLAN_NAME,
    ),
    JobRequested(
        job="job-1", cycle="cycle-1", alias="shop-agent", base="base-1", capability="cancel",
        spec=_SPEC, minutes=30.5,
        parent=JobParent(adapter="shop-2026-1", reason="the gate rejected it without harm"),
        skill="cancel_order",
    ),
    JobEnded(
        job="job-1", outcome="trained", reason="the budget is spent",
        adapter="/var/lib/kintsugi/jobs/job-1/adapter", sha256="0f3c9a1e" * 8, steps=7,
        rollouts=64, seconds=81.25, attempts=2,
    ),
    CycleEnded(cycle="cycle-1", outcome="promoted", reason="the live guard closed"),
    PersonErased(keyid="0b7f2c1e-4d55-4e0a-9a53-6f1d2c3b4a59", events=17, rollouts=2),
    CallsGathered(
        rollout="rollout-1", session="session-1", number=1, calls=("call-1",), forks=("call-2",),
    ),
    ClosingFailed(
        session="session-1", end="01936f00-0000-7000-8000-00000000000e", rollout="rollout-1",
        error="BlobError", reason="blob 0f3c is not in /var/lib/kintsugi/blobs; restore it",
    ),
    RepairSearched(
        rollout="rollout-1",
        rules="1",
        outcome="repaired",
        edits=(
            RepairEdit(
                operation="arguments", turn=5, call=2, tool="cancel_order",
                expected="cancel_order", gold=0, arguments=("order", "reasons"),
            ),
        ),
        replays=7,
        category="wrong_entity",
        pivot="cancel_order",
        reason="none within 3 edits",
    ),
    PoolsShifted(
        cycle="cycle-1", job_round=JobRound(job="job-1", number=2), rollouts=320, failures=17,
        unread=1,
        pools=(
            PoolShare(pool="cancel_order:missing", share=0.375, before=0.5, tasks=7, attempts=96,
                      passes=71),
        ),
    ),
    TaskRetired(alias="shop-agent", task="shop/19", reason="the shop sells it no more"),
    SkillsContrasted(
        alias="shop-agent", base="base", since=0, round=3, failures=40, successes=88,
        cycle="cycle-1", labeller="qwen-72b", left_out=3, refused=1,
        skills=(
            SkillContrast(
                skill="cancel_order", description="Do what has to be done with cancel_order.",
                patterns=("wrong_entity|cancel_order", "wrong_tool|cancel_order"),
                failures=18, successes=31, examples=("rollout-1",), within=("wrong_entity",),
                labellings=(
                    SkillLabels(failures=41, lacking_failures=12, present_failures=7,
                                lacking_successes=0, present_successes=30),
                    SkillLabels(failures=39, lacking_failures=9, present_failures=8,
                                lacking_successes=0, present_successes=33),
                ),
            ),
        ),
    ),
    PanelComposed(
        adapter="panel-3-0f3c9a1e", alias="shop-agent", base="base-1", sha256="0f3c9a1e" * 8,
        cycle="cycle-1",
        panel=Panel(
            members=(
                PanelMember(skill="cancel_order", adapter="cancel-40-0f3c9a1e"),
                PanelMember(skill="wrong_tool", adapter=None),
            ),
            router=PanelRouter(
                adapter="adapter-3",
                options=(
                    RouterOption(
                        skill="cancel_order", label="A", token=32,
                        description="Do what has to be done with cancel_order.",
                        example="user: Cancel it, bitte.",
                    ),
                    RouterOption(skill="wrong_tool", label="B", token=33, description="Else."),
                    RouterOption(skill=None, label="C", token=34, description="None of them."),
                ),
                calibration=((-0.5, -1.25, -2.0), (-0.75, -1.0, -2.5)),
            ),
        ),
    ),
    PlansWritten(
        plans="plans-1", alias="shop-agent", base="base-1", environment="shop", cycle="cycle-1",
        patterns=("wrong_entity|cancel_order",), entries=(_PLAN,), overlap=0.25,
        uncovered=("list_orders",), writer="qwen-72b", refused=("p03: its tool is gone",),
        trouble="the budget is spent",
    ),
    PlansRevised(
        plans="plans-1", alias="shop-agent", base="base-1", cycle="cycle-1", round=2,
        revisions=(
            PlanRevision(
                before=_PLAN_NAME, plan=_PLAN, reason="5 of 8 tries failed leak",
                failures=("01936f00-0000-7000-8000-000000000009",), tries_before=8,
                accepted_before=3, tries=8, accepted=7, kept=True,
            ),
        ),
        writer="qwen-72b", trouble="one answer was no JSON", stopped="the gain is below 2 points",
    ),
    TrajectoryVerified(
        alias="shop-agent", base="base-1", cycle="cycle-1", task="shop/17", rollout="rollout-1",
        plan=_PLAN_NAME, fault="task", rule="gold", reason="cancel_order is refused",
        opinion=FaultOpinion(model="qwen-72b", fault="trajectory", reason="The agent stopped."),
        trouble="asked twice", siblings=("shop/18",),
    ),
    UserEvaluated(
        adapter="user-1-0f3c9a1e", alias="shop-agent", previous="user-0-1a2b3c4d",
        environment="shop", dialogues=600,
        violations=UserFaultRate(count=3, of=600, upper=0.0129, limit=0.02),
        early_ends=UserFaultRate(count=1, of=600, upper=0.0079, limit=0.01),
        schema_errors=UserFaultRate(count=0, of=2400, upper=0.0012, limit=0.005),
        passed=True, reason="all rates hold", examples=("instruction: it tells 'X'",),
        candidates=4, manners=("as_is", "polite"),
    ),
)  # fmt: skip

ARRAYS: Final[dict[str, dict[str, "array.array[Any]"]]] = {
    "CallEnded": {
        "prompt_token_ids": array.array("i", [1, 2, 3, 2**31 - 1, 0]),
        "token_ids": array.array("i", [-1, 5, 6]),
        "logprobs": array.array("f", [-0.5, 0.0, -1e-30]),
    }
}
