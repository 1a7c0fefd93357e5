"""Decides whether a candidate may replace the incumbent (paired verdicts -> GateReport). Pure.

Both attempt the same fresh tasks with the same seeds. A task's D is the difference of its two
shares of passed trials. All of this must hold:

    target        the mean D of a target is above 0 (test below) and at least `min_gain`; of several
                  targets that of at least one (Holm 1979)
    overall       the lower bound of the mean D of all tasks but those of the slice `after an error`
                  is above -`overall_margin`
    each slice    the same with -`slice_margin`; FAIL if shown to be worse; else EXTEND. Not of a
                  slice that is a lifted target
    best          the same against a slice's best policy ever, unless that is the incumbent, at
                  level `BEST_LEVEL`; FAIL if shown to be below
    violations    FAIL if their rate is shown to be higher (conditional binomial test of the
                  rollouts, and sign-flip test of the tasks: trials of one task may err alike)
    format        malformed tool calls: FAIL if their share grew by more than `format_margin`, and
                  is shown to be higher by the same test
    tokens        FAIL if a rollout's grew by more than `token_growth`, and by more than chance; if
                  rollouts with a refused call count apart, these and all by more than
                  `token_growth_after_error`
    sibling       replaces `slice` for kinds that the candidate will not answer; decides nothing.
                  Their tasks are in no other check
    rises         of successes without a look-up, unseen values, or tokens per answer: EXTEND, and
                  PASS when no more can be played (rises.py)
    golden        at most `golden_losses` tasks that the incumbent surely passes fall below
                  `golden_floor`

The default test of a target is the exact sign-flip test (target_tests.py). All conditions must
hold, so none is corrected for the others (intersection-union, Berger 1982).

EXTEND plays more tasks of open checks. A target's test looks only at its planned tasks. Everything
else keeps 5 % over all looks (`Looks`), with the equal levels at which normal tests of doubling
sizes reject a true hypothesis in 5 % of the cases (Pocock 1977; ADR 0044); a slice FAILs with a
chance of at most 10 % over all looks.

Bounds are those of envs/statistics.py and hold for few tasks too. Not covered: a reused gate set
(spend with `spend_alpha`), repeated evaluations of one adapter (each has its own 5 %), traffic
unlike the tasks, and clusters of malformed calls (each counts as independent).
"""

from collections.abc import Sequence
from statistics import mean

from daemon.evaluation.gate.checks import (
    check_golden,
    check_overall,
    check_reference,
    check_slices,
    check_target,
    report_siblings,
)
from daemon.evaluation.gate.conduct_checks import check_conduct
from daemon.evaluation.gate.levels import spend_alpha
from daemon.evaluation.gate.measurements import Evaluation, TokenUse
from daemon.evaluation.gate.rises import check_rises, report_evidence
from daemon.evaluation.gate.target_tests import rank_evidence, report_targets
from events.gate import (
    AFTER_ERROR,
    RISES,
    SIBLING,
    AfterError,
    Check,
    Decision,
    GateReport,
    GateSettings,
)


def decide(
    evaluation: Evaluation,
    settings: GateSettings,
    *,
    attempt: int | None = None,
    spent: bool = False,
) -> GateReport:
    """Return PROMOTE, REJECT or EXTEND, with the numbers. `attempt` counts the candidates on a
    reused gate set; None: its tasks are fresh. `spent`: no more can be run. Raises ValueError
    without a target's task or a side's rollouts, and for several targets of a test that takes
    one."""
    if not (evaluation.incumbent.rollouts and evaluation.candidate.rollouts):
        raise ValueError("incumbent and candidate have no rollouts; nothing was evaluated")
    alpha = settings.alpha if attempt is None else spend_alpha(settings.alpha, attempt)
    results = report_targets(evaluation, settings, alpha)
    leading = min(results, key=rank_evidence)
    lifted = {result.report.name for result in results if result.report.verdict == "PASS"}
    checks = (
        check_target(results, leading, settings),
        check_overall(evaluation, settings),
        *check_slices(evaluation, settings, lifted),
        *(check_reference(reference, evaluation, settings) for reference in evaluation.references),
        *check_conduct(evaluation, settings),
        *check_rises(evaluation, settings),
        *check_golden(evaluation.golden, settings),
    )
    siblings = report_siblings(evaluation, settings)
    report = GateReport(
        decision=_decision(checks),
        test=settings.test,
        alpha=alpha,
        p_value=leading.report.p_value,
        e_value=leading.e_value,
        tasks=leading.report.tasks,
        detectable=leading.report.detectable,
        checks=(*checks, *siblings),
        plan=leading.plan.plan,
        targets=tuple(result.report for result in results),
        after_error=_report_after_error(evaluation),
        evidence=report_evidence(evaluation),
    )
    return conclude(report) if spent else report


def conclude(report: GateReport) -> GateReport:
    """Return the final report when no more can be played: rises pass, and other open checks count
    as unproven."""
    checks = tuple(
        check.model_copy(update={"verdict": "PASS"}) if check.name in RISES else check
        for check in report.checks
    )
    decision = _decision([check for check in checks if not check.name.startswith(SIBLING)])
    if decision == "EXTEND":
        decision = "REJECT"
    return report.model_copy(update={"checks": checks, "decision": decision})


def _report_after_error(evaluation: Evaluation) -> AfterError | None:
    pairs = [pair for pair in evaluation.judged if pair.slice == AFTER_ERROR]
    if not pairs:
        return None
    before, after = evaluation.incumbent.parts, evaluation.candidate.parts
    refused = clean = None
    if before is not None and after is not None:
        refused = _growth(before.refused, after.refused)
        clean = _growth(before.clean, after.clean)
    return AfterError(
        tasks=len(pairs),
        incumbent=mean(mean(pair.incumbent) for pair in pairs),
        candidate=mean(mean(pair.candidate) for pair in pairs),
        token_growth=refused,
        clean_token_growth=clean,
    )


def _growth(before: TokenUse, after: TokenUse) -> float | None:
    if not (before.rollouts and after.rollouts):
        return None
    return after.mean / max(before.mean, 1.0) - 1


def _decision(checks: Sequence[Check]) -> Decision:
    verdicts = {check.verdict for check in checks}
    if verdicts == {"PASS"}:
        return "PROMOTE"
    return "REJECT" if "FAIL" in verdicts else "EXTEND"
