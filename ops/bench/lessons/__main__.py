"""How fast lessons are made, and how many each operator makes in an environment.

    python -m ops.bench.lessons [--env E] [--split S] [--wanted N] [--tasks N] [--rounds N]

Method. One process. The first `--tasks` tasks of a split are made before the clock starts; their
first states are not. A round makes at most `--wanted` lessons of them, the oracle's trajectories
included; the median of the rounds is reported, in lessons per second of processor time, and the
best. Beside each round as many lessons as there are tasks are checked by playing them: the episode
is opened with its prefix and played to its verdict by the oracle.

    {"benchmark": "lessons", "environment", "split", "lessons", "made", "discarded", "unused",
      "empty", "sources", "lessons_per_second", "lessons_per_second_best",
      "whole_episodes_per_second", "ratio"}

`ratio` is the median over the rounds of lessons per second to episodes per second.
"""

import argparse
import json
import os
import statistics
import time
from itertools import islice
from pathlib import Path

from envs.environment import Environment
from envs.episode import Episode, play
from envs.grading import grade
from envs.lessons.checks import get_lesson
from envs.lessons.making import LessonReport, make_lessons
from envs.registry import open_environment
from envs.task import GENERATED, TaskDefinition

_PLAYED = 100


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="shop", help="name of the environment")
    parser.add_argument("--split", default=GENERATED, help="split of its tasks")
    parser.add_argument("--wanted", type=int, default=1200, help="most lessons of a round")
    parser.add_argument("--tasks", type=int, default=400, help="most tasks of the split")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    folder = os.environ.get("KINTSUGI_BENCHMARKS")
    benchmarks = Path(folder) if folder else None
    tasks = list(
        islice(open_environment(options.env, benchmarks=benchmarks).tasks(options.split),
               options.tasks)
    )  # fmt: skip
    rates, ratios, episode_rates = [], [], []
    for _ in range(options.rounds):
        environment = open_environment(options.env, benchmarks=benchmarks)
        began = time.process_time()
        report = make_lessons(environment, tasks, options.wanted, 0)
        rate = len(report.lessons) / (time.process_time() - began)
        episodes = _measure_episodes(environment, report)
        rates.append(rate)
        episode_rates.append(episodes)
        ratios.append(rate / episodes if episodes else 0.0)
    document = {
        "benchmark": "lessons",
        "environment": options.env,
        "split": options.split,
        "lessons": len(report.lessons),
        "made": report.made,
        "discarded": report.discarded,
        "unused": report.unused,
        "empty": report.empty,
        "sources": len({get_lesson(task).source for task in report.lessons}),
        "lessons_per_second": round(statistics.median(rates)),
        "lessons_per_second_best": round(max(rates)),
        "whole_episodes_per_second": round(statistics.median(episode_rates)),
        "ratio": round(statistics.median(ratios), 2),
    }
    print(json.dumps(document, indent=2))


def _measure_episodes(environment: Environment, report: LessonReport) -> float:
    """Return how many lessons per second are played from their prefix to the verdict."""
    lessons = report.lessons[:: max(1, len(report.lessons) // _PLAYED)]
    began = time.process_time()
    for lesson in lessons:
        _play(environment, lesson)
    return len(lessons) / max(time.process_time() - began, 1e-9)


def _play(environment: Environment, lesson: TaskDefinition) -> None:
    # The state of a loaded task is found by the id of its source.
    task = lesson.model_copy(update={"id": get_lesson(lesson).source})
    episode = Episode(environment, task)
    play(episode, environment.oracle(task), environment.user(task))
    if not grade(environment, task, episode.messages, episode.termination).success:
        raise SystemExit(f"the oracle fails lesson {lesson.id}; its proof was none")


if __name__ == "__main__":
    main()
