"""`Chats`: conversations as tokens, by a tokenizer's own chat template, of which the answers are learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from farflung.data.padding import IGNORED
from farflung.errors import JobError
from farflung.text import first_line, kind_of

ANSWERING = "assistant"
Messages = list[dict[str, Any]]


class Chats:
    """A data set of conversations for `Job(data=)`, with `Pad` or `Pack`.

    An item has "input_ids", what the tokenizer's chat template makes of a conversation, and "labels", which
    are the same in what an assistant says, with the tokens that end it, and -100 elsewhere. Both are lists of
    whole numbers. An answer begins where it differs from the template's prompt for one, which may open a
    thought that the answer lacks (DeepSeek-R1, QwQ). Conversations are tokenized when they are read, so
    `num_workers` threads share that.

    Parameters
    ----------
    conversations
        A map-style data set whose items are lists of messages, or dicts with such a list as "messages". A
        message is a dict with "role", such as "user" or "assistant", and "content".
    tokenizer
        One of transformers with a chat template, or any object with such an `apply_chat_template`.
    learn
        "all" learns each answer; "last" only that at the end of a conversation, which a template may write
        otherwise than an answer before others.

    Raises
    ------
    JobError
        The tokenizer has no chat template, or `learn` is neither; when an item is read, it is no
        conversation, has nothing to learn, or the template refuses it, or writes an answer that is learned,
        or what comes before it, otherwise once the conversation goes on.
    """

    def __init__(self, conversations: Sequence[Any], tokenizer: Any, learn: str = "all") -> None:
        if not hasattr(tokenizer, "apply_chat_template") or not getattr(tokenizer, "chat_template", True):
            raise JobError(
                f"Chats needs a tokenizer with a chat template, found {kind_of(tokenizer)} without one: take"
                " that of an instruction-tuned model, or set tokenizer.chat_template"
            )
        if learn not in ("all", "last"):
            raise JobError(f'learn must be "all" or "last", found {learn!r}')
        self._conversations, self._tokenizer, self._learn = conversations, tokenizer, learn

    def __len__(self) -> int:
        return len(self._conversations)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        messages = _messages(self._conversations[index])
        tokens = self._tokens(messages)
        labels = [IGNORED] * len(tokens)
        for start, end in self._answers(messages, tokens):
            labels[start:end] = tokens[start:end]
        return {"input_ids": tokens, "labels": labels}

    def _answers(self, messages: Messages, tokens: list[int]) -> Iterator[tuple[int, int]]:
        """Where answers that are learned begin and end."""
        places = [at for at, message in enumerate(messages) if message["role"] == ANSWERING and at]
        if self._learn == "last":
            places = [at for at in places if at == len(messages) - 1]
        if not places:
            where = "at its end" if self._learn == "last" else "after its first message"
            raise JobError(f"a conversation has nothing to learn: no message of {ANSWERING!r} {where}")
        for at in places:
            start = self._start(messages[:at], tokens)
            is_last = at == len(messages) - 1
            after = tokens if is_last else self._tokens(messages[: at + 1])
            if start is None or tokens[: len(after)] != after:
                what = f"message {at + 1}" if start is not None else f"what comes before message {at + 1}"
                advice = "set another as tokenizer.chat_template" if is_last else 'give learn="last"'
                raise JobError(
                    f"the chat template writes {what} of a conversation otherwise once the conversation goes"
                    f" on, so its tokens are not known: {advice}"
                )
            yield start, len(after)

    def _start(self, before: Messages, tokens: list[int]) -> int | None:
        """Where an answer to `before` begins; None if the template writes `before` otherwise."""
        prompt = self._tokens(before, answering=True)
        common = _common(tokens, prompt)
        if common == len(prompt):
            return common
        asked = self._tokens(before)  # the prompt may open a thought, and the answer have none
        return max(common, len(asked)) if tokens[: len(asked)] == asked else None

    def _tokens(self, messages: Messages, answering: bool = False) -> list[int]:
        try:
            made = self._tokenizer.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=answering, return_dict=False
            )
        except Exception as error:  # a template's own errors are of any kind
            raise JobError(f"the chat template refuses a conversation: {first_line(error)}") from error
        return [int(token) for token in made]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _messages(item: Any) -> Messages:
    found = item.get("messages") if isinstance(item, Mapping) else item
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise JobError(
            'a conversation must be a list of messages, or a dict with one as "messages",'
            f" found {kind_of(item)}"
        )
    for message in found:
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise JobError(f'a message must be a dict with "role" and "content", found {str(message)[:80]!r}')
    return [dict(message) for message in found]
