"""Conversations become tokens by the tokenizer's own template, and only answers have labels."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from farflung.data import Chats, Pad
from farflung.errors import JobError

TEMPLATE = (
    "{% for message in messages %}<start> {{ message['role'] }} {{ message['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<start> assistant {% endif %}"
)
ONLY_THE_LAST = (  # as templates do that drop what a model thought before it went on
    "{% for message in messages %}<start> {{ message['role'] }}"
    " {{ message['content'] if loop.last or message['role'] == 'user' else 'nothing' }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<start> assistant {% endif %}"
)
OPENS_A_THOUGHT = (  # for an answer that is to come, and drops it from those that are there, as DeepSeek-R1's
    "{% for message in messages %}<start> {{ message['role'] }} {{ message['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<start> assistant <think> {% endif %}"
)
SAYS_WHO_IS_NEXT = (  # as long as nothing follows
    "{% for message in messages %}<start> {{ message['role'] }} {{ message['content'] }} <end>"
    " {{ 'nothing' if loop.last and message['role'] == 'user' else '' }} {% endfor %}"
    "{% if add_generation_prompt %}<start> assistant {% endif %}"
)
WORDS = ["?", "<think>", "<start>", "<end>", "user", "assistant", "hello", "hi", "bye", "nothing"]
USER, ANSWER = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}
TWO_TURNS = [USER, ANSWER, {**USER, "content": "bye"}, {**ANSWER, "content": "bye bye"}]


def tokenizer(template: str | None = TEMPLATE) -> Any:
    known = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, "?"))
    known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=known, unk_token="?")
    made.chat_template = template
    return made


def learned(item: dict[str, list[int]]) -> str:
    """The words that have labels, and dots for the others."""
    assert len(item["input_ids"]) == len(item["labels"])
    assert all(label in (-100, token) for token, label in zip(item["input_ids"], item["labels"], strict=True))
    return " ".join("." if label == -100 else WORDS[label] for label in item["labels"])


def test_every_answer_is_learned_with_its_end() -> None:
    items = Chats([TWO_TURNS, {"messages": [USER, ANSWER], "source": "here"}], tokenizer())
    assert len(items) == 2
    assert learned(items[0]) == ". . . . . . hi <end> . . . . . . bye bye <end>"
    assert learned(items[1]) == ". . . . . . hi <end>"


def test_the_last_answer_alone_is_learned_though_earlier_ones_are_written_otherwise() -> None:
    for template in (TEMPLATE, ONLY_THE_LAST):
        (item,) = [Chats([TWO_TURNS], tokenizer(template), learn="last")[0]]
        assert learned(item) == ". . . . . . . . . . . . . . bye bye <end>"


def test_an_answer_without_the_thought_that_its_prompt_opens_is_learned() -> None:
    alone = Chats([TWO_TURNS], tokenizer(OPENS_A_THOUGHT), learn="last")[0]
    assert learned(alone) == ". . . . . . . . . . . . . . bye bye <end>"
    each = Chats([TWO_TURNS], tokenizer(OPENS_A_THOUGHT))[0]
    assert learned(each) == ". . . . . . hi <end> . . . . . . bye bye <end>"


def test_an_answer_with_the_thought_that_its_prompt_opens_begins_with_the_thought() -> None:
    thought = {**ANSWER, "content": "<think> hello bye"}
    item = Chats([[USER, thought]], tokenizer(OPENS_A_THOUGHT), learn="last")[0]
    assert learned(item) == ". . . . . . . hello bye <end>"


@pytest.mark.parametrize("learn", ["all", "last"])
def test_a_template_that_writes_a_question_otherwise_before_its_answer_is_refused(learn: str) -> None:
    words = (
        "what comes before message 2 of a conversation otherwise .*: set another as tokenizer.chat_template"
    )
    with pytest.raises(JobError, match=words):
        Chats([[USER, ANSWER]], tokenizer(SAYS_WHO_IS_NEXT), learn=learn)[0]


def test_items_go_with_pad() -> None:
    items = Chats([TWO_TURNS, [USER, ANSWER]], tokenizer())
    batch = Pad(20)([items[0], items[1]])
    assert batch["input_ids"].shape == batch["labels"].shape == (2, 20)
    assert int((batch["labels"] != -100).sum()) == 5 + 2


@pytest.mark.parametrize(
    ("conversation", "words"),
    [
        ("hello", "must be a list of messages, or a dict with one"),
        ([], "must be a list of messages"),
        ({"text": "hello"}, "must be a list of messages"),
        ([{"role": "user"}], 'must be a dict with "role" and "content"'),
        ([USER], "nothing to learn: no message of 'assistant' after its first message"),
        ([ANSWER], "nothing to learn"),
    ],
)
def test_what_is_no_conversation_is_named(conversation: Any, words: str) -> None:
    with pytest.raises(JobError, match=words):
        Chats([conversation], tokenizer())[0]


def test_a_template_that_writes_earlier_answers_otherwise_is_refused() -> None:
    with pytest.raises(JobError, match=r'message 2 of a conversation otherwise .* give learn="last"'):
        Chats([TWO_TURNS], tokenizer(ONLY_THE_LAST))[0]


def test_a_template_that_fails_is_one_line() -> None:
    broken = tokenizer("{{ raise_exception('roles must take turns') }}")
    with pytest.raises(JobError, match="the chat template refuses a conversation: roles must take turns"):
        Chats([TWO_TURNS], broken)[0]


def test_a_tokenizer_without_a_template_is_refused_at_once() -> None:
    with pytest.raises(JobError, match=r"chat template, found a .* without one"):
        Chats([TWO_TURNS], tokenizer(None))
    with pytest.raises(JobError, match="needs a tokenizer with a chat template, found"):
        Chats([TWO_TURNS], len)
    with pytest.raises(JobError, match='learn must be "all" or "last"'):
        Chats([TWO_TURNS], tokenizer(), learn="none")
