from __future__ import annotations

from umbel.events import CustomEvent, Event, InterruptEvent, MemberEvent, StepCompleteEvent, TerminateEvent
from umbel.protocol.heard import Heard, note, of_member


def below(*steps: str, event: Event, seq: int = 0) -> Event:
    for step in reversed(steps):
        event = MemberEvent(step=step, event=event, seq=seq)
    return event


def test_each_member_has_the_number_of_its_own_last_event() -> None:
    heard: Heard = {}
    note(heard, below("a", event=CustomEvent(name="x", seq=4)))
    note(heard, below("a", "b", event=CustomEvent(name="y", seq=7), seq=5))
    assert of_member(heard, "a")["after_seq"] == 5
    assert of_member(heard, "a")["heard"] == {"b": {"seq": 7, "end": False, "heard": {}}}
    assert of_member(heard, "never begun") == {}


def test_a_step_that_has_ended_is_forgotten() -> None:
    heard: Heard = {}
    note(heard, below("a", "b", event=CustomEvent(name="y", seq=7)))
    note(heard, below("a", event=StepCompleteEvent(step="b", step_member="b", status="completed", seq=1)))
    assert of_member(heard, "a")["heard"] == {}
    note(heard, StepCompleteEvent(step="a", step_member="a", status="failed"))
    assert heard == {}


def test_a_member_whose_end_was_heard_has_nothing_more_to_tell() -> None:
    for end in (TerminateEvent(reason="complete", seq=3), InterruptEvent(question="?", interrupt_id="i", seq=3)):
        heard: Heard = {}
        note(heard, below("a", event=end))
        assert of_member(heard, "a") == {"after_seq": 3, "heard": {}, "events": False}
