"""Tasks of `shop` that begin behind a failed write, each with the lesson that its author would
write."""

from typing import Final

from envs.episode import Episode, play
from envs.shop.environment import Shop
from envs.task import Lesson, TaskDefinition
from events.messages import Action, Message, ToolCall

REFLECTION: Final = "There is no order W0: the customer means another one."


def begin(shop: Shop, task: TaskDefinition, *spoken: Message) -> TaskDefinition:
    """The task behind these messages of both parties, with what the tools answer to them."""
    episode = Episode(shop, task)
    first = len(episode.messages)
    for message in spoken:
        episode.receive(message)
    return task.model_copy(update={"prefix": tuple(episode.messages[first:])})


def write_lesson(kind: str, seed: int) -> TaskDefinition:
    """A task whose first write was tried with an order that does not exist."""
    shop = Shop()
    task = shop.generate(kind, seed)
    episode = play(Episode(shop, task), shop.oracle(task), shop.user(task))
    messages = [m for m in episode.messages if m.role != "tool" and m.sampled is not False]
    place = next(
        n for n, m in enumerate(messages) if any(c.name in shop.writes for c in m.tool_calls)
    )
    (right,) = messages[place].tool_calls
    assert isinstance(right.arguments, dict)
    arguments = {**right.arguments, "order_id": "W0"}
    wrong = Message(role="assistant", tool_calls=(ToolCall(name=right.name, arguments=arguments),))
    begun = begin(shop, task, *messages[:place], wrong)
    assert begun.prefix[-1].error
    lesson = Lesson(
        operator="argument",
        reflection=REFLECTION,
        calls=(Action(name=right.name, arguments=right.arguments),),
        source=task.id,
    )
    return begun.model_copy(update={"lesson": lesson}).name_by_content()
