"""`NotifierContract`: what every notifier must do, as a pytest class.

    class TestMyNotifier(NotifierContract):
        @pytest.fixture
        def open_notifier(self) -> Callable[[], Notifier]:
            return lambda: MyBell(...)

Every notifier that one test opens must hear what the others ring. The suite asks only what the port
promises: a hint may come late or come twice, but on a server that works it comes.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from intermission.ports.notifier import Notifier

Open = Callable[[], Notifier]


def has_hint(notifier: Notifier, within_s: float) -> bool:
    """Whether there is a hint by then; it is left there."""
    return bool(select.select([notifier], [], [], within_s)[0])


class NotifierContract:
    """Override `open_notifier`, and pytest runs every check on your notifier."""

    HEARD_S = 10.0
    """How long a hint may take."""
    QUIET_S = 0.1
    """How long a notifier has to be quiet to count as quiet."""
    RETURNS_S = 1.0
    """How long a ring may take, whatever is wrong."""

    ALONE = False
    """Whether it hears itself alone; then `open_notifier` gives the same one until closed."""

    @pytest.fixture
    def open_notifier(self) -> Open:
        """Opens notifiers that hear each other. The suite closes them."""
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
        assert has_hint(notifier, self.HEARD_S), "it does not say that it listens"
        notifier.clear()
        assert not has_hint(notifier, self.QUIET_S), "it is not quiet after it was heard"
        return notifier

    def needs_several(self) -> None:
        if self.ALONE:
            pytest.skip("such a notifier hears itself alone")

    def test_it_says_once_that_it_listens(self, notifiers: Open) -> None:
        self.listening(notifiers)

    def test_a_ring_is_heard(self, notifiers: Open) -> None:
        notifier = self.listening(notifiers)
        notifiers().notify()
        assert has_hint(notifier, self.HEARD_S)

    def test_it_stays_rung_until_it_is_heard(self, notifiers: Open) -> None:
        notifier = self.listening(notifiers)
        notifiers().notify()
        assert has_hint(notifier, self.HEARD_S)
        assert has_hint(notifier, 0.0)

    def test_each_ring_after_the_last_was_heard_is_heard(self, notifiers: Open) -> None:
        notifier, notifying = self.listening(notifiers), notifiers()
        for _ in range(20):
            notifying.notify()
            assert has_hint(notifier, self.HEARD_S)
            notifier.clear()

    def test_who_waits_is_woken(self, notifiers: Open) -> None:
        notifier, notifying = self.listening(notifiers), notifiers()
        woken: list[bool] = []
        waiting = threading.Thread(target=lambda: woken.append(has_hint(notifier, self.HEARD_S)))
        waiting.start()
        notifying.notify()
        waiting.join()
        assert woken == [True]

    @pytest.mark.parametrize("priority", [-(2**63), -1, 0, 1, 100, 2**63])
    def test_any_priority_is_heard(self, notifiers: Open, priority: int) -> None:
        notifier = self.listening(notifiers)
        notifiers().notify(priority)
        assert has_hint(notifier, self.HEARD_S)

    def test_many_rings_do_not_pile_up(self, notifiers: Open) -> None:
        notifier, notifying = self.listening(notifiers), notifiers()
        for _ in range(2000):
            notifying.notify()
        assert has_hint(notifier, self.HEARD_S)
        heard = 0
        while has_hint(notifier, 0.5):
            notifier.clear()
            heard += 1
        assert 0 < heard < 1000

    def test_any_thread_may_ring(self, notifiers: Open) -> None:
        notifier, notifying = self.listening(notifiers), notifiers()

        def notify(n: int) -> None:
            for _ in range(25):
                notifying.notify(n % 3 - 1)

        threads = [threading.Thread(target=notify, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert has_hint(notifier, self.HEARD_S)

    def test_of_several_listeners_some_hear(self, notifiers: Open) -> None:
        self.needs_several()
        listeners = [self.listening(notifiers) for _ in range(3)]
        notifiers().notify()
        assert select.select(listeners, [], [], self.HEARD_S)[0]

    def test_hearing_nothing_is_no_error(self, notifiers: Open) -> None:
        notifier = self.listening(notifiers)
        notifier.clear()
        notifier.clear()
        notifiers().notify()
        assert has_hint(notifier, self.HEARD_S)

    def test_a_ring_that_nobody_hears_is_no_error(self, notifiers: Open) -> None:
        notifier = notifiers()
        began_s = time.monotonic()
        notifier.notify()
        assert time.monotonic() - began_s < self.RETURNS_S

    def test_what_is_rung_just_before_the_end_is_heard(self, notifiers: Open) -> None:
        """As by a command that submits a job and ends."""
        self.needs_several()
        notifier, notifying = self.listening(notifiers), notifiers()
        notifying.notify()
        notifying.close()
        assert has_hint(notifier, self.HEARD_S)

    @pytest.mark.parametrize("used", ["not used", "rung", "listened to", "heard"])
    def test_a_closed_bell_takes_everything_and_does_nothing(
        self, open_notifier: Open, used: str
    ) -> None:
        notifier = open_notifier()
        if used == "rung":
            notifier.notify()
        elif used != "not used":
            notifier.fileno()
        if used == "heard":
            assert has_hint(notifier, self.HEARD_S)
            notifier.clear()
        notifier.close()
        notifier.close()
        notifier.notify()
        notifier.clear()

    def test_it_uses_no_descriptor_after_its_end(self, open_notifier: Open) -> None:
        """Its number may be somebody else's as soon as it is closed."""
        notifier = open_notifier()
        assert has_hint(notifier, self.HEARD_S)
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
        assert has_hint(other, self.HEARD_S)
        other.close()
        notifiers().notify()
        assert has_hint(notifier, self.HEARD_S)

    def test_nothing_failed(self, notifiers: Open) -> None:
        notifier, notifying = self.listening(notifiers), notifiers()
        notifying.notify()
        assert has_hint(notifier, self.HEARD_S)
        assert notifier.failures == notifying.failures == 0
