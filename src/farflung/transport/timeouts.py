"""All time limits of farflung, derived from the one that users set: the lease."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_LEASE_SECONDS = 10.0
CHUNK_SECONDS = 0.02  # duration of one chunk on its link: the longest that an urgent frame waits behind it
STAGGER_SECONDS = 0.25  # delay before the next address of a host is tried as well (RFC 8305: 150 to 250 ms)
CREDIT_SECONDS = 0.02  # the longest delay of credit, short enough to measure rates
BURST_PAUSE_SECONDS = 0.5  # after a pause this long, new data begins a burst
HOLD_BACK_SECONDS = 1.0  # how long a fresh burst is limited to the known rate
LONG_BURST_SECONDS = 4.0  # after a burst this long, the next one restarts the congestion control
PROBE_SECONDS = 2.0  # limit of one probe
SURVEY_PROBE_SECONDS = 0.8  # limit of one probe in a survey, plus 5 round trips
ACCESS_LINE_SECONDS = 1.0  # for measuring a holder's access line over all its links, plus 5 round trips


@dataclass(frozen=True)
class Timeouts:
    """Limits in seconds. A peer that was silent for the lease is lost; all others are multiples of it.

    A connection is given up earlier, so that there is time to make another one within the lease.
    """

    lease_seconds: float = DEFAULT_LEASE_SECONDS

    @property
    def heartbeat_seconds(self) -> float:
        """Interval between pings on a link."""
        return self.lease_seconds / 10

    @property
    def suspect_seconds(self) -> float:
        """Silence after which a peer is shown as suspect."""
        return 3 * self.heartbeat_seconds

    @property
    def silence_seconds(self) -> float:
        """Silence after which a connection is given up; the side that dialled it dials again."""
        return 6 * self.heartbeat_seconds

    @property
    def unacknowledged_seconds(self) -> float:
        """`TCP_USER_TIMEOUT`: how long sent bytes may stay unacknowledged."""
        return 0.5 * self.lease_seconds

    @property
    def redial_seconds(self) -> float:
        """For the first attempt to restore a lost connection; each further one may take twice as long."""
        return self.lease_seconds / 5

    @property
    def resume_seconds(self) -> float:
        """For restoring a lost data link, counted from its loss. Only the broker decides whether the peer
        still lives.
        """
        return self.lease_seconds

    @property
    def connect_seconds(self) -> float:
        """For TCP to connect: two lost SYNs at the default lease. A silent firewall costs this long."""
        return 0.4 * self.lease_seconds

    @property
    def dial_seconds(self) -> float:
        """For one address: connect, TLS and hello."""
        return self.lease_seconds

    @property
    def first_byte_seconds(self) -> float:
        """For the first byte of a connection that was accepted: the other side sends it as soon as it can."""
        return 0.6 * self.lease_seconds

    @property
    def reverse_seconds(self) -> float:
        """For a peer that was asked to dial back: its attempt, and the messages through the broker."""
        return 1.2 * self.lease_seconds

    @property
    def circuit_seconds(self) -> float:
        """How long a relay keeps a circuit's token valid, and one side waiting for the other."""
        return 3 * self.lease_seconds

    @property
    def probe_dial_seconds(self) -> float:
        """The lease of a link that is dialled only to probe it; a silent firewall costs 0.4 of it."""
        return self.lease_seconds / 3

    @property
    def probe_link_seconds(self) -> float:
        """For making a link that is only probed, over any route."""
        return 0.8 * self.lease_seconds

    @property
    def probe_answer_seconds(self) -> float:
        """For two workers to report the result of a probe that was requested."""
        return self.probe_link_seconds + 2 * PROBE_SECONDS

    @property
    def survey_calm_seconds(self) -> float:
        """How long a fleet must be idle, with no new worker, before an automatic survey."""
        return 3 * self.heartbeat_seconds

    @property
    def survey_soon_seconds(self) -> float:
        """Pause before a pair is probed again after a probe without a result; doubled each time."""
        return 3 * self.lease_seconds

    @property
    def survey_retry_seconds(self) -> float:
        """The longest pause before a pair that could not be measured is automatically tried again."""
        return 60 * self.lease_seconds

    @property
    def join_seconds(self) -> float:
        """For a joiner's whole request."""
        return self.lease_seconds

    @property
    def start_seconds(self) -> float:
        """For a process that this one started to report that it listens."""
        return 6 * self.lease_seconds

    @property
    def stop_seconds(self) -> float:
        """For a process to end when asked, before it is killed."""
        return self.lease_seconds

    @property
    def close_seconds(self) -> float:
        """For the closing message, before a connection is cut."""
        return self.lease_seconds / 5

    @property
    def link_seconds(self) -> float:
        """For a data link of a new plan to be welcomed; workers may still be verifying their segments."""
        return 6 * self.lease_seconds

    @property
    def search_seconds(self) -> float:
        """CPU time in which a planner may look for a better plan."""
        return 0.5 * self.lease_seconds

    @property
    def planning_seconds(self) -> float:
        """For the planner's process, which first reads a model of any size."""
        return 12 * self.lease_seconds

    @property
    def patience_seconds(self) -> float:
        """How long workers may load without any sign of progress before the job is given up."""
        return 30 * self.lease_seconds

    @property
    def comparison_seconds(self) -> float:
        """For evaluating the weights that came home, and once more on more data: within `patience_seconds`,
        which the broker waits for the submitter to confirm them.
        """
        return 0.2 * self.patience_seconds

    @property
    def blame_seconds(self) -> float:
        """For finding whose weights are false once such a comparison has failed: within the same limit."""
        return 0.4 * self.patience_seconds

    @property
    def replace_seconds(self) -> float:
        """The least time that a job waits for lost workers whose copies it could go on from."""
        return 6 * self.lease_seconds

    @property
    def pass_seconds(self) -> float:
        """The shortest deadline of a microbatch's pass: the machine has other work too."""
        return 6 * self.lease_seconds

    @property
    def chore_seconds(self) -> float:
        """For everything else that a device does for a job (verify, compile, update, transfer), before the
        broker gives the job up.
        """
        return 24 * self.lease_seconds

    @property
    def longest_pass_seconds(self) -> float:
        """The longest expected pass: a worker refuses a job whose passes take longer."""
        return 360 * self.lease_seconds

    @property
    def reconnect_seconds(self) -> float:
        """The longest pause between two attempts to reach a lost broker."""
        return self.lease_seconds

    @property
    def store_lease_seconds(self) -> float:
        """How long after a broker's last sign of life another one may take over its store on a server."""
        return self.lease_seconds

    @property
    def store_renewal_seconds(self) -> float:
        """Interval at which a broker renews that lease."""
        return 2 * self.heartbeat_seconds

    @property
    def store_answer_seconds(self) -> float:
        """For a database to answer one statement, before its connection is cut and made again."""
        return 3 * self.lease_seconds

    @property
    def store_patience_seconds(self) -> float:
        """How long the broker waits for a database that is away, before it ends."""
        return 12 * self.lease_seconds

    @property
    def return_seconds(self) -> float:
        """For a worker to return to a broker that was restarted: its session's lease, the longest pause and
        one more attempt to dial, and a lease to spare. Then it counts as lost.
        """
        return self.lease_seconds + self.reconnect_seconds + self.dial_seconds + self.lease_seconds

    @property
    def orphan_seconds(self) -> float:
        """How long a worker without a broker keeps the job that it holds."""
        return 60 * self.lease_seconds

    @property
    def hold_seconds(self) -> float:
        """How long a job whose submitter is away keeps its workers."""
        return 60 * self.lease_seconds

    @property
    def certificate_check_seconds(self) -> float:
        """Interval between checks whether a certificate is due for renewal."""
        return min(360 * self.lease_seconds, 3600.0)

    def listed(self) -> dict[str, float]:
        """All limits by name, as `farflung status` prints them."""
        names = [name for name, member in vars(type(self)).items() if isinstance(member, property)]
        return {"lease_seconds": self.lease_seconds, **{name: getattr(self, name) for name in names}}
