"""What may happen to a submitter: words of the broker, links that are lost, events of its own side."""

from __future__ import annotations

from dataclasses import dataclass

from farflung.client.links import Lost
from farflung.protocol.messages import Message


@dataclass(frozen=True)
class Trouble:
    """Something on this side went wrong; `collect` says whether the weights can still come home."""

    error: BaseException
    collect: bool


@dataclass(frozen=True)
class Stop:
    """The user wants an end."""

    reason: str


@dataclass(frozen=True)
class Gone:
    """Something the job stands on is gone."""

    reason: str


@dataclass(frozen=True)
class Written:
    """The trained weights are in the run folder."""


Event = Message | Lost | Trouble | Stop | Gone | Written
