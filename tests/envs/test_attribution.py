"""Faults of users: what the rules name, and whom they do not blame."""

import asyncio
from collections.abc import Sequence
from itertools import islice

import pytest

from envs.database import Database
from envs.environment import Environment
from envs.episode import Episode, Termination
from envs.episode import play as play_locally
from envs.evaluation import Attempt, Setup, make_environment_user, play
from envs.evidence.names import list_names
from envs.evidence.requests import has_request, list_request_roots
from envs.evidence.user_faults import find_user_fault
from envs.players import LocalPlayer
from envs.registry import open_environment
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from envs.users import OUT_OF_SCOPE, STOP, User
from events.messages import Message, ToolCall
from tests.envs.faulty_user import FAULTS, FaultKind, FaultyUser
from tests.envs.mini import heard, said

SHOP = Shop()
TASK = SHOP.generate("two_writes", 5)
CANCEL = SHOP.generate("cancel", 0)
OPENING = TASK.script.opening if TASK.script else ""


class Lines:
    """A user that says these lines, then hangs up."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    def reply(self, messages: Sequence[Message]) -> Message:
        """The next one."""
        count = sum(message.role == "user" for message in messages)
        return heard(self.lines[count] if count < len(self.lines) else STOP)


def fault_of(user: User, task: TaskDefinition = TASK) -> str | None:
    """The rule that a user breaks while the oracle serves it."""
    episode = play_locally(Episode(SHOP, task), SHOP.oracle(task), user)
    fault = find_user_fault(SHOP, task, episode.messages)
    return None if fault is None else fault.rule


def count_named(
    environment: Environment, tasks: Sequence[TaskDefinition], fault: FaultKind
) -> tuple[int, int]:
    """How many faults of a kind were planted while the oracle served, and how many are named."""
    planted = named = 0
    for task in tasks:
        user = FaultyUser(environment, task, fault, seed=1)
        episode = play_locally(Episode(environment, task), environment.oracle(task), user)
        planted += user.planted is not None
        is_named = find_user_fault(environment, task, episode.messages) is not None
        named += user.planted is not None and is_named
    return planted, named


@pytest.mark.parametrize(("name", "count"), [("shop", 16), ("telecom", 20)])
def test_planted_faults_are_named_and_exact_users_are_not_blamed(name: str, count: int) -> None:
    environment: Environment = open_environment(name)
    tasks = list(islice(environment.tasks(), count))
    for task in tasks:
        for agent in (environment.oracle(task), environment.idle_agent(task)):
            episode = play_locally(Episode(environment, task), agent, environment.user(task))
            assert find_user_fault(environment, task, episode.messages) is None
    counts = {fault: count_named(environment, tasks, fault) for fault in FAULTS}
    assert bool(counts["tool"][0]) is (environment.user_toolset is not None)
    least: dict[FaultKind, float] = {
        "other_value": 0.85, "refusal": 0.85, "early_end": 0.85, "tool": 0.85, "secret": 0.6
    }  # fmt: skip
    for fault, share in least.items():
        planted, named = counts[fault]
        assert named >= share * planted, (fault, counts)


def test_a_user_may_say_it_in_other_words_and_bit_by_bit() -> None:
    street = next(a.arguments["street"] for a in TASK.criteria.gold_actions or () if
                  "street" in a.arguments)  # fmt: skip
    assert fault_of(Lines(f"{OPENING} Thanks a lot!", "yep, that is right", "sure, do it")) is None
    assert fault_of(Lines(OPENING, "Yes.", f"Yes - to {street.upper()}, as I wrote.")) is None


def test_a_user_who_corrects_the_agent_is_right() -> None:
    other = SHOP.generate("two_writes", 6)
    asked = said("Confirm: cancel order O999?")
    messages = [
        heard(other.script.opening if other.script else ""),
        asked,
        heard("No, not that one."),
    ]
    assert find_user_fault(SHOP, other, messages) is None
    gold = next(a for a in other.criteria.gold_actions or () if a.name == "modify_payment")
    order, payment = gold.arguments["order_id"], gold.arguments["payment_id"]
    for question, is_wrong in {
        f"Confirm: cancel order {order}?": True,
        f"Confirm: cancel order {order}, paid with {payment}?": True,
        f"Confirm: pay order {order} as you said?": True,
        f"Confirm: you do not want to pay order {order} with {payment}?": True,
        f"Confirm: pay order {order} with {payment}?": False,
    }.items():
        named = asked.model_copy(update={"content": question})
        fault = find_user_fault(SHOP, other, [messages[0], named, messages[2]])
        assert (fault is None) is is_wrong, question
        assert fault is None or (fault.rule, fault.place) == ("instruction", 2)


def test_a_user_may_refuse_what_no_write_of_the_task_does() -> None:
    retail = open_environment("retail")
    task = next(iter(retail.tasks()))
    assert task.script is not None
    refusal = heard("No, that is not what I want.")
    for question, is_right in {
        "I will delete your whole account. Shall I proceed?": True,
        f"So I shall not cancel {_find_order(task)}. Is that right?": True,
        f"I will return {_find_order(task)} to your card. Shall I proceed?": True,
        f"I will cancel {_find_order(task)}. Shall I proceed?": False,
    }.items():
        talk = [heard(task.script.opening), said(question), refusal]
        assert (find_user_fault(retail, task, talk) is None) is is_right, question


def _find_order(task: TaskDefinition) -> str:
    return next(
        str(action.arguments["order_id"])
        for action in task.criteria.gold_actions or ()
        if "order_id" in action.arguments
    )


def test_what_the_prefix_of_a_task_says_is_nobodys_fault() -> None:
    wrong = Message(role="user", content="It is order O987654.", sampled=False)
    played = wrong.model_copy(update={"sampled": True})
    assert find_user_fault(SHOP, TASK, [wrong]) is None
    assert find_user_fault(SHOP, TASK, [played]) is not None


def find_reason(*lines: str, task: TaskDefinition = CANCEL) -> str | None:
    """The reason of the fault in a talk without calls: user and agent in turn."""
    messages = [
        Message(role="user" if place % 2 == 0 else "assistant", content=line)
        for place, line in enumerate(lines)
    ]
    fault = find_user_fault(SHOP, task, messages)
    return None if fault is None else fault.summary


CONFIRM = "Please confirm: cancel order O50?"
HELLO = "Hi. Please call off the order O50. I am Carl, my zip is 90070."


@pytest.mark.parametrize(
    "lines",
    [
        (HELLO, CONFIRM, "No problem, go ahead."),
        (HELLO, CONFIRM, "No changes, please go ahead."),
        (HELLO, CONFIRM, "Don't worry, that is right."),
        (HELLO, "I confirm that O50 is cancelled. Anything else?", "No, thank you."),
        (f"{HELLO} I need it within 24-hour, on the 9th-10th, 2-3pm; I asked 2x since 2019.",),
        (f"{HELLO} It was $12.00, 90070.00 in all.",),
        ("Call off O50.", "Who are you?", "Carl, nine oh oh seven oh", CONFIRM, "Yes."),
        (HELLO, "Cancelled. Any other questions?", STOP),
        (HELLO, "Cancelled. Is that all?", STOP),
        (HELLO, "What colour is the door of the warehouse?", OUT_OF_SCOPE),
        ("Hello.", "How can I help?", "I want to cancel an order.", "Which?"),
    ],
)
def test_a_user_may_use_any_words(lines: tuple[str, ...]) -> None:
    assert find_reason(*lines) is None


def test_words_that_take_nothing_back_are_still_a_fault() -> None:
    assert "No, do not proceed." in str(find_reason(HELLO, CONFIRM, "No, do not proceed."))
    assert "'O-51'" in str(find_reason("Hi. Call off the order O-51. I am Carl, my zip is 90070."))
    assert "'1234.00'" in str(find_reason(f"{HELLO} I paid 1234.00."))
    early = find_reason(HELLO, "What is your name?", STOP)
    assert early is not None
    assert "(early_end)" in early


def test_a_date_may_be_written_in_any_way() -> None:
    airline = open_environment("airline")
    task = airline.generate("change_passenger", 1)
    assert task.script is not None
    date = "1984-03-01"
    assert date in task.script.opening
    for spelling, is_right in {
        "March 1st, 1984": True, "03/01/1984": True, "1 Mar 1984": True, "1984-03-02": False,
        "01.03.1984": True, "1.3.84": True, "03-01-1984": True, "3-1-1984": True,
        "02.03.1984": False, "03-01-1985": False,
    }.items():  # fmt: skip
        text = task.script.opening.replace(date, spelling)
        fault = find_user_fault(airline, task, [heard(text)])
        assert (fault is None) is is_right, spelling


def test_a_user_who_got_what_it_wanted_may_hang_up_at_any_word() -> None:
    criteria = CANCEL.criteria.model_copy(update={"outputs": ()})
    task = CANCEL.model_copy(update={"criteria": criteria})
    episode = play_locally(Episode(SHOP, task), SHOP.oracle(CANCEL), SHOP.user(task))
    last = max(place for place, item in enumerate(episode.messages) if item.role == "assistant")
    farewell = [
        said("Storniert. Sonst noch etwas?"),
        heard(f"Danke! {STOP}"),
    ]
    assert find_user_fault(SHOP, task, [*episode.messages[:last], *farewell]) is None
    asked = said("What colour is the door?")
    fault = find_user_fault(SHOP, task, [*episode.messages[:1], asked, farewell[1]])
    assert fault is not None
    assert fault.rule == "early_end"


def test_tables_are_read_once_for_all_tasks_that_begin_in_them() -> None:
    resets: list[str] = []

    class SharedShop(Shop):
        """A shop whose tasks say that they begin in one state."""

        def state_key(self, task: TaskDefinition) -> str:
            """The same for all."""
            return "shared"

        def reset(self, task: TaskDefinition) -> Database:
            """Count."""
            resets.append(task.id)
            return super().reset(task)

    shared = SharedShop()
    first, second = shared.generate("address", 0), shared.generate("payment", 0)
    street = next(iter(SHOP.reset(first)["orders"].values()))["street"].lower()
    for task in (first, second, first):
        assert street in list_names(shared, task).find(f"to {street}, please")
    assert resets == [first.id]


def attempt(user: User, *, may_err: bool) -> Attempt:
    """One attempt of the oracle."""
    setup = Setup(
        SHOP,
        agent=lambda task, _: LocalPlayer(SHOP.oracle(task)),
        user=lambda task, _: LocalPlayer(user),
        user_may_err=may_err,
    )
    return asyncio.run(play(setup, TASK, 0))


def test_an_attempt_with_a_fault_of_the_user_is_not_judged_and_says_why() -> None:
    spoilt = attempt(FaultyUser(SHOP, TASK, "other_value", 0), may_err=True)
    assert (spoilt.termination, spoilt.grade, spoilt.reward) == (Termination.USER_ERROR, None, None)
    assert spoilt.reason.startswith("the user's fault (instruction), message 0: it tells ")
    exact = make_environment_user(SHOP)(TASK, 0)
    assert isinstance(exact, LocalPlayer)
    assert attempt(SHOP.user(TASK), may_err=True).success


def test_a_user_that_never_hangs_up_errs() -> None:
    episode = play_locally(Episode(SHOP, CANCEL), SHOP.oracle(CANCEL), SHOP.user(CANCEL))
    talk = episode.messages[:-1]
    assert talk[-1].role == "assistant"
    for _ in range(3):
        talk += [heard("Hi."), said("Done.")]
    assert find_user_fault(SHOP, CANCEL, talk) is None
    fault = find_user_fault(SHOP, CANCEL, [*talk, heard("Hi.")])
    assert fault is not None
    assert "it never hangs up, and says 'Hi.'" in fault.reason


class Waiting:
    """A user that goes on waiting where the exact user loses its patience."""

    def __init__(self, environment: Environment, task: TaskDefinition) -> None:
        self.exact = environment.user(task)

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the exact user's line, or a question in place of its end."""
        line = self.exact.reply(messages)
        if line.text != STOP:
            return line
        return heard(f"Okay, I am waiting ({len(messages)}).")


@pytest.mark.parametrize("name", ["shop", "retail", "airline", "telecom"])
def test_an_agent_that_only_talks_is_not_excused_by_a_user_that_waits(name: str) -> None:
    environment = open_environment(name)
    for task in islice(environment.tasks(), 3):
        user = Waiting(environment, task)
        episode = play_locally(Episode(environment, task), environment.idle_agent(task), user)
        assert episode.termination is Termination.MAX_STEPS
        assert find_user_fault(environment, task, episode.messages) is None


def test_a_user_may_go_when_its_request_is_turned_down() -> None:
    retail = open_environment("retail")
    task = next(iter(retail.tasks()))
    assert task.script is not None
    for words, may_go in {
        "I am sorry, but I cannot proceed with this request.": True,
        "Unfortunately I was not able to verify your identity.": True,
        "I am sorry, please tell me your zip code to proceed.": False,
        "I cannot see it yet. What is your zip code?": False,
    }.items():
        talk = [heard(task.script.opening), said(words), heard(STOP)]
        assert (find_user_fault(retail, task, talk) is None) is may_go, words


def test_what_is_not_english_is_not_read_as_a_question_that_holds_a_user() -> None:
    """An agent that turns a right request down in another language is not excused by its user, who
    has no more to say."""
    for refusal, farewell in (
        ("Lo siento, no puedo cancelarlo. ¿Algo más?", "No, gracias."),
        ("Das kann ich nicht stornieren. Kann ich sonst noch etwas tun?", "Nein danke."),
        (
            "\u62b1\u6b49\uff0c\u65e0\u6cd5\u53d6\u6d88\u3002\u8fd8\u6709\u522b\u7684\u5417?",
            "\u6ca1\u6709\u4e86",
        ),
    ):
        assert find_reason(HELLO, refusal, f"{farewell} {STOP}") is None, refusal
    # What the user was to answer binds it in any language, as does a question in English.
    asked = "¿Me puede decir su nombre, confirm, y el pedido?"
    assert "(early_end)" in str(find_reason(HELLO, asked, STOP))
    for question in ("What is your name?", "Shall I go on?", "Zip code?"):
        assert "(early_end)" in str(find_reason(HELLO, question, STOP)), question


def test_a_user_may_go_at_the_second_needless_question() -> None:
    silly = "What colour is your door?"
    assert "(early_end)" in str(find_reason(HELLO, silly, STOP))
    assert find_reason(HELLO, silly, "Hm, what?", silly, STOP) is None
    assert "(early_end)" in str(find_reason(HELLO, silly, "Hm, what?", CONFIRM, STOP))


def test_an_agent_that_failed_first_is_not_excused_by_its_user() -> None:
    order = _find_order(CANCEL)
    call = ToolCall(id="1", name="cancel_order", arguments={"order_id": order})
    invented = heard("My order is O987654.")
    opening = heard(HELLO)
    question = said("What is your order?")
    answer = Message(role="tool", content="{}", tool_call_id="1", name="cancel_order", error=False)
    assert find_user_fault(SHOP, CANCEL, [opening, question, invented]) is not None
    # Cancelled without leave: against the policy.
    wrong = [opening, Message(role="assistant", tool_calls=(call,)), answer, question, invented]
    assert find_user_fault(SHOP, CANCEL, wrong) is None


def test_a_user_that_says_one_line_over_and_over_errs() -> None:
    asked = ("Your name?", "Your zip code, please?", "Which order is it?", CONFIRM)
    talk = [HELLO, *(line for question in asked for line in (question, "Hm."))]
    assert "it says the same for the 4th time in a row: 'Hm.'" in str(find_reason(*talk))
    assert find_reason(*talk[:-2]) is None
    loop = [f"What is your zip code? I ask for the {count}. time." for count in range(2, 9)]
    assert find_reason(HELLO, *(line for question in loop for line in (question, HELLO))) is None


def talk_beside(agent_line: str, *user_lines: str, task: TaskDefinition = CANCEL) -> str | None:
    """The reason of the fault of a user whose agent says one line over and over."""
    return find_reason(*(text for line in user_lines for text in (line, agent_line)), task=task)


@pytest.mark.parametrize(
    "lines",
    [
        ("I am a user.",) * 15,
        ("please " * 50,) * 15,
        ("asdf jkl asdf jkl",) * 15,
        ("\u55ef\u55ef\u55ef",) * 15,
        ("Hello?", "Hi.", "Are you there?", "I have a question.", "Can you help me?", "Hello?"),
    ],
)
@pytest.mark.parametrize("agent_line", ["Done.", "What is your zip code?"])
def test_a_user_that_never_says_what_it_wants_errs(agent_line: str, lines: tuple[str, ...]) -> None:
    assert "(instruction)" in str(talk_beside(agent_line, *lines))
    assert "it never says what it wants, in " in str(talk_beside("Done.", *lines))
    assert talk_beside("Done.", *lines[:4]) is None


@pytest.mark.parametrize(
    "lines",
    [
        (HELLO, *["Well?"] * 14),
        (HELLO,) * 15,
        ("I want to cancel an order.",) * 15,
        ("Hello?", "Anyone?", "Hi.", "I need help.", "Cancelling, please.", *["Hello?"] * 10),
        ("Hello?", "Anyone?", "Hi.", "I need help.", "It is O50.", *["Hello?"] * 10),
        tuple(f"Quiero cancelar mi compra, por favor ({count})." for count in range(15)),
    ],
)
@pytest.mark.parametrize(
    "agent_line", ["Done.", "Banana.", "I am sorry, but I cannot proceed with this request."]
)
def test_an_agent_that_only_talks_is_not_excused_by_a_user_that_said_what_it_wants(
    agent_line: str, lines: tuple[str, ...]
) -> None:
    assert talk_beside(agent_line, *lines) is None


@pytest.mark.parametrize("name", ["shop", "retail", "airline", "telecom"])
def test_the_request_of_a_task_is_its_first_words_and_no_greeting(name: str) -> None:
    environment = open_environment(name)
    for task in islice(environment.tasks(), 40):
        assert task.script is not None
        roots = list_request_roots(environment, task)
        assert has_request(task.script.opening, roots)
        assert not has_request("Hello, I am a user. Could you help me, please?", roots)


def leave(*calls: ToolCall, zip_code: str = "", after: str = "Done.") -> str | None:
    """The reason of the fault of a user that begins with a zip code or none, and hangs up once the
    agent made some calls."""
    messages = [
        heard(f"Hi. Please call off the order O50. I am Carl{zip_code}."),
        *(Message(role="assistant", tool_calls=(call,)) for call in calls),
        said(after),
        heard(STOP),
    ]
    fault = find_user_fault(SHOP, CANCEL, messages)
    return None if fault is None else fault.summary


def test_a_user_that_goes_without_what_it_was_to_begin_with_errs() -> None:
    guess = ToolCall(name="find_user", arguments={"name": "Carl", "zip": "11111"}, id="1")
    transfer = ToolCall(name="transfer_to_human", arguments={"order_id": "O50"}, id="2")
    assert "never told '90070', with which it was to begin" in str(leave(guess))
    assert leave(guess, zip_code=", my zip is 90070") is None
    assert leave() is None
    assert leave(guess, transfer) is None
    assert leave(guess, after="Sorry, I cannot do that.") is None


def test_a_user_may_answer_the_same_question_five_times_with_the_same_line() -> None:
    lines = (HELLO, *["It is 90070."] * 5)
    assert talk_beside("What is your zip code?", *lines) is None


def test_an_agent_that_failed_before_its_user_said_what_it_wants_is_not_excused() -> None:
    call = ToolCall(id="1", name="cancel_order", arguments={"order_id": _find_order(CANCEL)})
    answer = Message(role="tool", content="{}", tool_call_id="1", name="cancel_order", error=False)
    idle = [
        message
        for _ in range(15)
        for message in (
            Message(role="user", content="I am a user."),
            Message(role="assistant", content="Done."),
        )
    ]
    assert find_user_fault(SHOP, CANCEL, idle) is not None
    spoilt = [idle[0], Message(role="assistant", tool_calls=(call,)), answer, *idle[1:]]
    assert find_user_fault(SHOP, CANCEL, spoilt) is None
