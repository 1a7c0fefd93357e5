"""Messages to ids and back, as the checkpoint's own tokenizer does it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from daemon.adapters.end_tokens import find_trouble
from daemon.engine.chat import Chat, NoEndToken, NoTemplate, as_chat, parse_answer
from daemon.solver.reference.demonstrations import transcript, vocabulary
from daemon.solver.warm_start import reference
from envs.shop.environment import Shop
from events.json_text.guard import parse_arguments
from events.messages import Message
from ops.reciting_model import HOSTILE_ANSWERS, HOSTILE_ARGUMENTS
from tests.daemon.engine.random_model import checkpoint


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("model"), vocabulary(Shop()))


@pytest.fixture(scope="module")
def chat(directory: Path) -> Chat:
    return Chat(directory)


@pytest.mark.long
def test_a_prompt_has_the_ids_that_the_tokenizer_gives(chat: Chat) -> None:
    shop = Shop()
    for kind in shop.capabilities:
        messages = transcript(shop, shop.generate(kind, 3))
        for end in range(2, len(messages)):
            if messages[end].role != "assistant":
                continue
            own: Any = chat.tokenizer.apply_chat_template(
                [as_chat(message) for message in messages[:end]],
                add_generation_prompt=True,
                return_dict=True,
            )
            assert list(chat.prompt(messages[:end])) == own["input_ids"]


def test_ids_do_not_depend_on_what_was_encoded_before(chat: Chat, directory: Path) -> None:
    texts = ["<|im_end|>", "a<|im_end|>b", "<|im_start|>user\n<|im_start|>user\n", "é ü\n\n", ""]
    for text in [*texts, *reversed(texts)]:
        whole = chat.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        assert list(chat.encode(text)) == whole
        assert chat.text(whole) == text


def test_a_requests_arguments_are_objects_to_the_template(chat: Chat) -> None:
    """OpenAI sends them as JSON in a string; printed as they are, they would be quoted twice."""
    call = {"id": "1", "type": "function"}
    said: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {**call, "function": {"name": "get_user", "arguments": '{ "user_id":"U12"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "{}"},
    ]
    text = chat.text(chat.prompt(said))
    assert '{"name": "get_user", "arguments": {"user_id": "U12"}}' in text
    assert "None" not in text


def test_what_was_written_is_a_message_without_its_end(chat: Chat) -> None:
    ids = [*chat.encode("Done."), *chat.ends]
    assert chat.message(ids) == Message(role="assistant", content="Done.")


def test_an_end_is_what_tokenizer_or_settings_name(chat: Chat) -> None:
    assert chat.ends == {chat.tokenizer.eos_token_id}


def test_a_tokenizer_without_template_is_refused(
    directory: Path, tmp_path: Path, chat: Chat
) -> None:
    bare = Chat(directory).tokenizer
    assert isinstance(bare, PreTrainedTokenizerFast)
    bare.chat_template = None
    bare.save_pretrained(tmp_path)
    with pytest.raises(NoTemplate, match="has no chat template"):
        Chat(tmp_path)


def test_messages_that_the_template_does_not_take_are_refused(chat: Chat) -> None:
    with pytest.raises(NoTemplate, match="does not take these messages"):
        chat.prompt([{"content": "who says this?"}])


def test_calls_are_read() -> None:
    text = '<tool_call>\n{"name": "get_user", "arguments": {"user_id": "U12"}}\n</tool_call>'
    message = parse_answer(text + text, 4)
    assert [(c.name, c.arguments) for c in message.tool_calls] == [
        ("get_user", {"user_id": "U12"})
    ] * 2
    assert len({call.id for call in message.tool_calls}) == 2
    assert message.content is None
    assert parse_answer("Wait. " + text).content == "Wait."


@pytest.mark.parametrize(
    "text",
    [
        "Done.",
        "<tool_call>\n{broken\n</tool_call>",
        '<tool_call>\n{"name": "get_user"}\n</tool_call>',
        '<tool_call>\n{"name": 1, "arguments": {}}\n</tool_call>',
        "<tool_call>\n[]\n</tool_call>",
        '<tool_call>\n{"name": "get_user", "arguments": {}}',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
        '<tool_call>{"name": "pay", "arguments": {"n": ' + "9" * 5_000 + "}}</tool_call>",
        '<tool_call>{"name": "pay", "arguments": {"n": ' + "9" * 401 + "}}</tool_call>",
        '<tool_call>{"name": "pay", "arguments": {"n": NaN}}</tool_call>',
        '<tool_call>{"name": "pay", "arguments": {"n": 1e999}}</tool_call>',
        '<tool_call>{"name": "pay", "arguments": '
        + '{"n":' * 600
        + "1"
        + "}" * 601
        + "</tool_call>",
        '<tool_call>{"name": "pay", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "pay", "arguments": []}</tool_call>',
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    message = parse_answer(text)
    assert (message.content, message.tool_calls) == (text, ())


_BLOCKS = re.compile(
    r"(?is:<reflect>.*?(?:</reflect>\s*|\Z))|<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL
)
_CALL = '{"name": "get_user", "arguments": {}}'
_PIECES = (
    *("<tool_call>", "</tool_call>", "<reflect>", "</reflect>", "</REFLECT>", "<Reflect>"),
    *("<TOOL_CALL>", "<tool_call", ">", "<", " ", "\n", "\u2003", "a", _CALL, '{"name": 1}'),
)


@given(st.lists(st.sampled_from(_PIECES), max_size=12).map("".join))
def test_calls_are_found_outside_of_reflections(text: str) -> None:
    """As one backtracking pattern finds them, in the square and the cube of the text's length."""
    blocks = [block for block in _BLOCKS.finditer(text) if block[1] is not None]
    message = parse_answer(text)
    if not blocks or any(block[1] != _CALL for block in blocks):
        assert (message.text, message.tool_calls) == (text, ())
        return
    assert len(message.tool_calls) == len(blocks)
    ends = [0, *(block.end() for block in blocks)]
    begins = [*(block.start() for block in blocks), len(text)]
    kept = "".join(text[end:begin] for end, begin in zip(ends, begins, strict=True))
    assert message.text == kept.rstrip()


@pytest.mark.parametrize("piece", [" ", "\n", "<tool_call>", "<tool_call> ", "<reflect>", "</"])
def test_no_answer_takes_long_to_read(piece: str) -> None:
    """2,000 spaces after an opening tag took 21 seconds."""
    text = "<tool_call>" + piece * 200_000
    assert parse_answer(text).text == text


@pytest.mark.parametrize("answer", HOSTILE_ANSWERS)
def test_whatever_is_called_can_be_stored_and_rendered_again(answer: str, chat: Chat) -> None:
    message = parse_answer(answer)
    assert Message.model_validate_json(message.model_dump_json()) == message
    assert json.loads(json.dumps(as_chat(message), allow_nan=False)) == as_chat(message)
    assert chat.prompt([Message(role="user", content="Hello."), message])


@given(st.sampled_from(HOSTILE_ARGUMENTS) | st.text().map(json.dumps), st.text().map(json.dumps))
def test_a_call_has_the_arguments_that_the_guard_reads(arguments: str, name: str) -> None:
    calls = parse_answer(
        f'<tool_call>{{"name": {name}, "arguments": {arguments}}}</tool_call>'
    ).tool_calls
    read = parse_arguments(arguments)
    assert [call.arguments for call in calls] == ([read] if isinstance(read, dict) else [])


@pytest.mark.parametrize("nothing", ["null", '""', r'" \n"', "{}"])
def test_arguments_that_nobody_wrote_are_an_empty_object(nothing: str) -> None:
    (call,) = parse_answer(
        f'<tool_call>{{"name": "list_orders", "arguments": {nothing}}}</tool_call>'
    ).tool_calls
    assert call.arguments == {}


@pytest.mark.parametrize("arguments", HOSTILE_ARGUMENTS)
def test_a_request_may_quote_any_arguments(arguments: str, chat: Chat) -> None:
    call = {"type": "function", "function": {"name": "get_user", "arguments": arguments}}
    prompt = chat.prompt([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert "get_user" in chat.text(prompt)


def test_an_answer_is_what_is_written_after_the_prompt(chat: Chat) -> None:
    shop = Shop()
    for kind in shop.capabilities:
        messages = transcript(shop, shop.generate(kind, 3))
        for end in range(2, len(messages)):
            if messages[end].role != "assistant":
                continue
            written = chat.answer(messages[: end + 1])
            assert written[-1] in chat.ends
            assert not chat.ends.intersection(written[:-1])
            said = chat.message(written, end)
            assert said.text == messages[end].text
            assert [(c.name, c.arguments) for c in said.tool_calls] == [
                (c.name, c.arguments) for c in messages[end].tool_calls
            ]


def test_a_template_that_ends_no_answer_makes_no_examples(directory: Path) -> None:
    chat = Chat(directory)
    messages = [Message(role="user", content="a"), Message(role="assistant", content="b")]
    for template in (
        "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}",
        "{{ 'prompt' if add_generation_prompt else 'conversation' }}",
    ):
        chat.tokenizer.chat_template = template
        with pytest.raises(NoTemplate, match="does not write an answer after its own prompt"):
            chat.answer(messages)


QUOTED = '{"name": "get_order", "arguments": {"order_id": "W1"}}'
"""A call that a reflection may quote."""


def test_what_a_reflection_quotes_is_no_call() -> None:
    call = '<tool_call>\n{"name": "get_order", "arguments": {"order_id": "W2"}}\n</tool_call>'
    for quoted in (QUOTED, f"<tool_call>{QUOTED}</tool_call>", "<tool_call>", "</tool_call>"):
        reflection = f"<reflect>{quoted} was wrong.</reflect>"
        message = parse_answer(f"{reflection}\n{call}")
        assert [made.arguments for made in message.tool_calls] == [{"order_id": "W2"}]
        assert message.text == reflection
    unclosed = parse_answer(f"<reflect>{QUOTED} was wrong.\n{call}")
    assert unclosed.tool_calls == ()


@pytest.mark.parametrize("note", ["<reflect>", "<reflect>a</reflect> b", "</reflect>"])
def test_a_call_that_quotes_the_tag_of_a_reflection_keeps_its_arguments(note: str) -> None:
    call = f'<tool_call>{{"name": "write", "arguments": {{"note": "{note}"}}}}</tool_call>'
    quoted = f"<reflect><tool_call>{QUOTED}</tool_call></reflect>"
    message = parse_answer(f"Yes.\n{call}\n{quoted}")
    assert [made.arguments for made in message.tool_calls] == [{"note": note}]
    assert message.text == f"Yes.\n\n{quoted}"


def test_a_reflection_is_apart_from_what_is_said_and_called(chat: Chat) -> None:
    call = '<tool_call>\n{"name": "get_order", "arguments": {"order_id": "W2"}}\n</tool_call>'
    written = f"<reflect>It was W1.</reflect>\nOne moment.\n{call}<|im_end|>"
    message = chat.message(chat.encode(written))
    assert (message.reflection, message.text) == ("It was W1.", "One moment.")
    assert len(message.tool_calls) == 1


def test_a_message_with_a_reflection_has_the_ids_that_its_model_wrote(chat: Chat) -> None:
    question = Message(role="user", content="Cancel order W2.")
    for written in (
        f"<reflect>It was W1.</reflect>\n<tool_call>\n{QUOTED}\n</tool_call><|im_end|>",
        "<reflect>It was W1.</reflect>\nWhich order is it?<|im_end|>",
        "<reflect>It was W1.</reflect><|im_end|>",
    ):
        ids = chat.encode(written)
        assert chat.answer([question, chat.message(ids)]) == ids


def test_a_prompt_leaves_reflections_of_earlier_messages_out(chat: Chat) -> None:
    question = Message(role="user", content="Cancel order W2.")
    answer = Message(role="assistant", content="Which one?", reflection="It was W1.")
    bare = answer.model_copy(update={"reflection": None})
    assert chat.prompt([question, answer]) == chat.prompt([question, bare])
    assert chat.answer([question, answer, answer])[:1] != chat.answer([question, answer, bare])[:1]


def configure(
    directory: Path, folder: Path, *, eos: str | None, ids: object = None, template: str = ""
) -> Path:
    """A copy of a checkpoint's tokenizer with other end tokens, or another template."""
    tokenizer = Chat(directory).tokenizer
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": eos}))
    if ids is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    if template:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize(
    ("eos", "ids", "words"),
    [
        (None, None, "no end token is configured"),
        (None, [], "no end token is configured"),
        (None, 10**6, "(eos_token_id 1000000 is not in its vocabulary)"),
        ("<|endoftext|>", None, "ends an answer with <|endoftext|>"),
        (None, 0, "ends an answer with <|endoftext|>"),
    ],
)
def test_a_checkpoint_whose_answers_never_end_is_refused_with_the_remedy(
    eos: str | None, ids: object, words: str, directory: Path, tmp_path: Path
) -> None:
    folder = configure(directory, tmp_path / "model", eos=eos, ids=ids)
    with pytest.raises(NoEndToken) as refused:
        Chat(folder)
    assert words in str(refused.value)
    assert "<|im_end|>" in str(refused.value), "it is what the template writes"
    assert "set eos_token_id in its generation_config.json, or eos_token" in str(refused.value)
    if ids != 10**6:
        assert words in str(find_trouble(folder)), "doctor says so without torch"


@pytest.mark.parametrize("ids", [[[1]], {"a": 1}, "<|im_end|>", True, 1.0, [1, "2"]])
def test_an_end_token_that_is_no_id_is_named_with_the_remedy(
    ids: object, directory: Path, tmp_path: Path
) -> None:
    folder = configure(directory, tmp_path / "model", eos="<|im_end|>", ids=ids)
    with pytest.raises(NoEndToken) as refused:
        Chat(folder)
    assert "generation_config.json holds" in str(refused.value)
    assert "write the number of the token" in str(refused.value)
    assert find_trouble(folder) == str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_generation_settings_that_cannot_be_read_are_named(
    text: str, directory: Path, tmp_path: Path
) -> None:
    folder = configure(directory, tmp_path / "model", eos="<|im_end|>")
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(NoEndToken, match="holds no settings; correct it"):
        Chat(folder)
    assert "holds no settings" in str(find_trouble(folder))


def test_a_checkpoint_without_generation_settings_has_those_of_its_model(
    directory: Path, tmp_path: Path
) -> None:
    folder = configure(directory, tmp_path / "model", eos=None)
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [1]}))
    assert Chat(folder).ends == {1}
    assert find_trouble(folder) is None
    empty = configure(directory, tmp_path / "empty", eos="<|im_end|>", ids=[])
    (empty / "generation_config.json").write_text("{}")
    assert Chat(empty).ends == {1}


def test_a_checkpoint_that_ends_its_turns_in_some_way_is_taken(
    directory: Path, tmp_path: Path
) -> None:
    named = configure(directory, tmp_path / "named", eos=None, ids=[0, 1])
    plain = configure(
        directory, tmp_path / "plain", eos="<|endoftext|>",
        template="{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}",
    )  # fmt: skip
    strict = configure(
        directory, tmp_path / "strict", eos="<|endoftext|>",
        template="{{ raise_exception('a system message is missing') }}",
    )  # fmt: skip
    for folder in (directory, named, plain, strict):
        assert Chat(folder).ends
        assert find_trouble(folder) is None


def test_a_template_that_ends_no_answer_is_no_fault_of_the_environment(directory: Path) -> None:
    chat, shop = Chat(directory), Shop()
    chat.tokenizer.chat_template = "{% for m in messages %}{{ m.role }}{% endfor %}"
    task = shop.task(shop.generate(next(iter(shop.capabilities)), 3).id)
    with pytest.raises(NoTemplate, match="does not write an answer after its own prompt"):
        reference(shop, chat, task, "r")
