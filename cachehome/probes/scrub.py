"""Owns what may never be written down: secrets, by name and by shape, and what differs between two pods of one job.

    secret_name("HF_TOKEN")              a name that says so
    secret_shape("ghp_16C7e42F292c69")   a value that looks like one, whatever its name
    text("-I/opt/x/include 10.0.0.7")    paths become names, addresses, host names, times become marks

A secret goes without a trace: neither its name nor a hash of it is kept, since a hash can be guessed at.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SECRET_WORDS = frozenset(
    "SECRET SECRETS PASSWORD PASSWORDS PASSWD PASSPHRASE CREDENTIAL CREDENTIALS CREDS APIKEY AUTHORIZATION BEARER"
    " COOKIE JWT OAUTH".split()
)
# Last words only: MAX_TOKENS, PAD_TOKEN_ID and CACHE_KEY_TAG are none.
_SECRET_ENDINGS = frozenset({"TOKEN", "AUTH", "PAT"})
_KEYS = frozenset(
    "API ACCESS SECRET PRIVATE SIGNING ENCRYPTION SSH AUTH MASTER ACCOUNT LICENSE DEPLOY WEBHOOK HMAC WANDB COMET"
    " NEPTUNE OPENAI ANTHROPIC".split()
)

_SECRET_SHAPES = re.compile(
    r"gh[pousr]_[A-Za-z0-9]{12,}|github_pat_\w{16,}|glpat-[\w-]{12,}|hf_[A-Za-z0-9]{12,}|sk-[A-Za-z0-9_-]{12,}"
    r"|nvapi-[\w-]{12,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{30,}|dop_v1_\w{16,}|ya29\.[\w-]{12,}|AIza[\w-]{24,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|xox[abeprs]-[\w-]{8,}|\bey[JK][\w-]{8,}\.[\w-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|(?i:\bbearer\s+\S{8,})|[A-Za-z][\w+.-]*://[^/\s:@]*:[^/\s@]+@"
)
_RUNS = re.compile(r"[A-Za-z0-9+]{20,}={0,2}")
_TURN = re.compile(r"(?<=[a-z])(?=[A-Z0-9+])|(?<=[A-Z])(?=[a-z0-9+])|(?<=[0-9+])(?=[A-Za-z])")
# "api_key": "..." inside a JSON or YAML text that came as one argument.
_NAMED = re.compile(r"""([A-Za-z][\w.-]*)["']?\s*[:=]\s*(["']?)([^"'\s,;}&]+)""")

_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_VOLATILE = re.compile(
    rf"""
    (?P<url>\b[A-Za-z][A-Za-z0-9+.-]*://[^\s,;"'<>]*)
  | (?P<address>(?<![\w.])(?:{_OCTET}\.){{3}}{_OCTET}(?::\d+)?(?![\w.])
      | \[[0-9A-Fa-f:]{{2,}}(?:%\w+)?\](?::\d+)? | (?<![\w:])(?:[0-9A-Fa-f]{{1,4}}:){{4,7}}[0-9A-Fa-f]{{1,4}}(?![\w:]))
  | (?P<uuid>(?<![0-9A-Fa-f])[0-9A-Fa-f]{{8}}(?:-[0-9A-Fa-f]{{4}}){{3}}-[0-9A-Fa-f]{{12}}(?![0-9A-Fa-f]))
  | (?P<time>(?<!\d)20\d\d[-_]?[01]\d[-_]?[0-3]\d[-_T ]?[0-2]\d[-_:]?[0-5]\d(?:[-_:]?[0-5]\d)?(?!\d))
  | (?P<path>(?:(?<![\w.~/\])}}*-])|(?<=-[ILBFO]))~?/[^\s:,;"'=<>|)}}\]]*)
    """,
    re.VERBOSE,
)
# A model's place in object storage says what is compiled; a host does not.
_STORAGE = ("s3", "gs", "az", "abfs", "abfss", "hdfs", "hf", "file", "weka")
_SNAPSHOT = re.compile(r"models--([^/]+?)--([^/]+)/snapshots/[0-9A-Fa-f]+")
# Variables whose values name this pod, host, user or launch. Their values are cut out wherever they occur.
OWN_NAMES = (
    "HOSTNAME POD_NAME POD_UID POD_IP POD_IPS POD_HOSTNAME MY_POD_NAME MY_POD_IP HOST_IP NODE_NAME NODE_IP"
    " KUBERNETES_NODE USER LOGNAME SLURM_JOB_ID SLURM_JOB_NAME SLURMD_NODENAME SLURM_NODELIST SLURM_JOB_NODELIST"
    " PBS_JOBID LSB_JOBID RAY_JOB_ID TORCHELASTIC_RUN_ID JOB_ID JOB_NAME RUN_ID MASTER_ADDR"
).split()
_SHORTEST_OWN_NAME = 6


def secret_name(name: str, value: str = "") -> bool:
    """Whether a variable's or an option's *name* says that its value is a secret."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", name.upper()) if word]
    if not words:
        return False
    if _SECRET_WORDS.intersection(words) or words[-1] in _SECRET_ENDINGS:
        return True
    if words[-1] == "KEY" and len(words) > 1:
        return words[-2] in _KEYS or (len(value) >= 16 and " " not in value)
    return False


def secret_shape(value: str) -> bool:
    """Whether *value* holds something that looks like a token, a key or a password."""
    if _SECRET_SHAPES.search(value):
        return True
    if any(_is_random(run) for run in _RUNS.findall(value)):
        return True
    return any(secret_name(name, found) for name, _, found in _NAMED.findall(value) if len(found) >= 6)


def _is_random(run: str) -> bool:
    """Letters of both cases and digits in no order. Words change their class less often; hex digests have one case."""
    if not (any(map(str.islower, run)) and any(map(str.isupper, run)) and any(map(str.isdigit, run))):
        return False
    return len(_TURN.findall(run)) >= len(run) * (0.4 if len(run) >= 32 else 0.5)


def text(value: str, environ: Mapping[str, str] | None = None) -> tuple[str, list[str]]:
    """*value* without what differs between two pods, and what was taken out of it ("path", "address", ...)."""
    taken: list[str] = []

    def replace(match: re.Match[str]) -> str:
        kind, found = match.lastgroup or "", match.group()
        if kind == "path":
            name = path_name(found)
            if name != found:
                taken.append(kind)
            return name
        if kind == "url" and found.split("://")[0].lower() in _STORAGE:
            taken.append("path")
            return path_name(found.split("://", 1)[1])
        taken.append("address" if kind == "url" else kind)
        return f"<{taken[-1]}>"

    if secret_shape(value):
        return "<secret>", ["secret"]
    result = _VOLATILE.sub(replace, value)
    for name, own in _own_names(environ):
        if own in result:
            result, count = re.subn(rf"(?<![A-Za-z0-9]){re.escape(own)}(?![A-Za-z0-9])", f"<{name}>", result)
            if count:
                taken.append(name)
    return result, taken


def command(words: Sequence[str]) -> str:
    """A command as it may be shown: without secrets, else as it was written."""
    shown: list[str] = []
    hidden = False
    for word in words:
        name, joined, value = word.partition("=")
        if hidden and not word.startswith("-"):
            shown.append("<secret>")
        elif joined and secret_name(name, value):
            shown.append(f"{name}=<secret>")
        else:
            shown.append("<secret>" if secret_shape(word) else shlex.quote(word))
        hidden = word.startswith("-") and not joined and secret_name(word, "x" * 16)
    return " ".join(shown)


def _own_names(environ: Mapping[str, str] | None) -> list[tuple[str, str]]:
    if environ is None:
        return []
    names = [(name, environ.get(name, "")) for name in OWN_NAMES]
    names.append(("HOSTNAME", os.uname().nodename if hasattr(os, "uname") else ""))
    return [(name, own) for name, own in names if len(own) >= _SHORTEST_OWN_NAME]


def path_name(path: str) -> str:
    """What of a *path* says what it is: a model of the hub cache by its name, else the last part."""
    snapshot = _SNAPSHOT.search(path)
    if snapshot:
        return f"{snapshot[1]}/{snapshot[2]}"
    return os.path.basename(path.rstrip("/")) or "/"
