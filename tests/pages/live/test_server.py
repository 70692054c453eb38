"""The page over real HTTP: who may read it, which paths there are, and how slow viewers are dropped."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
import psutil
import pytest
from tests.pages.live.statuses import job, status, view, worker
from tests.support.ports import held_port

pytest.importorskip("uvicorn", reason="the live page needs farflung[web]: `make dev` installs it")

from prometheus_client.parser import text_string_to_metric_families

from farflung.errors import ConnectionFailed
from farflung.pages.live import server
from farflung.pages.live.api import MOST_BODY
from farflung.pages.live.prometheus import exposed
from farflung.pages.live.server import FILES, check_pages, serve_pages
from farflung.protocol.messages import Status
from farflung.protocol.reachability import LinkReport
from farflung.protocol.viewer import LinkView
from farflung.transport.link.stats import LinkStatus

TOKEN = "a-token-of-16-characters-or-more"


@asynccontextmanager
async def served(says: Callable[[], Status], token: str = "", jobs: Sequence[str] = ()) -> AsyncIterator[int]:
    """The page on a port of this machine, of these jobs if any are named."""
    shown = view(says).limited_to(jobs) if jobs else view(says)
    with held_port() as port:
        serving = asyncio.create_task(serve_pages(f"127.0.0.1:{port}", shown, token))
        try:
            while True:
                try:
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                except OSError:
                    assert not serving.done(), serving.exception()
                    await asyncio.sleep(0.01)
            yield port
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def fleet() -> Status:
    return status([job()], [worker()])


async def ask(
    port: int, path: str, method: str = "GET", body: bytes = b"", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own: status, headers by lower-case names, and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = {"Host": f"127.0.0.1:{port}", "Connection": "close", **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    top, _, found = answer.partition(b"\r\n\r\n")
    first, *rest = top.decode().split("\r\n")
    return int(first.split()[1]), {n.lower(): v for n, _, v in (line.partition(": ") for line in rest)}, found


def test_the_page_its_files_and_the_api_are_there_with_a_strict_policy() -> None:
    async def seen() -> None:
        async with served(fleet) as port:
            for path in FILES:
                code, headers, body = await ask(port, path)
                assert (code, headers["content-type"]) == (200, FILES[path][1])
                assert "default-src 'none'" in headers["content-security-policy"]
                assert "unsafe" not in headers["content-security-policy"]
                assert headers["x-content-type-options"] == "nosniff"
                assert "access-control-allow-origin" not in headers
                assert b"http://" not in body.replace(b"http://www.w3.org", b"")
            _, _, body = await ask(port, "/api/v1/status")
            assert json.loads(body)["status"]["jobs"][0]["loss"] == 2.5
            _, _, body = await ask(port, "/api/v1/curves")
            assert json.loads(body)["job-1"]["step"] == [3]

    asyncio.run(seen())


def test_a_page_of_some_jobs_shows_nothing_of_the_others() -> None:
    """By name, which several may have, or by id."""
    others = msgspec.structs.replace(job(id="job-2"), name="secret-project")
    elsewhere = msgspec.structs.replace(worker("hidden-host"), job="job-2")
    links = [LinkView(name, id, LinkReport("peer", "", 1, None)) for name, id in (("home", "job-1"),)]
    links += [LinkView("hidden-host", "job-2", LinkReport("peer", "", 1, None))]

    def says() -> Status:
        made = status([job(), others], [worker(), elsewhere, worker("lab")])
        return msgspec.structs.replace(made, links=links, backup_pool=["hidden-spare"])

    async def seen() -> None:
        for names in (["gpt"], ["job-1"]):
            async with served(says, jobs=names) as port:
                found = b""
                for path in ("status", "curves", "jobs/job-2/step", "jobs/job-2/trace", "jobs/job-2/log"):
                    code, _, body = await ask(port, f"/api/v1/{path}")
                    assert code == (409 if "job-2" in path else 200), body
                    found += body
                _, _, metrics = await ask(port, "/metrics")
                assert b"secret" not in found + metrics and b"hidden" not in found + metrics
                assert b"home" in found and b"lab" in found and b"gpt" in metrics
                code, _, body = await ask(port, "/api/v1/jobs/job-1/log")
                assert (code, json.loads(body)) == (200, [[1.0, "job-1 began"]])
                for asked in (b'{"job": "job-2"}', b'{"job": "job-1"}'):
                    code, answer = await post(port, asked)
                    assert code == 409 and "page" in str(answer["error"])

    asyncio.run(seen())


async def post(
    port: int, body: bytes, path: str = "/api/v1/what-if", **headers: str
) -> tuple[int, dict[str, object]]:
    """What a program posts: the status, and the answer's JSON."""
    given = {"Content_Type": "application/json", "Content_Length": str(len(body)), **headers}
    code, _, found = await ask(port, path, "POST", body, **given)
    return code, json.loads(found)


def test_a_step_its_trace_the_log_and_what_ifs_are_answered_or_refused_in_words() -> None:
    async def seen() -> None:
        async with served(fleet) as port:
            _, _, body = await ask(port, "/api/v1/jobs/job-1/step")
            assert json.loads(body)["spent"]["home"]["waiting for lab"] == 0.5
            code, _, body = await ask(port, "/api/v1/jobs/job-7/step")
            assert (code, json.loads(body)) == (
                409,
                {"error": "there is no job job-7: `farflung status` lists them"},
            )
            _, headers, body = await ask(port, "/api/v1/jobs/job-1/trace")
            assert headers["content-disposition"] == 'attachment; filename="job-1-trace.json"'
            assert json.loads(body)["traceEvents"]
            _, _, body = await ask(port, "/api/v1/jobs/job-1/log")
            assert json.loads(body) == [[1.0, "job-1 began"]]
            code, answer = await post(port, b'{"job": "job-1", "microbatches": 4}')
            assert code == 200
            assert answer["then"]["step_seconds"] == 2.0  # type: ignore[index]

    asyncio.run(seen())


def test_a_page_of_another_site_can_ask_nothing_of_the_planner_and_no_one_can_ask_too_much() -> None:
    good = b'{"job": "job-1"}'

    async def seen() -> None:
        async with served(fleet) as port:
            assert (await post(port, good))[0] == 200
            assert (await post(port, good, Sec_Fetch_Site="same-origin"))[0] == 200
            assert (await post(port, good, Sec_Fetch_Site="cross-site"))[0] == 403
            assert (await post(port, good, Content_Type="text/plain"))[0] == 403  # what a form can send
            assert (await ask(port, "/api/v1/what-if"))[0] == 405
            for bad in (b"{", b'{"job": 7}', b'{"job": "job-1", "shell": "rm"}', b"[" * 100_000):
                code, answer = await post(port, bad)
                assert (code, list(answer)) == (400, ["error"])
                assert "\n" not in str(answer["error"])
            code, answer = await post(port, b" " * (MOST_BODY + 1))
            assert code == 413

    asyncio.run(seen())


def test_a_request_that_does_not_get_complete_frees_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.pages.live.api.BODY_SECONDS", 0.3)
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 5)

    async def seen() -> None:
        async with served(fleet) as port:
            head = f"POST /api/v1/what-if HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            head += "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
            for _, writer in slow:
                writer.write(head.encode())
            for reader, _ in slow:
                assert (await asyncio.wait_for(reader.readline(), 30)).split()[1] == b"408"
            for _, writer in slow:
                writer.close()
            for _ in range(200):
                if answered := await reader_of(port):
                    break
                await asyncio.sleep(0.05)
            assert answered

    asyncio.run(seen())


async def reader_of(port: int) -> bytes:
    """What a new connection gets to read; nothing if it is hung up on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET /api/v1/curves HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        return await reader.readline()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_viewers_together_cannot_ask_too_often_nor_pages_of_other_sites_at_all() -> None:
    async def seen() -> None:
        async with served(fleet) as port:
            path = "/api/v1/jobs/job-1/step"
            for site, code in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
                assert (await ask(port, path, Sec_Fetch_Site=site))[0] == code, site
            codes = [(await ask(port, path))[0] for _ in range(40)]
            assert codes[0] == 200 and codes[-1] == 429
            assert (await ask(port, "/api/v1/status"))[0] == 200

    asyncio.run(seen())


def test_the_api_is_described_as_it_is() -> None:
    async def seen() -> None:
        async with served(fleet) as port:
            _, _, body = await ask(port, "/api/v1/openapi.json")
            described = json.loads(body)
            for path, methods in described["paths"].items():
                (method,) = methods
                kinds = methods[method]["responses"]["200"]["content"]
                if "text/event-stream" in kinds:
                    continue  # it never ends
                code, headers, _ = await ask(port, path.replace("{job}", "job-1"), method.upper())
                if method == "post":
                    assert code == 403, path  # it is there, and wants JSON
                    continue
                assert (code, headers["content-type"].partition(";")[0] in kinds) == (200, True), path
            names = set(described["components"]["schemas"])
            used = set(re.findall(r"#/components/schemas/(\w+)", body.decode()))
            assert used <= names and {"Status", "StepTimeline", "WhatIf", "Foreseen"} <= names

    asyncio.run(seen())


def test_the_dashboard_for_grafana_asks_for_metrics_that_there_are() -> None:
    link = LinkStatus("lab", "direct", "", "bbr", 1, 2.0, 8.0, 9, 9, resent=0.01)
    seen_link = LinkView("home", "job-1", LinkReport("lab", "", 7000, link), 10.0)
    one = msgspec.structs.replace(job(), validated_step=2, validation_loss=2.0, step_seconds=1.0)
    now = msgspec.structs.replace(status([one], [worker()]), links=[seen_link])
    there = set(re.findall(r"^(farflung_\w+)", exposed(now).decode(), re.MULTILINE))

    async def asked() -> set[str]:
        async with served(fleet) as port:
            _, _, body = await ask(port, "/grafana.json")
        panels = json.loads(body)["panels"]
        words = " ".join(target["expr"] for panel in panels for target in panel["targets"])
        return set(re.findall(r"farflung_\w+", words))

    assert asyncio.run(asked()) == there


def test_actions_need_a_token_and_cannot_come_from_a_form_of_another_site() -> None:
    def body(token: str, **action: object) -> bytes:
        return json.dumps({"token": token, "action": action}).encode()

    ending = {"type": "CancelJob", "job": "job-1", "reason": "slow"}

    async def seen() -> None:
        async with served(fleet) as port:
            path = "/api/v1/act"
            assert await post(port, body("right", **ending), path) == (200, {"words": "CancelJob is done"})
            code, answer = await post(port, body("wrong", **ending), path)
            assert (code, answer) == (409, {"error": "this token is not known here"})
            assert (await post(port, body("right", **ending), path, Content_Type="text/plain"))[0] == 403
            assert (await post(port, body("right", **ending), path, Sec_Fetch_Site="cross-site"))[0] == 403
            assert (await post(port, body("right", type="Submit"), path))[0] == 400
            assert (await post(port, json.dumps({"action": ending}).encode(), path))[0] == 400
            assert (await ask(port, path))[0] == 405

    asyncio.run(seen())


def test_files_are_compressed_for_those_who_can_read_that() -> None:
    async def seen() -> None:
        async with served(fleet) as port:
            _, _, plain = await ask(port, "/live.js")
            _, headers, packed = await ask(port, "/live.js", Accept_Encoding="gzip, br")
            assert headers["content-encoding"] == "gzip"
            assert gzip.decompress(packed) == plain

    asyncio.run(seen())


def test_prometheus_reads_the_fleet_with_names_as_they_are() -> None:
    def says() -> Status:
        return status([job(loss=2.5), job(loss=None, id='job-2"\\\n')], [worker(), worker("lab", "left")])

    async def seen() -> None:
        async with served(says) as port:
            code, headers, body = await ask(port, "/metrics")
        assert (code, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }
        assert found["farflung_workers", "training"] == found["farflung_workers", "left"] == 1
        assert found["farflung_job_loss", "job-1", "gpt"] == 2.5
        assert found["farflung_job_step", 'job-2"\\\n', "gpt"] == 3
        assert ("farflung_job_loss", 'job-2"\\\n', "gpt") not in found

    asyncio.run(seen())


def test_no_path_reaches_the_disk_and_nothing_can_be_changed() -> None:
    async def seen() -> None:
        async with served(fleet) as port:
            for path in ("/../server.py", "/%2e%2e/server.py", "/live.js/../server.py"):
                assert (await ask(port, path))[0] == 404, path
            for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
                assert (await ask(port, "/api/v1/status", method, Content_Length="0"))[0] == 405
            assert (await ask(port, "/" + "a" * 100_000))[0] in (400, 404, 431)

    asyncio.run(seen())


def test_only_names_of_this_machine_are_answered_so_that_no_domain_can_point_here() -> None:
    async def seen() -> None:
        async with served(fleet) as port:
            own = ("localhost", "127.0.0.1", "127.0.0.2", "[::1]")
            for host in (*own, *(f"{name}:{port}" for name in own)):
                assert (await ask(port, "/", Host=host))[0] == 200, host
            for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil"):
                assert (await ask(port, "/api/v1/status", Host=host))[0] == 403, host

    asyncio.run(seen())


def test_a_token_opens_the_page_once_and_then_a_cookie_does() -> None:
    async def seen() -> None:
        async with served(fleet, TOKEN) as port:
            assert (await ask(port, "/"))[0] == 401
            assert (await ask(port, "/api/v1/status", Authorization="Bearer wrong"))[0] == 401
            assert (await ask(port, "/?token=wrong"))[0] == 401
            assert (await ask(port, "/api/v1/status", Authorization=f"Bearer {TOKEN}"))[0] == 200
            code, headers, _ = await ask(port, f"/?token={TOKEN}", Host="box.example:7701")
            cookie = headers["set-cookie"]
            assert (code, headers["location"]) == (303, "/")
            assert "HttpOnly" in cookie
            assert "SameSite=lax" in cookie
            assert (await ask(port, "/", Cookie=cookie.partition(";")[0]))[0] == 200

    asyncio.run(seen())


@pytest.mark.parametrize(
    ("address", "token", "words"),
    [
        ("0.0.0.0:7701", "", "give --web-token"),
        ("[::]:7701", "", "give --web-token"),
        ("127.0.0.1:7701", "short", "must be 16 to 256 letters"),
        ("127.0.0.1:7701", "sixteen-or-more-\u00e9", "must be 16 to 256 letters"),
        ("127.0.0.1:port", "", "port"),
    ],
)
def test_an_address_that_others_reach_needs_a_token(address: str, token: str, words: str) -> None:
    with pytest.raises(ConnectionFailed, match=words):
        check_pages(address, token)


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match=address):
            asyncio.run(serve_pages(address, view(fleet)))


def test_a_viewer_that_never_reads_is_dropped_and_others_see_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SLOWEST_SECONDS", 0.5)
    monkeypatch.setattr("farflung.pages.live.api.SLOWEST_SECONDS", 0.5)
    monkeypatch.setattr("farflung.pages.live.feed.SECONDS", 0.02)
    steps = iter(range(10**9))
    many = [worker(f"worker-{number}", reason="w" * 100) for number in range(1000)]

    async def seen() -> None:
        async with served(lambda: status([job(next(steps))], many)) as port:
            silent = socket.socket()
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect(("127.0.0.1", port))
            silent.sendall(f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
            writer.write(f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            numbers = set()
            async with asyncio.timeout(60):
                while len(numbers) < 20 or _is_held(silent, port):
                    if (line := await reader.readline()).startswith(b"id: "):
                        numbers.add(line)
            assert sorted(numbers) == sorted(numbers, key=lambda one: int(one.split()[1]))
            writer.close()
            silent.close()

    asyncio.run(seen())


def test_silent_connections_are_hung_up_on_and_take_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 20)

    async def seen() -> None:
        async with served(fleet, TOKEN) as port:
            silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
            try:
                await until(lambda: sum(_is_held(one, port) for one in silent) <= 20)
                await until(lambda: not any(_is_held(one, port) for one in silent))
                assert (await ask(port, "/api/v1/status", Authorization=f"Bearer {TOKEN}"))[0] == 200
            finally:
                for one in silent:
                    one.close()

    asyncio.run(seen())


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, and then for what the server does of it."""
    async with asyncio.timeout(30):
        while True:
            await asyncio.sleep(0.05)
            if holds():
                return


def test_own_addresses_need_no_token() -> None:
    for address in ("localhost:7701", "127.0.0.2:7701", "[::1]:7701"):
        check_pages(address, "")


def _is_held(viewer: socket.socket, port: int) -> bool:
    """Whether the server, which is in this process, still has the connection of a viewer."""
    ends = port, viewer.getsockname()[1]
    held = psutil.Process().net_connections("tcp")
    return any(one.raddr and (one.laddr.port, one.raddr.port) == ends for one in held)
