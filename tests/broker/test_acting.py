"""Actions of those who show a token: whose may do what, and that the broker says who did it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from pathlib import Path

import pytest
from tests.support.broker_fleet import PretendedWorker, broker, identity

from farflung.broker.acting import Action, ActionRefused
from farflung.broker.security.authority import create_token
from farflung.broker.security.tokens import revoke_token, token_id
from farflung.client.run.broker_client import ask_status
from farflung.errors import ConnectionFailed, IdentityError
from farflung.protocol.membership import Drain
from farflung.protocol.messages import AllowMember, CancelJob, Registered, RemoveMember


def run(work: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(limited())


def test_an_operators_token_removes_and_allows_members_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "farflung.broker")

    async def work() -> None:
        async with broker(tmp_path) as service:
            worker = await PretendedWorker.join(service, tmp_path, "w-1")
            await worker.hear(Registered)
            token = create_token(tmp_path, "operator")
            who = f"token-{token_id(token.digest)}"
            assert await service.view.act(token.text, RemoveMember("w-1", "it lies")) == "w-1: "
            assert f"was removed by operator {who}: it lies" in await worker.lost()
            assert (
                f"token {token_id(token.digest)} asks on the page, as operator {who}: RemoveMember w-1"
                in caplog.text
            )
            assert token.text not in caplog.text
            await service.view.act(token.text, AllowMember("w-1"))
            back = await PretendedWorker.join(service, tmp_path, "w-1")
            await back.hear(Registered)
            words = await service.view.act(token.text, Drain("w-1", 5))
            assert words == "w-1 may go"
            for action in (CancelJob("job-9"), RemoveMember("nobody"), Drain("nobody", 5)):
                with pytest.raises(ActionRefused, match="no "):
                    await service.view.act(token.text, action)

    run(work())


@pytest.mark.parametrize(
    ("role", "action", "words"),
    [
        ("worker", CancelJob("job-1"), "a worker's token may do nothing here"),
        ("viewer", RemoveMember("w-1"), "a viewer's token may do nothing here"),
        ("submitter", RemoveMember("w-1"), "only jobs of those who joined with it"),
        ("submitter", CancelJob("job-1"), "only jobs of those who joined with it"),
    ],
)
def test_other_tokens_may_do_less_or_nothing(tmp_path: Path, role: str, action: Action, words: str) -> None:
    async def work() -> None:
        async with broker(tmp_path) as service:
            token = create_token(tmp_path, role)  # type: ignore[arg-type]
            with pytest.raises(ActionRefused, match=words):
                await service.view.act(token.text, action)

    run(work())


def test_tokens_that_were_revoked_or_expired_and_those_of_removed_members_may_do_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with broker(tmp_path) as service:
            expired = create_token(tmp_path, "operator", hours=1e-9)
            revoked = create_token(tmp_path, "operator")
            revoke_token(tmp_path, token_id(revoked.digest))
            for token in (expired, revoked):
                with pytest.raises(ActionRefused, match="not known here, or has expired"):
                    await service.view.act(token.text, AllowMember("w-1"))
            with pytest.raises(IdentityError):
                await service.view.act("ff1-nonsense", AllowMember("w-1"))
            assert "what was shown on the page is no token (AllowMember)" in caplog.text
            spent = create_token(tmp_path, "operator")
            await identity(service, tmp_path, "olga", "operator", spent)
            with pytest.raises(ActionRefused, match="used up"):
                await service.view.act(spent.text, AllowMember("w-1"))
            own = create_token(tmp_path, "operator", 2)
            paul = await identity(service, tmp_path, "paul", "operator", own)
            await service.view.act(own.text, RemoveMember("paul"))
            with pytest.raises(ConnectionFailed, match="was removed"):
                await ask_status(paul)
            with pytest.raises(ActionRefused, match="paul, who joined with this token, was removed"):
                await service.view.act(own.text, AllowMember("paul"))

    run(work())
