"""Where a worker's seconds went: by what it did, and by what arrived before it went on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.broker.step_rows import spent_of, timeline_of
from farflung.protocol.timeline import StepShown, StepSpan


def shown(seconds: float, *spans: StepSpan) -> StepShown:
    return StepShown("job-1", 2, 7, seconds, list(spans))


STEP = shown(
    10.0,
    StepSpan("update", -1, 0.0, 1.0),
    StepSpan("activation", 0, 0.5, 3.0, "ana"),
    StepSpan("forward", 0, 3.0, 5.0),
    StepSpan("backward", 0, 5.5, 7.0),  # nothing arrived in the gap before it
    StepSpan("gradient", 0, 6.0, 7.5, "lab"),
    StepSpan("activation", 1, 7.1, 7.2, "ana"),
    StepSpan("accumulate", 0, 8.0, 9.0),
)


def test_gaps_count_to_the_sender_whose_value_came_last_and_the_rest_to_the_decision() -> None:
    assert spent_of(STEP, submitter="ana") == pytest.approx(
        {
            "updating": 1.0,
            "waiting for submitter": 2.0,
            "computing": 4.5,
            "between tasks": 0.5,
            "waiting for lab": 1.0,
            "waiting for the decision": 1.0,
        }
    )


def test_rows_are_workers_and_links_on_the_clock_of_the_broker() -> None:
    found = timeline_of("job-1", 3, {"home": STEP}, {"home": 0.25}, "ana", ["attic"])
    assert (found.step, found.seconds, found.silent) == (3, 10.0, ["attic"])
    rows = {span.row for span in found.spans}
    assert rows == {"home", "submitter -> home", "lab -> home"}
    (arrived,) = [span for span in found.spans if span.row == "lab -> home"]
    assert (arrived.kind, arrived.microbatch, arrived.start, arrived.end) == ("gradient", 0, 6.25, 7.75)


SECONDS = st.floats(0, 20, allow_nan=False)


@given(
    st.floats(0, 10, allow_nan=False),
    st.lists(
        st.builds(
            StepSpan,
            st.sampled_from(["forward", "backward", "accumulate", "update"]),
            st.integers(-1, 3),
            SECONDS,
            SECONDS,
            st.sampled_from(["", "", "lab", "attic"]),
        ),
        max_size=12,
    ),
)
def test_whatever_a_worker_says_its_seconds_add_up_to_the_step(seconds: float, spans: list[StepSpan]) -> None:
    spent = spent_of(shown(seconds, *spans))
    assert sum(spent.values()) == pytest.approx(seconds, abs=1e-9)
    assert all(value > 0 for value in spent.values())
