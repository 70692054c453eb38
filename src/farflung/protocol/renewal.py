"""Keeps a holder's certificate fresh: asks for a new one at half life, and shows it on new connections."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Sequence

from farflung.errors import FarflungError
from farflung.protocol.messages import Message, Renew
from farflung.transport.identity import Identity

log = logging.getLogger("farflung.protocol")


class Renewal:
    """Asks over whatever `tell` is; a live connection keeps the certificate it was made with."""

    def __init__(self, identity: Identity, contexts: Sequence[ssl.SSLContext]) -> None:
        self._identity = identity
        self._contexts = contexts
        self._timer: asyncio.TimerHandle | None = None

    def start(self, tell: Callable[[Message], None], every_seconds: float) -> None:
        """Look now, when half of the certificate's life is over, and at least every `every_seconds`."""
        if self._timer is not None:
            self._timer.cancel()
        left = self._identity.renewal_due_at - time.time()
        if left <= 0:
            tell(Renew(self._identity.renewal_request()))
            left = every_seconds
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(min(left, every_seconds), self.start, tell, every_seconds)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def renewed(self, certificate: bytes) -> None:
        """Keep the new certificate."""
        try:
            self._identity = self._identity.renewed(certificate)
        except FarflungError as error:
            log.warning("the renewed certificate was refused: %s", error)
            return
        for context in self._contexts:
            self._identity.present_in(context)
        log.info("the certificate was renewed")
