"""The address of a PostgreSQL database, whose password appears in no message."""

from __future__ import annotations

from dataclasses import dataclass, field

from psycopg import Error, ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from farflung.errors import StoreError

SCHEMES = ("postgresql://", "postgres://")

_SECRETS = ("password", "sslpassword")
_LONGEST_REASON = 300


@dataclass(frozen=True)
class ServerAddress:
    """`url` is as the user wrote it; `name` is it without secrets and options, for messages.

    Raises
    ------
    StoreError
        From `parse`: the text is no such address. The message does not contain any part of it.
    """

    url: str = field(repr=False)
    name: str
    _secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """Read postgresql://USER[:PASSWORD]@HOST[:PORT]/DATABASE."""
        try:
            parts = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
        except ProgrammingError:
            raise _no_address() from None
        host, port, database = (parts.get(key, "") for key in ("host", "port", "dbname"))
        is_plain = "@" not in host + database and all(one.isdigit() or not one for one in port.split(","))
        if not url.startswith(SCHEMES) or not is_plain:  # what follows would show a part of the password
            raise _no_address()
        user = f"{parts['user']}@" if "user" in parts else ""
        on_socket = host.startswith("/")
        where = "" if on_socket else host + (f":{port}" if port else "")
        name = f"postgresql://{user}{where}/{database}" + (f"?host={host}" if on_socket else "")
        return cls(url, name, tuple(parts[key] for key in _SECRETS if parts.get(key)))

    def words(self, error: Error) -> str:
        """What the server or its client says of an error, in one short line without secrets."""
        said = error.diag.message_primary or str(error)
        for secret in self._secrets:
            said = said.replace(secret, "***")
        said = " ".join(said.split())
        return said if len(said) <= _LONGEST_REASON else f"{said[:_LONGEST_REASON]}…"


def _no_address() -> StoreError:
    return StoreError(
        "--store is not the address of a PostgreSQL database: write it like "
        "postgresql://USER@HOST:5432/DATABASE, with any of :/?#[]@% in a password as %XX"
    )
