"""Every time limit of the product, derived from the one knob a user has: the lease."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_LEASE_SECONDS = 10.0
CHUNK_SECONDS = 0.02  # what one chunk takes on its link: the longest an urgent frame waits behind it
STAGGER_SECONDS = 0.25  # before the next address of a host is tried too (RFC 8305: 150 to 250 ms)
CREDIT_SECONDS = 0.02  # the longest that credit is held back, so that rates can be measured
BURST_PAUSE_SECONDS = 0.5  # without data for so long, what is sent next begins a burst
HOLD_BACK_SECONDS = 1.0  # for so long its rate is held to what is known
LONG_BURST_SECONDS = 4.0  # what is worth a fresh start of the congestion control at the next one
PROBE_SECONDS = 2.0  # the longest that a path is probed
SURVEY_PROBE_SECONDS = 0.8  # the same where there are many to be probed, and 5 round trips
FAN_SECONDS = 1.0  # for all links of a holder to show what its line carries, and 5 round trips


@dataclass(frozen=True)
class Timeouts:
    """Limits in seconds. A peer that was silent for the lease is lost; everything else follows from it.

    A connection is given up earlier than that, so that there is time to make another one within the lease.
    """

    lease_seconds: float = DEFAULT_LEASE_SECONDS

    @property
    def heartbeat_seconds(self) -> float:
        """Between two pings on a link."""
        return self.lease_seconds / 10

    @property
    def suspect_seconds(self) -> float:
        """After so long a silence a peer is shown as suspect."""
        return 3 * self.heartbeat_seconds

    @property
    def silence_seconds(self) -> float:
        """After so long a silence a connection is given up, and whoever dialled it dials again."""
        return 6 * self.heartbeat_seconds

    @property
    def unacknowledged_seconds(self) -> float:
        """`TCP_USER_TIMEOUT`: how long sent bytes may stay unacknowledged."""
        return 0.5 * self.lease_seconds

    @property
    def redial_seconds(self) -> float:
        """For the first attempt to make a lost connection again; twice as long for the next."""
        return self.lease_seconds / 5

    @property
    def resume_seconds(self) -> float:
        """For a lost data link to be made again, counted from its loss; whether its peer still lives is the
        broker's to say.
        """
        return self.lease_seconds

    @property
    def connect_seconds(self) -> float:
        """For TCP to connect: two lost SYNs at the default lease. A firewall that says nothing costs this."""
        return 0.4 * self.lease_seconds

    @property
    def dial_seconds(self) -> float:
        """For one address: connect, TLS and greeting."""
        return self.lease_seconds

    @property
    def reverse_seconds(self) -> float:
        """For a peer that was asked to dial back: its own attempt, and the words through the broker."""
        return 1.2 * self.lease_seconds

    @property
    def circuit_seconds(self) -> float:
        """How long a relay lets a circuit's token wait for its holder, and one holder for the other."""
        return 3 * self.lease_seconds

    @property
    def probe_dial_seconds(self) -> float:
        """The lease of whoever dials only to probe: a firewall that says nothing costs 0.4 of it."""
        return self.lease_seconds / 3

    @property
    def probe_link_seconds(self) -> float:
        """For a link that is only probed to come about, whichever way."""
        return 0.8 * self.lease_seconds

    @property
    def probe_answer_seconds(self) -> float:
        """For two workers who were asked to probe each other to say what came of it."""
        return self.probe_link_seconds + 2 * PROBE_SECONDS

    @property
    def survey_calm_seconds(self) -> float:
        """So long a fleet must have been idle, and nobody have come, before it is surveyed unasked."""
        return 3 * self.heartbeat_seconds

    @property
    def survey_soon_seconds(self) -> float:
        """Before two workers of whom a probe showed nothing are asked again; then twice as long each time."""
        return 3 * self.lease_seconds

    @property
    def survey_retry_seconds(self) -> float:
        """The longest pause before what could not be measured is tried again unasked."""
        return 60 * self.lease_seconds

    @property
    def join_seconds(self) -> float:
        """A stranger's whole visit."""
        return self.lease_seconds

    @property
    def start_seconds(self) -> float:
        """For a process that was started here to say that it listens."""
        return 6 * self.lease_seconds

    @property
    def stop_seconds(self) -> float:
        """For a process that was asked to end, before it is killed."""
        return self.lease_seconds

    @property
    def close_seconds(self) -> float:
        """To say goodbye before a connection is cut."""
        return self.lease_seconds / 5

    @property
    def link_seconds(self) -> float:
        """For a data link of a new plan to be welcomed; workers may still be verifying what they run."""
        return 6 * self.lease_seconds

    @property
    def search_seconds(self) -> float:
        """CPU time for which a planner may look for something better than it has."""
        return 0.5 * self.lease_seconds

    @property
    def planning_seconds(self) -> float:
        """For the planner's process, which first reads a model of any size."""
        return 12 * self.lease_seconds

    @property
    def patience_seconds(self) -> float:
        """How long workers may go without any sign of progress in loading, before the job is given up."""
        return 30 * self.lease_seconds

    @property
    def pass_seconds(self) -> float:
        """What a pass of a microbatch may take however short it should be: a machine has other work too."""
        return 6 * self.lease_seconds

    @property
    def chore_seconds(self) -> float:
        """For whatever else a device does for a job (verify, compile, update, hand over), before the broker
        gives the job up.
        """
        return 24 * self.lease_seconds

    @property
    def longest_pass_seconds(self) -> float:
        """What a pass may take at most, and be expected to: a worker refuses a job that asks for more at a
        time.
        """
        return 360 * self.lease_seconds

    @property
    def reconnect_seconds(self) -> float:
        """The longest pause between two attempts to reach a lost broker."""
        return self.lease_seconds

    @property
    def certificate_check_seconds(self) -> float:
        """Between two looks at whether a certificate is due for renewal."""
        return min(360 * self.lease_seconds, 3600.0)

    def listed(self) -> dict[str, float]:
        """All limits by name, as `farflung status` prints them."""
        names = [name for name, member in vars(type(self)).items() if isinstance(member, property)]
        return {"lease_seconds": self.lease_seconds, **{name: getattr(self, name) for name in names}}
