"""Metrics of lessons: the number that cycles wrote and that passed the checks."""

from typing import TYPE_CHECKING, Final

from consumers.reads.learning import read_repair_tasks
from daemon.metrics.families import Family, Sheet
from daemon.metrics.loop import MethodMetrics

if TYPE_CHECKING:
    from daemon.metrics.loop import LoopReading

LESSONS: Final = (
    Family("kintsugi_lessons_written_total", "Lessons among them that passed.", ("alias",)),
)


def build_metrics() -> MethodMetrics:
    """Return the metrics of lessons and the function that reports them."""
    return MethodMetrics(LESSONS, _report)


def _report(reading: "LoopReading", sheet: Sheet) -> None:
    """Report the lessons of each agent: 0 at first, so that the first one is an increase."""
    for alias in reading.aliases:
        lessons = len(read_repair_tasks(reading.connection, alias))
        sheet.say("kintsugi_lessons_written_total", lessons, alias)
