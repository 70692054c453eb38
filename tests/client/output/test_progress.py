"""Several observers of one run."""

import inspect

import pytest

from farflung.client.output.progress import Observer, Observers

EVENTS = [name for name, _ in inspect.getmembers(Observer, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("event", EVENTS)
def test_each_observer_hears_every_event(event):
    heard = []

    def listening(number):
        def hear(self, *arguments):
            heard.append((number, arguments))

        return type("Listening", (Observer,), {event: hear})()

    arguments = tuple(object() for _ in list(inspect.signature(getattr(Observer, event)).parameters)[1:])
    getattr(Observers(listening(1), listening(2)), event)(*arguments)

    assert heard == [(1, arguments), (2, arguments)]
