"""`Session`: caches around a driver that knows its rounds.

    with cachehome.Session() as session:      # restores, and sets the variables: before torch compiles
                                              anything
        for batch in batches:
            step(batch)
            session.round_completed()         # publishes in the background: after the first round, then by
                                              interval

    new ──start()──> running ──finish()──> finished      also by `with`, `async with`, at exit, on SIGTERM

With *slots* every named worker gets a directory of its own, and `environ(slot)` is what to start it with.
Whatever goes wrong costs the warm start, never the job, unless the session is *strict*.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from cachehome import _boot
from cachehome.errors import CacheHomeError, NotWarm, StoreError
from cachehome.identity import identity as identity_of
from cachehome.lifecycle import place as places
from cachehome.lifecycle import slots as private
from cachehome.lifecycle.reports import Reporter
from cachehome.lifecycle.rounds import Publishing
from cachehome.lifecycle.starts import USAGE, Attempt
from cachehome.lifecycle.watch import look
from cachehome.settings import Settings

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence
    from types import FrameType, TracebackType

    from cachehome.identity import Identity
    from cachehome.lifecycle.place import Place
    from cachehome.lifecycle.rounds import Round
    from cachehome.sync.record import Record

log = logging.getLogger("cachehome")


class Session:
    """Caches around a driver. Every method may be called from any thread, and twice."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        slots: Sequence[str] = (),
        identity: Identity | None = None,
        environ: MutableMapping[str, str] | None = None,
        strict: bool = False,
        handlers: bool = True,
    ) -> None:
        """*slots*: names of workers that get private directories; none: one shared directory, or the slot of
        the settings.

        *environ*: where the variables are set if there are no *slots* (None: `os.environ`). *strict*:
        problems are raised, not logged. *handlers*: end in order at interpreter exit and, where nobody else
        handles it, on SIGTERM.
        """
        self._environ = os.environ if environ is None else environ
        self._settings = settings
        self._slots = list(dict.fromkeys(slots))
        self._identity = identity
        self._strict = strict
        self._handlers = handlers
        self._since = time.time()
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._state = "new"
        self._places: list[Place] = []
        self._thread: threading.Thread | None = None
        self._publishing: Publishing | None = None
        self._last = float("-inf")
        self._seen: object = None
        self._reporter = Reporter("", "session")
        self._sigterm: Any = None
        self._attempt: Attempt | None = None
        self.records: list[Record] = []
        """How each worker's restore ended, in the order of *slots*."""
        self.rounds: list[Round] = []
        """The rounds of publishing that have ended."""

    # -- start

    def start(self) -> Session:
        """Restore, and set the variables. Does nothing the second time."""
        with self._lock:
            if self._state != "new":
                return self
            self._state = "running"
            self._install_handlers()
        with self._mishaps("restore"):
            settings = self._settings or Settings.load(self._environ, lenient=not self._strict)
            self._settings = settings
            if settings.enabled == "off":
                places.insist_on(settings, "CACHEHOME is off")
                return self
            program = [sys.executable, *sys.orig_argv[1:]]
            who = self._identity or identity_of(settings, self._environ, program=program)
            self._reporter = Reporter(settings.report_dir, "session")
            names: list[str | None] = [*self._slots] or [None]
            self._places = [
                places.place_of(settings, who, self._environ, slot=name).started_here() for name in names
            ]
            for note in dict.fromkeys(note for place in self._places for note in place.notes):
                log.warning("cachehome: %s", note)
            self._restore(settings)
        if not self._slots:
            for place in self._places:
                place.apply(self._environ)
            if self._environ is os.environ:
                _boot.observe()  # this very process started before there was anything to repair
        return self

    def _restore(self, settings: Settings) -> None:
        if not settings.store or not settings.restore:
            places.insist_on(settings, "restore is off" if settings.store else "no store is set")
            return
        attempt = self._attempt = Attempt(self._places[0], [sys.executable, *sys.argv], self._since)
        self.records = private.restore_all(
            self._places, settings.store_timeout_seconds, self._since, attempt.state.arguments()
        )
        attempt.restored(self.records[0])
        attempt.leave_open()
        if attempt.note():
            log.warning("cachehome: %s", attempt.note())
        for place, record in zip(self._places, self.records, strict=True):
            level = logging.INFO if record.outcome in ("hit", "miss", "disabled") else logging.WARNING
            log.log(level, "cachehome: %s%s", f"{place.slot}: " if place.slot else "", record.line())
            self._reporter.started(place, record)
        for record in self.records:
            places.insist(record, settings)
            if self._strict and record.outcome in ("rejected", "unavailable"):
                raise StoreError(record.line(), reason=record.reason)

    def environ(self, slot: str = "") -> dict[str, str]:
        """The whole environment for the worker *slot*."""
        for place in self._places:
            if place.slot == slot or not self._slots:
                return dict(place.environ)
        if slot and slot not in self._slots:
            raise KeyError(slot)
        return dict(self._environ)

    # -- rounds

    def round_completed(self) -> bool:
        """Say that a round of work is over; whether that begins a publication, in the background."""
        with self._lock:
            self._started("good")
            if not self._may_publish() or self._thread is not None:
                return False
            assert self._settings is not None
            now = time.monotonic()
            first = self._last == float("-inf")
            if not first and now - self._last < self._settings.publish_interval_seconds:
                return False
            with self._mishaps("publish"):
                seen = look(path for place in self._places for path in place.directories.values())
                self._last = now
                if seen == self._seen:
                    return False
                self._seen = seen
                self._publishing = self._publish(
                    "first" if first else "interval", self._settings.publish_budget_seconds
                )
                self._thread = threading.Thread(
                    target=self._in_background, name="cachehome-publish", daemon=True
                )
                self._thread.start()
                return True
        return False

    def _started(self, how: str) -> None:
        """It is known how this driver has started, see `starts`."""
        if self._attempt is not None and self._pid == os.getpid():
            line = self._attempt.settle(how)
            self._attempt = None
            if line:
                log.warning("cachehome: %s", line)

    def _in_background(self) -> None:
        publishing = self._publishing
        assert publishing is not None
        with self._mishaps("publish", quiet=True):
            self._ended(publishing.wait())
        with self._lock:
            self._thread = self._publishing = None

    def _publish(self, kind: str, seconds: float, since: float | None = None) -> Publishing:
        assert self._settings is not None
        return Publishing(
            self._places,
            seconds,
            kind=kind,
            since=since,
            patient=kind == "final",  # else one of the workers that share a directory is enough
        )

    def _ended(self, round_: Round) -> None:
        with self._lock:
            self.rounds.append(round_)
            if not round_.done:
                self._seen = None
            self._reporter.published(self._places, round_)
        for record in round_.records:
            known = record.outcome in ("hit", "miss", "disabled")
            log.log(logging.INFO if known else logging.WARNING, "cachehome: %s", record.line())

    def _may_publish(self) -> bool:
        settings = self._settings
        usable = self._state == "running" and self._pid == os.getpid() and bool(self._places)
        return usable and settings is not None and bool(settings.store) and settings.publish

    # -- finish

    def finish(self, success: bool = True) -> None:
        """Publish what remains and remove private directories; after a failure, nothing more. In bounded time."""
        with self._lock:
            if self._state == "finished" or self._pid != os.getpid():
                return
            publishes = self._may_publish()
            self._state = "finished"
            self._started("good" if success else "failed")
            self._remove_handlers()
            thread, publishing = self._thread, self._publishing
        with self._mishaps("publish"):
            if self._settings is None or not self._places:
                return
            asked = time.time()
            until = time.monotonic() + self._settings.exit_timeout_seconds
            if thread is not None and publishing is not None:
                if not success:
                    publishing.stop()
                thread.join(max(0.0, until - time.monotonic()))
                publishing.stop("time_limit")
                thread.join(_KILL)
            if publishes and success:
                left = max(1.0, until - time.monotonic())
                round_ = self._publish("final", left, since=asked).wait()
                self._ended(round_)
                if round_.done:
                    for place in self._places:
                        if place.live and place.slot and place.private:
                            private.remove(place.live)
                if self._strict:
                    _raise(round_)
        self._reporter.close()

    def __enter__(self) -> Session:  # noqa: PYI034 - Self is newer than Python 3.10
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = getattr(error, "code", 1) if kind is SystemExit else 1
        if kind is KeyboardInterrupt or (kind is SystemExit and code in USAGE):
            self._started("neither")
        self.finish(kind is None or (kind is SystemExit and code in (None, 0)))

    async def __aenter__(self) -> Session:  # noqa: PYI034
        import asyncio

        with self._lock:
            self._install_handlers()  # this is the thread that may do so
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        with self._lock:
            self._remove_handlers()
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    # -- the ends that nobody announced

    def _install_handlers(self) -> None:
        if not self._handlers:
            return
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)
        with contextlib.suppress(ValueError):  # not the main thread
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._sigterm = self._on_sigterm
                signal.signal(signal.SIGTERM, self._sigterm)

    def _remove_handlers(self) -> None:
        atexit.unregister(self._at_exit)
        with contextlib.suppress(ValueError):
            if self._sigterm is not None and signal.getsignal(signal.SIGTERM) == self._sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                self._sigterm = None

    def _at_exit(self) -> None:
        failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        self.finish(failed is None)

    def _on_sigterm(self, number: int, _frame: FrameType | None) -> None:
        # Whoever stops a job wants its next start to be warm. In a forked child this is nobody's session.
        signal.signal(number, signal.SIG_DFL)
        self._started("neither")
        self.finish()
        os.kill(os.getpid(), number)

    @contextlib.contextmanager
    def _mishaps(self, what: str, quiet: bool = False) -> Any:
        try:
            yield
        except NotWarm:
            raise
        except CacheHomeError as error:
            if self._strict and not quiet:
                raise
            log.warning("cachehome: %s: %s", what, error)
        except Exception:  # a defect of ours must not stop a training run
            if self._strict and not quiet:
                raise
            log.warning("cachehome: %s failed", what, exc_info=True)


_KILL = 8.0


def _raise(round_: Round) -> None:
    for record in round_.records:
        if record.outcome in ("rejected", "unavailable"):
            raise StoreError(record.line(), reason=record.reason)
