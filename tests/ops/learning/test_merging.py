"""The experiment on merged adapters: its report, and one small seed."""

from pathlib import Path

import pytest

from daemon.solver.reference.demonstrations import DEVELOPMENT, HELD_OUT, TRAINING
from ops.learning.merging.__main__ import main
from ops.learning.merging.report import write_report
from ops.learning.merging.run import SeedRun, run
from ops.learning.merging.settings import KINDS, MERGES, SEEDS, SETTINGS, TAUGHT, Settings
from ops.learning.results import NothingToReport, Source
from ops.learning.seeds import COMPARED, MERGED, PRACTISED, REPORTED, Seeds

TINY = Settings(budget=32, references=4, groups=2, size=4, max_tokens=24, tasks=1, trials=1)


def made_up(seed: int, settings: str = SETTINGS.digest) -> SeedRun:
    """Each member passes its own kind alone, merges every second task, the base the taught ones."""

    def outcomes(policy: str, kind: str) -> dict[str, tuple[bool, ...]]:
        passes = kind == policy or kind in TAUGHT
        return {f"{kind}/{n}": (n % 2 == 0 if policy in MERGES else passes,) for n in range(8)}

    kinds = (*TAUGHT, *KINDS)
    policies = ("base", *KINDS, "joint", *MERGES)
    return SeedRun(
        seed=seed, development=False,
        source=Source(commit="c" * 40, clean=True, settings=settings, base="b" * 64),
        outcomes={p: {kind: outcomes(p, kind) for kind in kinds} for p in policies},
        ranks=dict.fromkeys(MERGES, 48), seconds=1.0, processor_seconds=3600.0,
    )  # fmt: skip


def test_reported_seeds_meet_no_others() -> None:
    for used in (REPORTED, COMPARED, PRACTISED, DEVELOPMENT, HELD_OUT, TRAINING):
        assert used.stop <= MERGED.start or MERGED.stop <= used.start
    for seed in SEEDS:
        Seeds.among(MERGED, seed)


def test_the_report_compares_with_members_that_answer_their_own_kinds() -> None:
    report = write_report([made_up(1), made_up(2)], SETTINGS)
    rows = {line.split("`")[1]: line for line in report.splitlines() if line.startswith("| `")}
    assert "seeds 1, 2; 120 core-minutes" in report
    assert "| 1.000 [1.000, 1.000] | 1.000 [1.000, 1.000] |" in report, "routed"
    assert rows["joint"] == ("| `joint` | -1.000 [-1.000, -1.000] | +0.000 [+0.000, +0.000] |")
    assert rows["sum"].startswith("| `sum` | -0.500 ["), "the last table has its row last"


def test_results_of_other_settings_and_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NothingToReport, match="run some seeds first"):
        write_report([], SETTINGS)
    with pytest.raises(NothingToReport, match="seed 3 was made with the settings"):
        write_report([made_up(3, "0" * 64)], SETTINGS)
    assert main(["report", "--out", str(tmp_path)]) == 1


@pytest.mark.learning
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_seed_has_every_policy_and_the_same_command_goes_on(tmp_path: Path) -> None:
    first = run(0, TINY, tmp_path, development=True)
    assert set(first.outcomes) == {"base", *KINDS, "joint", *MERGES}
    assert first.ranks["sum"] == 48
    again = run(0, TINY, tmp_path, development=True)
    assert again.outcomes == first.outcomes
