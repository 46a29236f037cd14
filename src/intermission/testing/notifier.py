"""`NotifierContract`: what every notifier must do, as a pytest class.

    class TestMyNotifier(NotifierContract):
        @pytest.fixture
        def open_notifier(self) -> Callable[[], Notifier]:
            return lambda: MyNotifier(...)

Every notifier that one test opens must be woken by what the others send. The suite asks only what
the port promises: a hint may come late or come twice, but on a server that works it comes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from intermission.polling import readable
from intermission.ports.notifier import Notifier

Open = Callable[[], Notifier]


def has_hint(notifier: Notifier, within_s: float) -> bool:
    """Whether there is a hint by then; it is left there."""
    return bool(readable([notifier], within_s))


class NotifierContract:
    """Override `open_notifier`, and pytest runs every check on your notifier."""

    ARRIVES_S = 10.0
    """How long a hint may take."""
    QUIET_S = 0.1
    """How long a notifier has to be quiet to count as quiet."""
    RETURNS_S = 1.0
    """How long a call of `notify` may take, whatever is wrong."""

    BURST = 2000
    """How many hints are sent at once, to see that they do not pile up."""

    ALONE = False
    """Whether it reaches itself alone; then `open_notifier` gives the same one until closed."""

    @pytest.fixture
    def open_notifier(self) -> Open:
        """Opens notifiers that reach each other. The suite closes them."""
        raise NotImplementedError

    @pytest.fixture
    def notifiers(self, open_notifier: Open) -> Iterator[Open]:
        opened: list[Notifier] = []

        def open_one() -> Notifier:
            opened.append(open_notifier())
            return opened[-1]

        yield open_one
        for notifier in opened:
            notifier.close()

    def listening(self, open_notifier: Open) -> Notifier:
        """A notifier that listens by now, and is quiet."""
        notifier = open_notifier()
        assert has_hint(notifier, self.ARRIVES_S), "it does not say that it listens"
        notifier.clear()
        assert not has_hint(notifier, self.QUIET_S), "it is not quiet after it was cleared"
        return notifier

    def needs_several(self) -> None:
        if self.ALONE:
            pytest.skip("such a notifier reaches itself alone")

    def test_it_says_once_that_it_listens(self, notifiers: Open) -> None:
        self.listening(notifiers)

    def test_a_hint_arrives(self, notifiers: Open) -> None:
        notifier = self.listening(notifiers)
        notifiers().notify()
        assert has_hint(notifier, self.ARRIVES_S)

    def test_a_hint_stays_until_it_is_cleared(self, notifiers: Open) -> None:
        notifier = self.listening(notifiers)
        notifiers().notify()
        assert has_hint(notifier, self.ARRIVES_S)
        assert has_hint(notifier, 0.0)

    def test_each_hint_after_a_clear_arrives(self, notifiers: Open) -> None:
        notifier, notifying = self.listening(notifiers), notifiers()
        for _ in range(20):
            notifying.notify()
            assert has_hint(notifier, self.ARRIVES_S)
            notifier.clear()

    def test_who_waits_is_woken(self, notifiers: Open) -> None:
        notifier, notifying = self.listening(notifiers), notifiers()
        woken: list[bool] = []
        waiting = threading.Thread(target=lambda: woken.append(has_hint(notifier, self.ARRIVES_S)))
        waiting.start()
        notifying.notify()
        waiting.join()
        assert woken == [True]

    def test_many_hints_do_not_pile_up(self, notifiers: Open) -> None:
        notifier, notifying = self.listening(notifiers), notifiers()
        for _ in range(self.BURST):
            notifying.notify()
        assert has_hint(notifier, self.ARRIVES_S)
        arrived = 0
        while has_hint(notifier, 0.5):
            notifier.clear()
            arrived += 1
        assert 0 < arrived <= self.BURST / 2

    def test_any_thread_may_notify(self, notifiers: Open) -> None:
        notifier, notifying = self.listening(notifiers), notifiers()

        def notify() -> None:
            for _ in range(25):
                notifying.notify()

        threads = [threading.Thread(target=notify) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert has_hint(notifier, self.ARRIVES_S)

    def test_a_hint_reaches_some_of_several_listeners(self, notifiers: Open) -> None:
        self.needs_several()
        listeners = [self.listening(notifiers) for _ in range(3)]
        notifiers().notify()
        assert readable(listeners, self.ARRIVES_S)

    def test_clearing_nothing_is_no_error(self, notifiers: Open) -> None:
        notifier = self.listening(notifiers)
        notifier.clear()
        notifier.clear()
        notifiers().notify()
        assert has_hint(notifier, self.ARRIVES_S)

    def test_a_hint_without_a_listener_is_no_error(self, notifiers: Open) -> None:
        notifier = notifiers()
        began_s = time.monotonic()
        notifier.notify()
        assert time.monotonic() - began_s < self.RETURNS_S

    def test_a_hint_sent_just_before_the_end_arrives(self, notifiers: Open) -> None:
        """As by a command that submits a job and ends."""
        self.needs_several()
        notifier, notifying = self.listening(notifiers), notifiers()
        notifying.notify()
        notifying.close()
        assert has_hint(notifier, self.ARRIVES_S)

    @pytest.mark.parametrize("used", ["not used", "notified", "listened to", "cleared"])
    def test_a_closed_notifier_takes_every_call_and_does_nothing(
        self, open_notifier: Open, used: str
    ) -> None:
        notifier = open_notifier()
        if used == "notified":
            notifier.notify()
        elif used != "not used":
            notifier.fileno()
        if used == "cleared":
            assert has_hint(notifier, self.ARRIVES_S)
            notifier.clear()
        notifier.close()
        notifier.close()
        notifier.notify()
        notifier.clear()

    def test_it_uses_no_descriptor_after_its_end(self, open_notifier: Open) -> None:
        """Its number may be another file's as soon as it is closed."""
        notifier = open_notifier()
        assert has_hint(notifier, self.ARRIVES_S)
        notifier.close()
        pipes = [os.pipe() for _ in range(8)]  # these get the lowest numbers that are free
        try:
            for _, write in pipes:
                os.write(write, b"theirs")
            notifier.clear()
            notifier.notify()
            assert [os.read(read, 100) for read, _ in pipes] == [b"theirs"] * len(pipes)
        finally:
            for read, write in pipes:
                os.close(read)
                os.close(write)

    def test_one_that_ends_leaves_the_others_alone(
        self, notifiers: Open, open_notifier: Open
    ) -> None:
        self.needs_several()
        notifier, other = self.listening(notifiers), open_notifier()
        assert has_hint(other, self.ARRIVES_S)
        other.close()
        notifiers().notify()
        assert has_hint(notifier, self.ARRIVES_S)

    def test_nothing_failed(self, notifiers: Open) -> None:
        notifier, notifying = self.listening(notifiers), notifiers()
        notifying.notify()
        assert has_hint(notifier, self.ARRIVES_S)
        assert notifier.failures == notifying.failures == 0
