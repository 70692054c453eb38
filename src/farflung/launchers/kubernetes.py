"""Kubernetes: a Deployment, each of whose pods is one worker, and the Secret with its token."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from farflung.errors import LaunchError
from farflung.launchers.launcher import (
    SECONDS_TO_LEAVE,
    TOKEN_HOURS,
    SubmittingLauncher,
    token_hint,
    yaml_text,
)
from farflung.launchers.workers import require_word

FOLDER = "/var/lib/farflung"
TOKEN_FOLDER = "/run/secrets/farflung"
USER_ID = 10001
"""The user of the image that the Dockerfile builds."""

_SECRET = """\
apiVersion: v1
kind: Secret
metadata:
  name: {secret}
{namespace}type: Opaque
stringData:
  token: {token}
---
"""
_DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
{namespace}  labels: {{app.kubernetes.io/name: farflung, app.kubernetes.io/instance: {name}}}
spec:
  replicas: {count}
  selector:
    matchLabels: {{app.kubernetes.io/name: farflung, app.kubernetes.io/instance: {name}}}
  template:
    metadata:
      labels: {{app.kubernetes.io/name: farflung, app.kubernetes.io/instance: {name}}}
    spec:
      # A pod that is to go gets SIGTERM: others take its share within 10 minutes.
      terminationGracePeriodSeconds: {seconds}
      automountServiceAccountToken: false
      securityContext:
        runAsNonRoot: true
        runAsUser: {user}
        runAsGroup: {user}
        fsGroup: {user}
        seccompProfile: {{type: RuntimeDefault}}
{selector}      containers:
        - name: worker
          image: {image}
          args:
{arguments}
{environment}          resources:
{resources}
          securityContext:
            allowPrivilegeEscalation: false
            capabilities: {{drop: [ALL]}}
          volumeMounts:
            - {{name: token, mountPath: {token_folder}, readOnly: true}}
            - {{name: state, mountPath: {folder}}}
      volumes:
        - name: token
          secret: {{secretName: {secret}, defaultMode: 288}}  # 0440 in octal
        # Identity and copies outlive a restart of the container, which needs no token then; not the pod.
        - name: state
          emptyDir: {state}
"""


@dataclass(frozen=True)
class Kubernetes(SubmittingLauncher):
    """A manifest: pods of `image`, with the token in the existing Secret `secret`, or in one beside them.

    Raises
    ------
    LaunchError
        The image, the namespace or the Secret has a name that Kubernetes would refuse.
    """

    image: str = "farflung"
    namespace: str = ""
    secret: str = ""

    program: ClassVar[str] = "kubectl"
    where: ClassVar[str] = "run this where you administer the cluster"

    def __post_init__(self) -> None:
        require_word(self.image, "--image")
        for option, name in (("--namespace", self.namespace), ("--secret", self.secret)):
            if name and (len(name) > 63 or not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)):
                raise LaunchError(
                    f"{option} must be 1 to 63 lower-case letters, digits and '-', found {name[:80]!r}"
                )

    @property
    def token_in_script(self) -> bool:
        """Whether the manifest has a Secret of its own."""
        return not self.secret

    @property
    def token_in_environment(self) -> bool:
        """`kubectl` needs no token."""
        return False

    def render(self, token: str | None = None) -> str:
        """The manifest; without `secret` it needs the token."""
        own = self.workers
        secret = self.secret or f"{own.name}-token"
        namespace = f"  namespace: {yaml_text(self.namespace)}\n" if self.namespace else ""
        words = own.join(f"--token-file={TOKEN_FOLDER}/token", f"--folder={FOLDER}/worker")
        manifest = _DEPLOYMENT.format(
            name=yaml_text(own.name),
            namespace=namespace,
            count=own.count,
            seconds=SECONDS_TO_LEAVE,
            user=USER_ID,
            selector=f"      nodeSelector: {{nvidia.com/gpu.product: {yaml_text(own.gpu)}}}\n"
            if own.gpu
            else "",
            image=yaml_text(self.image),
            arguments="\n".join(f"            - {yaml_text(word)}" for word in words),
            environment=self._environment(),
            resources=self._resources(),
            token_folder=TOKEN_FOLDER,
            folder=FOLDER,
            secret=yaml_text(secret),
            state="{}" if own.disk is None else f"{{sizeLimit: {math.ceil(own.disk) + 1}G}}",
        )
        return self._heading(secret) + self._own_secret(secret, namespace, token) + manifest

    def _heading(self, secret: str) -> str:
        own = self.workers
        within = f" --namespace={self.namespace}" if self.namespace else ""
        has = "has the token" if self.secret else "below has the token"
        return (
            f"# Starts {own.count} farflung workers for the broker at {own.broker}: kubectl apply -f FILE\n"
            f"# The Secret {secret} {has}. Each new pod takes another use of it, and can join only until\n"
            "# it has expired. Where the broker is, this makes the Secret or replaces its token:\n"
            f"#   {token_hint(own)} --hours {TOKEN_HOURS:g} |\n"
            f"#     kubectl create secret generic {secret}{within} --from-file=token=/dev/stdin \\\n"
            "#       --dry-run=client --output=yaml | kubectl apply -f -\n"
            f"# For another number of workers: kubectl scale deployment/{own.name}{within} --replicas=N\n"
        )

    def _own_secret(self, secret: str, namespace: str, token: str | None) -> str:
        if self.secret:
            return ""
        if token is None:
            raise LaunchError(
                "the manifest needs a token for its Secret, or --secret NAME of an existing one"
            )
        return _SECRET.format(secret=yaml_text(secret), namespace=namespace, token=yaml_text(token))

    def _environment(self) -> str:
        cpus = self.workers.cpus
        return f'          env: [{{name: OMP_NUM_THREADS, value: "{cpus}"}}]\n' if cpus else ""

    def _resources(self) -> str:
        own = self.workers
        memory = own.asked_memory_gb()
        requests = {"cpu": f'"{own.cpus}"' if own.cpus else "", "memory": f"{memory}G" if memory else ""}
        limits = {"memory": requests["memory"], "nvidia.com/gpu": "1" if own.asked_gpus() else ""}
        both = {"requests": requests, "limits": limits}
        return "\n".join(
            f"            {kind}: {{{', '.join(f'{key}: {value}' for key, value in asked.items() if value)}}}"
            for kind, asked in both.items()
        )

    def command(self) -> list[str]:
        """`kubectl`, which reads the manifest from standard input."""
        return [self.program, "apply", "--filename", "-"]
