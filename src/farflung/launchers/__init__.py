"""Launchers: each writes one short script or manifest with which a system starts workers.

Workers dial out with a token, so all that a launcher does is to start `farflung join` some times over.
`workers` says what is started, `launcher` what every launcher does; each other module is one system.
"""

from farflung.launchers.kubernetes import Kubernetes
from farflung.launchers.launcher import Launcher, SubmittingLauncher
from farflung.launchers.ray import Ray
from farflung.launchers.skypilot import SkyPilot
from farflung.launchers.slurm import Slurm
from farflung.launchers.ssh import Ssh
from farflung.launchers.systemd import Systemd
from farflung.launchers.workers import Workers

__all__ = [
    "Kubernetes",
    "Launcher",
    "Ray",
    "SkyPilot",
    "Slurm",
    "Ssh",
    "SubmittingLauncher",
    "Systemd",
    "Workers",
]
