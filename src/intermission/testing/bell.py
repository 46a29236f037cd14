"""`BellContract`: what every bell must do, as a pytest class.

    class TestMyBell(BellContract):
        @pytest.fixture
        def open_bell(self) -> Callable[[], Bell]:
            return lambda: MyBell(...)

Every bell that one test opens must hear what the others ring. The suite asks only what the port
promises: a hint may come late or come twice, but on a server that works it comes.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from intermission.ports.bell import Bell

Open = Callable[[], Bell]


def is_rung(bell: Bell, within_s: float) -> bool:
    """Whether there is a hint by then; it is left there."""
    return bool(select.select([bell], [], [], within_s)[0])


class BellContract:
    """Override `open_bell`, and pytest runs every check on your bell."""

    HEARD_S = 10.0
    """How long a hint may take."""
    QUIET_S = 0.1
    """How long a bell has to be quiet to count as quiet."""
    RETURNS_S = 1.0
    """How long a ring may take, whatever is wrong."""

    ALONE = False
    """Whether a bell hears itself alone; then `open_bell` gives the same one until it is closed."""

    @pytest.fixture
    def open_bell(self) -> Open:
        """Opens bells that hear each other. The suite closes them."""
        raise NotImplementedError

    @pytest.fixture
    def bells(self, open_bell: Open) -> Iterator[Open]:
        opened: list[Bell] = []

        def open_one() -> Bell:
            opened.append(open_bell())
            return opened[-1]

        yield open_one
        for bell in opened:
            bell.close()

    def listening(self, open_bell: Open) -> Bell:
        """A bell that listens by now, and is quiet."""
        bell = open_bell()
        assert is_rung(bell, self.HEARD_S), "it does not say that it listens"
        bell.hear()
        assert not is_rung(bell, self.QUIET_S), "it is not quiet after it was heard"
        return bell

    def needs_several(self) -> None:
        if self.ALONE:
            pytest.skip("such a bell hears itself alone")

    def test_it_says_once_that_it_listens(self, bells: Open) -> None:
        self.listening(bells)

    def test_a_ring_is_heard(self, bells: Open) -> None:
        bell = self.listening(bells)
        bells().ring()
        assert is_rung(bell, self.HEARD_S)

    def test_it_stays_rung_until_it_is_heard(self, bells: Open) -> None:
        bell = self.listening(bells)
        bells().ring()
        assert is_rung(bell, self.HEARD_S)
        assert is_rung(bell, 0.0)

    def test_each_ring_after_the_last_was_heard_is_heard(self, bells: Open) -> None:
        bell, ringer = self.listening(bells), bells()
        for _ in range(20):
            ringer.ring()
            assert is_rung(bell, self.HEARD_S)
            bell.hear()

    def test_who_waits_is_woken(self, bells: Open) -> None:
        bell, ringer = self.listening(bells), bells()
        woken: list[bool] = []
        waiting = threading.Thread(target=lambda: woken.append(is_rung(bell, self.HEARD_S)))
        waiting.start()
        ringer.ring()
        waiting.join()
        assert woken == [True]

    @pytest.mark.parametrize("priority", [-(2**63), -1, 0, 1, 100, 2**63])
    def test_any_priority_is_heard(self, bells: Open, priority: int) -> None:
        bell = self.listening(bells)
        bells().ring(priority)
        assert is_rung(bell, self.HEARD_S)

    def test_many_rings_do_not_pile_up(self, bells: Open) -> None:
        bell, ringer = self.listening(bells), bells()
        for _ in range(2000):
            ringer.ring()
        assert is_rung(bell, self.HEARD_S)
        heard = 0
        while is_rung(bell, 0.5):
            bell.hear()
            heard += 1
        assert 0 < heard < 1000

    def test_any_thread_may_ring(self, bells: Open) -> None:
        bell, ringer = self.listening(bells), bells()

        def ring(n: int) -> None:
            for _ in range(25):
                ringer.ring(n % 3 - 1)

        threads = [threading.Thread(target=ring, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert is_rung(bell, self.HEARD_S)

    def test_of_several_listeners_some_hear(self, bells: Open) -> None:
        self.needs_several()
        listeners = [self.listening(bells) for _ in range(3)]
        bells().ring()
        assert select.select(listeners, [], [], self.HEARD_S)[0]

    def test_hearing_nothing_is_no_error(self, bells: Open) -> None:
        bell = self.listening(bells)
        bell.hear()
        bell.hear()
        bells().ring()
        assert is_rung(bell, self.HEARD_S)

    def test_a_ring_that_nobody_hears_is_no_error(self, bells: Open) -> None:
        bell = bells()
        began_s = time.monotonic()
        bell.ring()
        assert time.monotonic() - began_s < self.RETURNS_S

    def test_what_is_rung_just_before_the_end_is_heard(self, bells: Open) -> None:
        """As by a command that submits a job and ends."""
        self.needs_several()
        bell, ringer = self.listening(bells), bells()
        ringer.ring()
        ringer.close()
        assert is_rung(bell, self.HEARD_S)

    @pytest.mark.parametrize("used", ["not used", "rung", "listened to", "heard"])
    def test_a_closed_bell_takes_everything_and_does_nothing(
        self, open_bell: Open, used: str
    ) -> None:
        bell = open_bell()
        if used == "rung":
            bell.ring()
        elif used != "not used":
            bell.fileno()
        if used == "heard":
            assert is_rung(bell, self.HEARD_S)
            bell.hear()
        bell.close()
        bell.close()
        bell.ring()
        bell.hear()

    def test_it_uses_no_descriptor_after_its_end(self, open_bell: Open) -> None:
        """Its number may be somebody else's as soon as it is closed."""
        bell = open_bell()
        assert is_rung(bell, self.HEARD_S)
        bell.close()
        pipes = [os.pipe() for _ in range(8)]  # these get the lowest numbers that are free
        try:
            for _, write in pipes:
                os.write(write, b"theirs")
            bell.hear()
            bell.ring()
            assert [os.read(read, 100) for read, _ in pipes] == [b"theirs"] * len(pipes)
        finally:
            for read, write in pipes:
                os.close(read)
                os.close(write)

    def test_one_that_ends_leaves_the_others_alone(self, bells: Open, open_bell: Open) -> None:
        self.needs_several()
        bell, other = self.listening(bells), open_bell()
        assert is_rung(other, self.HEARD_S)
        other.close()
        bells().ring()
        assert is_rung(bell, self.HEARD_S)

    def test_nothing_failed(self, bells: Open) -> None:
        bell, ringer = self.listening(bells), bells()
        ringer.ring()
        assert is_rung(bell, self.HEARD_S)
        assert bell.failures == ringer.failures == 0
